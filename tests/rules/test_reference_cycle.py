"""reference-cycle: objects refer to each other, and only the garbage collector frees them."""

from __future__ import annotations

import gc
import weakref

import torch

from tests.rules.recorded import findings_of

WIDTH = 64


class Node:
    def __init__(self, value):
        self.value = value
        self.owner = self


class Part:
    """Refers to itself weakly."""

    def __init__(self, value):
        self.value = value
        self.owner = weakref.ref(self)


def fires():
    def step(number):
        Node(torch.zeros(WIDTH, WIDTH))

    return step


def looks_alike():
    """Objects that are freed when their last reference goes, of which a list keeps a part."""
    parts = []

    def step(number):
        parts.append(Part(torch.zeros(WIDTH, WIDTH)))

    return step


def test_the_cycle_is_to_be_broken_or_one_link_made_weak(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    assert found.rule == "reference-cycle"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert [one.fix for one in found.remedies] == ["break_cycle", "weakref"]


def collected_after_each_trial():
    """Objects in cycles as large as the trial, and a collection before the next: none piles up."""
    trials = []

    def step(number):
        if number % 6 == 0:
            trials.clear()
            gc.collect()
            trials.append(Node(torch.zeros(number + 1, WIDTH)))

    return step


def test_cycles_that_are_collected_before_the_next_begin_are_no_finding(tmp_path):
    found = findings_of(collected_after_each_trial, tmp_path / "run.json", steps=72)
    assert [one.rule for one in found if not one.minor] == []
