"""registered-callback: functions that a decorator registers."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from tests.rules.recorded import findings_of

WIDTH = 64


class Bus:
    def __init__(self):
        self.handlers = defaultdict(list)

    def on(self, event):
        def register(handler):
            self.handlers[event].append(handler)
            return handler

        return register

    def always(self, handler):
        self.handlers["always"].append(handler)
        return handler

    def emit(self, event):
        return [handler() for handler in self.handlers[event]]


def by_event():
    bus = Bus()

    def step(number):
        outputs = [torch.zeros(WIDTH, WIDTH)]

        @bus.on("end")
        def summary():
            return outputs[0].mean()

        return summary()

    return step


def for_all_events():
    bus = Bus()

    def step(number):
        outputs = [torch.zeros(WIDTH, WIDTH)]

        @bus.always
        def report():
            return outputs[0].mean()

        return report()

    return step


def looks_alike():
    """Registered once, before."""
    bus, outputs = Bus(), []

    @bus.on("end")
    def average():
        return torch.stack(outputs).mean()

    def step(number):
        outputs[:] = [torch.zeros(WIDTH, WIDTH)]
        return bus.emit("end")

    return step


@pytest.mark.parametrize(
    ("program", "code"), [(by_event, '@bus.on("end")'), (for_all_events, "@bus.always")]
)
def test_the_decorator_is_named(program, code, tmp_path):
    found, *_ = findings_of(program, tmp_path / "run.json", steps=24)
    first = found.remedies[0]
    assert (found.rule, first.fix, first.code) == ("registered-callback", "remove_hook", code)
    assert found.bytes_per_step == WIDTH * WIDTH * 4


def test_a_function_that_is_registered_once_is_none(tmp_path):
    found = findings_of(looks_alike, tmp_path / "run.json", steps=24)
    assert not any(one.bytes_per_step for one in found)
