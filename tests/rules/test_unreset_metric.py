"""unreset-metric: an object collects values, and its method that empties it is not called."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of

WIDTH = 64


class Metric:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)

    def reset(self):
        self.values.clear()


class Training:
    def __init__(self, epoch):
        self.metric, self.epoch = Metric(), epoch

    def step(self, number):
        self.metric.update(torch.zeros(WIDTH, WIDTH))
        if number % self.epoch == self.epoch - 1:
            self.metric.reset()


def fires():
    """One epoch that has no end."""
    return Training(epoch=1 << 20).step


def looks_alike():
    """It is reset at the end of each epoch of four steps."""
    return Training(epoch=4).step


def test_the_method_that_empties_it_is_named(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "unreset-metric"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert first.fix == "reset_metric"
    assert "`reset()` would empty it" in first.why
