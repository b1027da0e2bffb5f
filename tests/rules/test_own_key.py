"""own-key: the value under a weak key refers to that key, which so never ends."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import ClassVar

import pytest
from torch import nn

from tests.rules.recorded import findings_of, findings_of_fork

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


class Learner(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH, bias=False)

    def score(self):
        return self.weight.sum()


class Functions:
    def __init__(self):
        self.functions = weakref.WeakKeyDictionary()

    def open(self, learner):
        self.functions[learner] = lambda rate: learner.score() * rate


class Methods:
    def __init__(self):
        self.methods = weakref.WeakKeyDictionary()

    def open(self, learner):
        self.methods[learner] = learner.score


class Numbers:
    def __init__(self):
        self.numbers = weakref.WeakKeyDictionary()

    def open(self, learner):
        width = learner.in_features
        self.numbers[learner] = lambda rate: width * rate


def fires_on_a_function():
    handlers = Functions()
    return lambda number: handlers.open(Learner())


def fires_on_a_method():
    handlers = Methods()
    return lambda number: handlers.open(Learner())


def closes_over_a_number():
    handlers = Numbers()
    return lambda number: handlers.open(Learner())


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (fires_on_a_function, "self.functions[learner] = lambda rate: learner.score() * rate"),
        (fires_on_a_method, "self.methods[learner] = learner.score"),
    ],
)
def test_a_function_that_closes_over_its_own_key_is_to_do_so_weakly(program, code, tmp_path):
    (found,) = findings_of(program, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "own-key"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == ("weakref", code)


def test_a_function_that_closes_over_a_number_keeps_no_key(tmp_path):
    found = findings_of(closes_over_a_number, tmp_path / "run.json")
    assert not any(one.bytes_per_step for one in found)


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


@dataclass
class Training:
    net: nn.Module
    rate: float = 0.1


class Trainings:
    """An attribute of the class, and a value whose fields are stored by no statement."""

    by_net: ClassVar = weakref.WeakKeyDictionary()

    def open(self, net):
        return self.by_net.setdefault(net, Training(net))


def fires_on_a_class_attribute():
    trainings = Trainings()
    return lambda number: trainings.open(Learner())


def test_the_line_is_the_one_that_puts_the_value_in(tmp_path):
    found = findings_of_fork(fires_on_a_class_attribute, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert found.rule == first.rule == "own-key"
    assert (first.fix, first.code) == (
        "weakref",
        "return self.by_net.setdefault(net, Training(net))",
    )
    assert "`by_net` (" in first.why
