"""class-registry: a class's own attribute keeps every object that was registered there."""

from __future__ import annotations

import weakref

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


def fires():
    class Adapter(nn.Module):
        everyone = set()  # noqa: RUF012 - shared on purpose

        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(WIDTH, WIDTH)
            Adapter.everyone.add(self)

    @torch.no_grad()
    def step(number):
        Adapter().proj(torch.randn(4, WIDTH))

    return step


def looks_alike():
    """The class knows its objects weakly; they pile up as fast, in a list of the program's own."""

    class Adapter(nn.Module):
        everyone = weakref.WeakSet()  # noqa: RUF012 - shared on purpose

        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(WIDTH, WIDTH)
            Adapter.everyone.add(self)

    adapters = []

    def step(number):
        adapters.append(Adapter())

    return step


def test_objects_are_to_be_registered_weakly(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "class-registry"
    assert found.bytes_per_step == (WIDTH * WIDTH + WIDTH) * 4
    assert (first.fix, first.code) == (
        "weakref",
        "everyone = set()  # noqa: RUF012 - shared on purpose",
    )
    assert "+        everyone = weakref.WeakSet()" in first.patch


def by_every_meter():
    class Meter:
        history = []  # noqa: RUF012 - the mistake

        def update(self, value):
            self.history.append(value)

    def step(number):
        Meter().update(torch.ones(WIDTH, WIDTH))

    return step


def by_the_class():
    class Gauge:
        history = []  # noqa: RUF012 - shared on purpose

        def update(self, value):
            Gauge.history.append(value)

    def step(number):
        Gauge().update(torch.ones(WIDTH, WIDTH))

    return step


def test_what_methods_fill_through_self_is_to_be_each_objects_own(tmp_path):
    (found,) = findings_of(by_every_meter, tmp_path / "run.json")
    first, second, *_ = found.remedies
    assert (found.rule, first.fix) == ("class-registry", "own_container")
    assert first.code == "history = []  # noqa: RUF012 - the mistake"
    assert (second.fix, second.code) == ("clear_container", "self.history.append(value)")
    assert found.bytes_per_step == WIDTH * WIDTH * 4


def test_what_is_filled_by_the_name_of_the_class_is_meant_for_all(tmp_path):
    (found,) = findings_of(by_the_class, tmp_path / "run.json")
    (first, *_) = found.remedies
    assert (first.fix, first.code) == ("clear_container", "Gauge.history.append(value)")


def tracks_by_its_own_class():
    class Base(nn.Module):
        tracked = []  # noqa: RUF012 - shared on purpose

        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(WIDTH, WIDTH)
            type(self).tracked += [self]

    class Adapter(Base):
        pass

    @torch.no_grad()
    def step(number):
        Adapter().proj(torch.randn(4, WIDTH))

    return step


def test_the_line_that_adds_to_the_class_is_named_where_none_makes_its_list(tmp_path):
    found = findings_of(tracks_by_its_own_class, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("class-registry", "weakref")
    assert first.code == "type(self).tracked += [self]"


def singleton():
    """One object of the class, which the class knows, has the list."""

    class Recorder:
        _instance = None

        def __new__(cls):
            if cls._instance is None:
                cls._instance = super().__new__(cls)
                cls._instance.features = []
            return cls._instance

        def log(self, tensor):
            self.features.append(tensor)

    def step(number):
        Recorder().log(torch.zeros(WIDTH, WIDTH))

    return step


def singleton_of_metaclass():
    """The same where a metaclass knows the one object of each class."""

    class Singleton(type):
        _instances = {}  # noqa: RUF012 - shared on purpose

        def __call__(cls, *args):
            if cls not in cls._instances:
                cls._instances[cls] = super().__call__(*args)
            return cls._instances[cls]

    class Recorder(metaclass=Singleton):
        def __init__(self):
            self.features = []

        def log(self, tensor):
            self.features.append(tensor)

    def step(number):
        Recorder().log(torch.zeros(WIDTH, WIDTH))

    return step


def test_of_a_singleton_the_line_that_fills_its_list_is_named(tmp_path):
    for number, program in enumerate((singleton, singleton_of_metaclass)):
        (found,) = findings_of(program, tmp_path / f"run{number}.json")
        first = found.remedies[0]
        assert (found.rule, first.fix) == ("growing-container", "clear_container")
        assert found.bytes_per_step == WIDTH * WIDTH * 4
        assert first.code == "self.features.append(tensor)"
        assert found.holders[0].code == "self.features.append(tensor)"
        assert "class-registry" not in {one.rule for one in found.remedies}


class Board:
    """What is registered with a class, by an object that its attribute is."""

    def __init__(self):
        self.entries = []

    def add(self, entry):
        self.entries.append(entry)


def registry_object():
    class Layer(nn.Module):
        board = Board()

        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(WIDTH, WIDTH)
            Layer.board.add(self)

    @torch.no_grad()
    def step(number):
        Layer().proj(torch.randn(4, WIDTH))

    return step


def test_objects_that_a_registry_of_another_class_has_are_registered_with_the_class(tmp_path):
    (found,) = findings_of(registry_object, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix, first.code) == ("class-registry", "weakref", "board = Board()")
