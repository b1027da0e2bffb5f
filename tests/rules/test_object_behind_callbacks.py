"""collecting-object: a list of one leads to the object that collects."""

from __future__ import annotations

from memprof.reference_chain import Link, LinkKind
from tests.rules.bench import Bench

TEXT = """\
def run(cfg):
    trainer = Trainer(callbacks=[PrintScores()])
    trainer.fit(Module(cfg))

def training_step(self, probs, y):
    self.log("train_ap", self.train_ap(probs, y.long()))
"""


def test_the_call_of_the_object_is_named_and_not_what_leads_to_it(tmp_path):
    bench = Bench(tmp_path).write(TEXT)
    links = (
        Link(LinkKind.LOCAL, "trainer", "run"),
        Link(LinkKind.ATTRIBUTE, "callbacks", "Trainer"),
        Link(LinkKind.ITEM, "0", "list", length=1),
        Link(LinkKind.ATTRIBUTE, "log", "PrintScores"),
        Link(LinkKind.BOUND_METHOD, "__self__", "Module.log"),
        Link(LinkKind.MODULE_ATTRIBUTE, "train_ap.target", "Module"),
        Link(LinkKind.ITEM, "0", "list", length=48),
    )
    first = bench.advise("self.train_ap(", bench.holder("trainer = Trainer(", *links))[0]
    assert (first.rule, first.fix) == ("collecting-object", "clear_container")
    assert first.code == 'self.log("train_ap", self.train_ap(probs, y.long()))'
    assert "At every call of `self.train_ap` its `target` (48 items)" in first.why
