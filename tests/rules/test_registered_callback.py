"""registered-callback: a container of callbacks keeps the objects whose methods they are."""

from __future__ import annotations

from collections import defaultdict

import torch

from tests.rules.recorded import findings_of, findings_of_fork

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


class Bus:
    def __init__(self):
        self.handlers = defaultdict(list)

    def subscribe(self, event, handler):
        self.handlers[event].append(handler)


BUS = Bus()


class Logger:
    def __init__(self):
        self.lines = []
        BUS.subscribe("begin", self.on_begin)

    def on_begin(self, message):
        self.lines.append(message)


class Stopper:
    def __init__(self, weights):
        self.weights = weights
        BUS.subscribe("end", self.on_end)

    def on_end(self, message):
        self.lines.append(message)


def rounds_that_take_ever_longer():
    """The n-th subscribes its handler and takes n steps."""
    Logger()

    def step(number):
        if int((8 * number + 1) ** 0.5) ** 2 == 8 * number + 1:  # 0, 1, 3, 6, 10, …
            Stopper(torch.zeros(256, WIDTH))

    return step


def test_what_ever_longer_rounds_register_grows_as_well(tmp_path):
    (found, *_) = findings_of_fork(rounds_that_take_ever_longer, tmp_path / "run.json", 106)
    first = found.remedies[0]
    assert (found.rule, found.bytes) == ("registered-callback", 14 * 256 * WIDTH * 4)
    # of the two that subscribe, the one whose method is there
    assert (first.fix, first.code) == ("weakref", 'BUS.subscribe("end", self.on_end)')


def scheduled():
    """The bus is the only object of its class, which the class knows."""

    class Scheduler:
        _instance = None

        def __init__(self):
            self.callbacks = set()

        @classmethod
        def get(cls):
            if cls._instance is None:
                cls._instance = cls()
            return cls._instance

        def subscribe(self, callback):
            self.callbacks.add(callback)

    class Adapter:
        def __init__(self):
            self.weight = torch.zeros(WIDTH, WIDTH)
            Scheduler.get().subscribe(self.refresh)

        def refresh(self):
            self.weight.zero_()

    def step(number):
        Adapter()

    return step


def test_callbacks_of_a_singleton_are_named_where_they_are_registered(tmp_path):
    (found,) = findings_of(scheduled, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("registered-callback", "weakref")
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert first.code == "Scheduler.get().subscribe(self.refresh)"
