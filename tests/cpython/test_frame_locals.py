"""Variables of frames: all that are bound, and nothing of the frame is changed."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Iterator

import pytest

from memprof.cpython.frame_locals import frame_variable, frame_variables


class Thing:
    """Can be referred to weakly."""


def variables(frame: types.FrameType) -> dict[str, object]:
    return dict(zip(*frame_variables(frame), strict=True))


def test_arguments_locals_and_cells_of_a_running_function_are_read() -> None:
    def outer(a: int, b: int, *rest: int, c: int = 3, **more: int) -> dict[str, object]:
        shared = [a]
        gone = late = 1
        del gone, late  # an empty slot, and an empty cell

        def inner() -> object:
            return shared, b, late  # noqa: F821

        return variables(sys._getframe())

    found = outer(1, 2, 7, d=9)
    assert found.pop("inner").__name__ == "inner"  # type: ignore[attr-defined]
    assert found == {"a": 1, "b": 2, "rest": (7,), "c": 3, "more": {"d": 9}, "shared": [1]}


def test_variables_of_enclosing_functions_are_read_in_the_inner_one() -> None:
    def outer(argument: int) -> dict[str, object]:
        local = argument + 1

        def inner(own: int) -> dict[str, object]:
            found = variables(sys._getframe())
            assert found["argument"] is argument
            assert found["local"] is local
            return found

        return inner(5)

    assert outer(1) == {"own": 5, "argument": 1, "local": 2}


def test_one_variable_is_read_without_the_others_or_is_none() -> None:
    def running(first: int, **more: int) -> types.FrameType:
        later = first
        del later  # an empty slot
        return sys._getframe()

    frame = running(7, option=1)
    assert frame_variable(frame, "first") == 7
    assert frame_variable(frame, "more") == {"option": 1}
    assert frame_variable(frame, "later") is None
    assert frame_variable(frame, "no_such_name") is None


def test_suspended_and_finished_functions_are_read_until_they_are_cleared() -> None:
    def steps(x: int) -> Iterator[int]:
        y = 2 * x
        yield y

    def fails(x: str) -> None:
        y = x * 2
        raise ValueError(y)

    generator = steps(21)
    assert variables(generator.gi_frame) == {"x": 21}  # type: ignore[attr-defined]
    next(generator)
    assert variables(generator.gi_frame) == {"x": 21, "y": 42}  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="abab") as raised:
        fails("ab")
    finished = raised.tb.tb_next.tb_frame  # type: ignore[union-attr]
    assert variables(finished) == {"x": "ab", "y": "abab"}
    finished.clear()
    assert variables(finished) == {}


def test_a_class_body_is_read_past_what_its_namespace_defines() -> None:
    class Space(dict):  # type: ignore[type-arg]
        def items(self) -> None:  # type: ignore[override]
            raise AssertionError

    class Meta(type):
        @classmethod
        def __prepare__(cls, name: str, bases: tuple[type, ...], **_: object) -> Space:  # type: ignore[override]
            return Space()

    seen = []

    class Made(metaclass=Meta):
        size = 5
        seen.append(variables(sys._getframe()))

    assert seen[0]["size"] == 5


def test_reading_keeps_nothing_alive_and_leaves_a_dict_from_locals_alone() -> None:
    given = locals()
    thing = Thing()
    dead = weakref.ref(thing)
    found = variables(sys._getframe())
    assert found["thing"] is thing
    assert given == {}
    del found, thing
    assert dead() is None


def test_a_function_that_is_traced_keeps_its_variables() -> None:
    lines = []

    def trace(frame: types.FrameType, event: str, _: object) -> object:
        if frame.f_code.co_name == "work":
            lines.append((event, sorted(variables(frame))))
        return trace

    def work(x: int) -> int:
        y = x + 1
        return x + y

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = work(20)
    finally:
        sys.settrace(before)
    assert result == 41
    assert lines[0] == ("call", ["x"])
    assert lines[-1] == ("return", ["x", "y"])
