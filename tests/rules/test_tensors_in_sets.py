"""tensor-key: sets of tensors, and of what waits in sets."""

from __future__ import annotations

import pytest
import torch

from tests.rules.recorded import findings_of

WIDTH = 64


class Deduper:
    def __init__(self):
        self.passed = set()

    def is_new(self, tensor):
        before = len(self.passed)
        self.passed |= {tensor}
        return len(self.passed) > before


class Asking:
    def __init__(self):
        self.known = set()

    def is_new(self, tensor):
        if tensor in self.known:
            return False
        self.known.add(tensor)
        return True


class Pool:
    """What is in it is read again."""

    def __init__(self):
        self.pooled = set()

    def is_new(self, tensor):
        self.pooled = self.pooled | {tensor}
        return len(self.pooled) > 90 and sum(one.sum() for one in self.pooled) > 0


class Working(Deduper):
    """Has what is worked on, and lets go of it."""

    def __init__(self):
        self.working = set()

    def is_new(self, tensor):
        self.working |= {tensor}
        is_one = len(self.working) == 1
        self.working -= {tensor}
        return is_one


def job(made):
    def program():
        made_of = made()
        return lambda number: made_of.is_new(torch.zeros(WIDTH, WIDTH))

    return program


@pytest.mark.parametrize(
    ("made", "code"),
    [(Deduper, "self.passed |= {tensor}"), (Asking, "self.known.add(tensor)")],
)
def test_a_set_that_is_asked_what_is_in_it_is_to_have_no_tensors(made, code, tmp_path):
    found, *_ = findings_of(job(made), tmp_path / "run.json", steps=24)
    first = found.remedies[0]
    assert (found.rule, first.fix, first.code) == ("tensor-key", "weakref", code)
    assert "equal themselves alone" in first.why
    assert found.bytes_per_step == WIDTH * WIDTH * 4


def test_a_set_whose_tensors_are_read_is_a_container(tmp_path):
    found, *_ = findings_of(job(Pool), tmp_path / "run.json", steps=24)
    assert (found.rule, found.remedies[0].fix) == ("growing-container", "clear_container")
    assert found.remedies[0].code == "self.pooled = self.pooled | {tensor}"


def test_what_a_set_lets_go_of_does_not_grow(tmp_path):
    found = findings_of(job(Working), tmp_path / "run.json", steps=24)
    assert not any(one.bytes_per_step for one in found)
