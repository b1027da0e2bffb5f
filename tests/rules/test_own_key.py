"""own-key: the value under a weak key refers to that key, which so never ends."""

from __future__ import annotations

import weakref

from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


class Loop:
    """What is known of one learner, with the learner."""

    def __init__(self, learner):
        self.learner = learner
        self.rates = [0.1]


class Rates:
    """What is known of one learner, without it."""

    def __init__(self, learner):
        self.rates = [0.1 for _ in learner.parameters()]


class Registry:
    def __init__(self):
        self.entries = weakref.WeakKeyDictionary()


def fires():
    registry = Registry()

    def step(number):
        learner = nn.Linear(WIDTH, WIDTH, bias=False)
        registry.entries[learner] = Loop(learner)

    return step


def looks_alike():
    registry = Registry()

    def step(number):
        learner = nn.Linear(WIDTH, WIDTH, bias=False)
        registry.entries[learner] = Rates(learner)

    return step


def test_the_value_is_to_refer_to_its_key_weakly(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "own-key"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert first.fix == "weakref"
    assert first.code == "self.learner = learner"
    assert "+        self.learner = weakref.proxy(learner)" in first.patch
    assert first.saves_bytes == WIDTH * WIDTH * 4


def held_by_a_list_as_well():
    registry, learners = Registry(), []

    def step(number):
        learner = nn.Linear(WIDTH, WIDTH, bias=False)
        registry.entries[learner] = Loop(learner)
        learners.append(learner)

    return step


def test_a_key_that_a_list_keeps_is_kept_by_the_list(tmp_path):
    (found,) = findings_of(held_by_a_list_as_well, tmp_path / "run.json")
    assert found.rule == "collected-models"
    assert found.remedies[0].code == "learners.append(learner)"
