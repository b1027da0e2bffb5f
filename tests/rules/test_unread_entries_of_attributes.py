"""unread-entries: of a dict that an attribute has, one entry is read and another is kept as well."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of, names

WIDTH = 128
BYTES = WIDTH * WIDTH * 4


def cloned(state):
    return {name: {key: one.clone() for key, one in part.items()} for name, part in state.items()}


class Trainer:
    """Keeps the best state, with the optimizer's, and loads the weights of it alone."""

    def __init__(self):
        self.model = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.best_state = None

    def state(self):
        moments = torch.rand(2, WIDTH, WIDTH)
        return {"weights": self.model.state_dict(), "moments": {"both": moments}}

    def keep(self):
        self.best_state = cloned(self.state())

    def restore(self):
        if self.best_state is not None:
            self.model.load_state_dict(self.best_state["weights"])


class Resumed(Trainer):
    """The same, and its name for the state is read whole."""

    def keep(self):
        self.resumed_state = cloned(self.state())

    def restore(self):
        return dict(self.resumed_state)


def training(kind):
    trainer = kind()

    def step(number):
        trainer.restore() if number else None
        if number % 4 == 0:
            trainer.keep()

    return step


def test_the_entry_of_a_state_that_nothing_reads_is_not_to_be_kept(tmp_path):
    found = findings_of(lambda: training(Trainer), tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "unread-entries"]
    (only,) = one.remedies
    assert "`moments` of `Trainer.best_state`, never read" in one.title
    assert only.code == "self.best_state = cloned(self.state())"
    assert "Of `Trainer.best_state` only `best_state['weights']` is read" in only.why
    assert one.bytes >= 2 * BYTES
    assert found[0] is one  # it saves more than to let go of the old state before the new is there
    assert "unread-entries" not in names(lambda: training(Resumed), tmp_path / "whole.json")
