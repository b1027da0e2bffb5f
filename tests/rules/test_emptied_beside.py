"""What grows beside a list that a method empties, which leaves it as it is."""

from __future__ import annotations

import pytest
import torch

from tests.rules.recorded import findings_of

WIDTH = 64


class Scores:
    """Compares what is real with what is made; `reset` is to reuse the real ones."""

    def __init__(self):
        self.real, self.made = [], []
        self.history = []

    def update(self, x, real):
        (self.real if real else self.made).append(x)

    def reset(self):
        self.made = []


class Written(Scores):
    def update(self, x, real):
        if real:
            self.real.append(x)
        else:
            self.made.append(x)

    def reset(self):
        self.made.clear()


class Drained(Scores):
    """The method empties one list into the other."""

    def update(self, x, real):
        self.made.append(x)

    def reset(self):
        self.history.extend(self.made)
        self.made = []


def evaluated(kind):
    def program():
        scores = kind()

        def step(number):
            scores.reset()
            scores.update(torch.rand(WIDTH, WIDTH), real=True)
            scores.update(torch.rand(WIDTH, WIDTH), real=False)

        return step

    return program


@pytest.mark.parametrize(
    ("kind", "code"), [(Scores, "self.made = []"), (Written, "self.made.clear()")]
)
def test_the_method_is_to_empty_it_as_well(kind, code, tmp_path):
    found = findings_of(evaluated(kind), tmp_path / "run.json", steps=40)[0]
    first = found.remedies[0]
    assert (first.fix, first.code) == ("clear_container", code)
    assert "`reset()` empties `self.made` and leaves `self.real` (" in first.why
    assert found.bytes_per_step == WIDTH * WIDTH * 4


def test_what_a_method_fills_it_does_not_forget(tmp_path):
    found = findings_of(evaluated(Drained), tmp_path / "run.json", steps=40)[0]
    assert all("leaves" not in one.why for one in found.remedies)
