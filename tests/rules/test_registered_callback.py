"""registered-callback: a container of callbacks keeps the objects whose methods they are."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of

WIDTH = 64


class Trainer:
    def __init__(self):
        self.weights = torch.zeros(WIDTH, WIDTH)

    def on_step(self):
        return self.weights.mean()


def fires():
    listeners = []

    def step(number):
        trainer = Trainer()
        listeners.append(trainer.on_step)

    return step


def looks_alike():
    """The trainers themselves are listed."""
    trainers = []

    def step(number):
        trainers.append(Trainer())

    return step


def test_the_method_is_to_be_registered_weakly(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "registered-callback"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == ("weakref", "listeners.append(trainer.on_step)")
