"""Listing all objects beside threads that build tuples."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memprof.cpython.tracked_objects import (
    LISTS_UNFINISHED_TUPLES,
    Omitted,
    tracked_objects,
)

left_out = pytest.mark.skipif(
    not LISTS_UNFINISHED_TUPLES, reason="this Python tracks no unfinished tuple"
)


@contextmanager
def another_thread() -> Iterator[None]:
    """A thread that waits and does nothing else."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class TupleInTheMaking:
    """A thread that builds a tuple from a generator and waits at one of its items."""

    def __init__(self, length: int, waits_at: int) -> None:
        self.result: object = None
        self._waits, self._goes_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._build, args=(length, waits_at))
        self._thread.start()
        self._waits.wait()

    def _build(self, length: int, waits_at: int) -> None:
        try:
            self.result = tuple(self._items(length, waits_at))
        except SystemError as error:
            self.result = error

    def _items(self, length: int, waits_at: int) -> Iterator[int]:
        for number in range(length):
            if number == waits_at:
                self._waits.set()
                self._goes_on.wait()
            yield number

    def finish(self) -> object:
        """The tuple, or the error that came in its place."""
        self._goes_on.set()
        self._thread.join()
        return self.result


def rows_of(objects: list[object], wanted: object) -> list[int]:
    return [row for row, one in enumerate(objects) if one is wanted]


@pytest.mark.parametrize("generation", [(), (0,)])
@pytest.mark.parametrize(("length", "waits_at"), [(3, 1), (10, 10), (11, 10), (40, 25)])
def test_a_tuple_in_the_making_is_finished_while_the_list_is_held(length, waits_at, generation):
    gc.collect()
    tuple_in_the_making = TupleInTheMaking(length, min(waits_at, length - 1))
    listed = tracked_objects(*generation)
    assert tuple_in_the_making.finish() == tuple(range(length))
    assert listed.objects


@left_out
def test_tuples_with_a_single_reference_are_left_out_beside_another_thread():
    item: list[object] = []
    holder, shared = [(item, 1)], (item, 2)
    both = [shared]
    with another_thread():
        listed = tracked_objects()
    assert id(holder[0]) in listed.omitted_ids
    assert id(shared) not in listed.omitted_ids
    assert not rows_of(listed.objects, holder[0])
    assert len(rows_of(listed.objects, shared)) == len(rows_of(listed.objects, both)) == 1
    assert len(rows_of(listed.objects, item)) == 1
    omitted = [one for one in listed.objects if type(one) is Omitted]
    assert len(omitted) == len(listed.omitted_ids) == len(set(listed.omitted_ids))


@left_out
def test_a_wanted_tuple_is_listed_all_the_same():
    holder = [([], 1)]
    with another_thread():
        listed = tracked_objects(wanted_ids=frozenset([id(holder[0])]))
    assert len(rows_of(listed.objects, holder[0])) == 1
    assert id(holder[0]) not in listed.omitted_ids
    assert listed.omitted_ids


def test_the_order_is_the_collectors():
    gc.collect()
    gc.disable()
    try:
        with another_thread():
            kept = [[number] for number in range(100)]
            listed = tracked_objects().objects
    finally:
        gc.enable()
    ids = set(map(id, kept))
    assert [one for one in listed if id(one) in ids] == kept


NAMED_THREAD = """
import sys, threading
from memprof.cpython.tracked_objects import tracked_objects
over = threading.Event()
thread = threading.Thread(target=over.wait, name=sys.argv[1])
thread.start()
holder = [([], 1)]
listed = tracked_objects()
over.set()
print(bool(listed.omitted_ids), sum(one is holder[0] for one in listed.objects))
"""


@left_out
@pytest.mark.parametrize(("name", "printed"), [("memprof beat", "False 1"), ("worker", "True 0")])
def test_beside_threads_of_memprof_alone_nothing_is_left_out(name, printed):
    """None of those builds a tuple from a generator."""
    command = [sys.executable, "-c", NAMED_THREAD, name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == printed


def test_the_list_is_in_no_cycle():
    gc.collect()
    gc.disable()
    try:
        with another_thread():
            listed = tracked_objects()
            assert listed.objects
            del listed
        assert gc.collect() == 0
    finally:
        gc.enable()
