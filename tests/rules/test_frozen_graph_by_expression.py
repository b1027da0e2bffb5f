"""frozen-graph: a hook that is written in one expression asks for the gradient of embeddings.

It has a file of its own: the statement that asks for a gradient is looked for in every file that
stands in the stacks, and so are those that read one.
"""

from __future__ import annotations

from tests.rules import tuned_heads
from tests.rules.recorded import findings_of

HOOK = "self.words.register_forward_hook(lambda module, args, out: out.requires_grad_())"


class Tuned(tuned_heads.Tuned):
    def __init__(self):
        super().__init__()
        self.words.register_forward_hook(lambda module, args, out: out.requires_grad_())


def program():
    return tuned_heads.training(Tuned())


def test_what_the_body_keeps_is_told_at_the_hook(tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    assert (found.rule, found.bytes) == ("frozen-graph", tuned_heads.KEPT)
    first = found.remedies[0]
    assert (first.fix, first.code) == ("detach", HOOK)
    assert first.why.startswith("Leave the hook out: only checkpointing needs it")
