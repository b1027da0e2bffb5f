"""idle-model, where an object's attribute keeps the model that is called no more."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of
from tests.rules.test_idle_model import MODEL, WIDTH, Encoder, once, train


class Once:
    """Its encoder makes the data before the training."""

    def __init__(self):
        self.first_encoder = Encoder()

    @torch.no_grad()
    def make_data(self, x):
        return self.first_encoder(x)

    def fit(self, hidden):
        train(hidden)


class Often:
    """The same, and a loop makes new data now and then."""

    def __init__(self):
        self.next_encoder = Encoder()

    @torch.no_grad()
    def make_more(self, x):
        return self.next_encoder(x)

    def fit(self, hidden):
        train(hidden)


def caches_once():
    trainer = Once()
    hidden = trainer.make_data(torch.randn(8, WIDTH))
    trainer.fit(hidden)


def caches_often():
    trainer = Often()
    for _ in range(2):
        trainer.fit(trainer.make_more(torch.randn(8, WIDTH)))


def idle(job, path):
    return [one for one in findings_of(once(job), path) if one.rule == "idle-model"]


def test_it_is_let_go_of_after_the_call_that_reads_it_last(tmp_path):
    (found,) = idle(caches_once, tmp_path / "run.json")
    (first,) = found.remedies
    assert found.bytes == MODEL
    assert (first.fix, first.typed) == ("del_ref", "del trainer.first_encoder")
    assert first.code == "hidden = trainer.make_data(torch.randn(8, WIDTH))"


def test_what_a_loop_comes_by_again_is_needed(tmp_path):
    assert not idle(caches_often, tmp_path / "run.json")
