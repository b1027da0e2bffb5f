"""What handlers of signals raise in callbacks of ours and within our guards reaches the program."""

from __future__ import annotations

import functools
import signal
import sys
import weakref
from typing import Any

import pytest

from memprof.cpython import signal_errors
from memprof.cpython.signal_errors import covers_entry, guarded_errors, raised_at_death
from tests.interruptions import NUMBER, Alarm, alarms, as_it_dies


class Handler:
    def __call__(self, *_):
        raise Alarm

    def handle(self, _number, _frame):
        raise Alarm


def handler(_number, _frame):
    raise Alarm


def replaced_first(_number, _frame):
    signal.signal(NUMBER, signal.SIG_IGN)
    raise Alarm


def within(*arguments):
    handler(*arguments)


def guarded() -> None:
    try:
        signal.raise_signal(NUMBER)
    except guarded_errors():
        pass


@pytest.fixture
def default():
    before = signal.getsignal(NUMBER)
    yield
    signal.signal(NUMBER, before)


@pytest.mark.parametrize(
    "action",
    [
        handler,
        replaced_first,
        within,
        Handler(),
        Handler().handle,
        functools.partial(handler),
        lambda *_: sys.exit(3),
        signal.default_int_handler,
    ],
)
def test_a_guard_passes_on_what_any_kind_of_handler_raises(action, default):
    signal.signal(NUMBER, action)
    with pytest.raises((Alarm, SystemExit, KeyboardInterrupt)) as raised:
        guarded()
    assert "guarded_errors" not in [one.name for one in raised.traceback]


def raised_under_a_guard(error: Exception, kind: type[Exception] = Exception) -> bool:
    try:
        raise error
    except guarded_errors(kind) as caught:
        return caught is error


def test_a_guard_keeps_errors_of_its_kind_and_no_others(default):
    signal.signal(NUMBER, handler)
    assert raised_under_a_guard(ValueError("ours"))
    assert raised_under_a_guard(Alarm("not of a handler"))
    with pytest.raises(ValueError, match="ours"):
        raised_under_a_guard(ValueError("ours"), OSError)


@pytest.fixture
def ignored(monkeypatch):
    errors = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    yield errors
    assert not signal_errors.QUEUED


class Mortal:
    pass


@covers_entry
def note(names: set[object], name: object, reference: object) -> object:
    try:
        names.add(name)
    except BaseException as error:  # noqa: BLE001
        return note(names, name, reference), raised_at_death(error)
    return None


def test_a_callback_is_done_although_a_signal_came_before_its_first_line(ignored):
    names, one = set(), [Mortal()]
    reference = weakref.ref(one[0], functools.partial(note, names, "it"))
    drop = as_it_dies(one)
    with alarms(), pytest.raises(Alarm) as raised:
        drop()
    assert reference() is None
    assert names == {"it"}
    assert ignored == []
    # Nothing of the callback: the program is interrupted where it dropped the object.
    assert [one.name for one in raised.traceback][1:] == ["__bool__", "_raise"]


def test_of_several_that_die_at_once_each_is_noted_and_the_program_is_interrupted_once(ignored):
    names, many = set(), [Mortal() for _ in range(5)]
    references = [
        weakref.ref(one, functools.partial(note, names, number)) for number, one in enumerate(many)
    ]
    drop = as_it_dies(many)
    with alarms(), pytest.raises(Alarm):
        drop()
    assert [one() for one in references] == [None] * 5
    assert names == {*range(5)}
    sum(range(3))  # nothing comes later
    assert ignored == []


def test_errors_of_their_own_are_no_signal_s():
    assert not signal_errors.is_of_signal(ValueError())
    assert signal_errors.is_of_signal(KeyboardInterrupt())


def test_a_table_of_many_and_long_entries_is_the_same_but_for_its_beginning():
    lines = "\n".join(f"        x{number} = x{number}()" for number in range(300))
    source = f"def long(x0):\n    try:\n{lines}\n    except BaseException:\n        return 1\n"
    names: dict[str, Any] = {}
    exec(source.replace("= x", "= 0 or x"), names)
    assert names["long"](1) == 1
    assert covers_entry(names["long"])(1) == 1
