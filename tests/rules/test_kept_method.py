"""kept-method: a record keeps a method of an object where its result would do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from tests.rules.recorded import findings_of, names

WIDTH = 64


@dataclass
class Trial:
    number: int
    rate: Any


class Schedule:
    def __init__(self):
        self.weights = torch.zeros(WIDTH, WIDTH)

    def rate_now(self):
        return 0.5

    def rate_later(self):
        return 0.25

    def rate_by_name(self):
        return 0.125


class Sweep:
    def __init__(self):
        self.trials = []

    def step(self, number):
        schedule = Schedule()
        self.trials.append(Trial(number, schedule.rate_now))

    def step_with_a_dict(self, number):
        schedule = Schedule()
        self.trials.append({"number": number, "rate": schedule.rate_later})


class Bus:
    """Methods that are to be called, in a dict of them by their names."""

    def __init__(self):
        self.listeners = {}

    def step(self, number):
        self.listeners[f"schedule {number}"] = Schedule().rate_by_name


class Row(NamedTuple):
    number: int
    decay: Any


class Decay:
    def __init__(self):
        self.weights = torch.zeros(WIDTH, WIDTH)

    def decay_now(self):
        return 0.5

    def apply_now(self):
        return 0.25


class Rows(Sweep):
    def step(self, number):
        decay = Decay()
        self.trials.append(Row(number, decay=decay.decay_now))


class Jobs(Sweep):
    """Records of what is to be done, which is called later."""

    def step(self, number):
        decay = Decay()
        self.trials.append({"number": number, "action": decay.apply_now})
        if number > 60:
            self.trials[0]["action"]()


class Called(Sweep):
    """The number is kept; what grows is a list of weights."""

    def step(self, number):
        schedule = Schedule()
        self.trials.append((number, schedule.weights, Schedule.rate_now(schedule)))


def fires():
    return Sweep().step


def fires_on_an_entry():
    return Sweep().step_with_a_dict


def fires_on_a_named_tuple():
    return Rows().step


def keeps_actions():
    return Jobs().step


def registers():
    return Bus().step


def looks_alike():
    return Called().step


@pytest.mark.parametrize(
    ("program", "code", "called"),
    [
        (fires, "self.trials.append(Trial(number, schedule.rate_now))", "`schedule.rate_now()`"),
        (
            fires_on_an_entry,
            'self.trials.append({"number": number, "rate": schedule.rate_later})',
            "`schedule.rate_later()`",
        ),
        (
            fires_on_a_named_tuple,
            "self.trials.append(Row(number, decay=decay.decay_now))",
            "`decay.decay_now()`",
        ),
    ],
)
def test_the_line_that_forgets_the_brackets_is_named(program, code, called, tmp_path):
    (found,) = findings_of(program, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "kept-method"
    assert (first.fix, first.code) == ("del_ref", code)
    assert called in first.why
    assert found.bytes_per_step == WIDTH * WIDTH * 4


def test_a_method_that_the_program_calls_by_its_field_is_meant(tmp_path):
    assert "kept-method" not in names(keeps_actions, tmp_path / "run.json")


def test_a_dict_of_methods_is_a_registry(tmp_path):
    assert "kept-method" not in names(registers, tmp_path / "run.json")
