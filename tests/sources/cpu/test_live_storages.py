"""What lives by storage, with storages whose addresses the test chooses."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from memprof.sources.cpu.live_storages import ROW, LiveStorages
from memprof.sources.loop.thread_state import ThreadPosition
from memprof.trace import Phase
from tests.interruptions import Alarm, alarms, as_it_dies, at_call


@dataclass(eq=False)
class Memory:
    """A storage as torch shows it."""

    _cdata: int
    size: int
    address: int

    def nbytes(self) -> int:
        return self.size

    def data_ptr(self) -> int:
        return self.address


def recording() -> LiveStorages:
    live = LiveStorages(lambda: ThreadPosition(Phase.OTHER, ""))
    live.record(True)
    return live


def rows(live: LiveStorages) -> list[tuple[int, int, int]]:
    """Of each row whether it is an allocation, its address and its bytes."""
    flat = live.take_rows()
    return [tuple(flat[at : at + 3]) for at in range(0, len(flat), ROW)]


def test_two_storages_on_the_same_memory_count_once():
    live = recording()
    first, second = Memory(1, 400, 0x1000), Memory(2, 400, 0x1000)
    live.add(first)
    live.add(second)
    assert (live.bytes, rows(live)) == (400, [(1, 0x1000, 400)])
    del first
    assert live.bytes == 400
    del second
    assert (live.bytes, rows(live)) == (0, [(0, 0x1000, 400)])


def test_memory_that_a_storage_gave_up_unseen_is_anothers_where_it_lies():
    live = recording()
    gathered = Memory(1, 400, 0x1000)
    live.add(gathered)
    gathered.size = gathered.address = 0  # `resize_(0)`, as FSDP frees it: no operator shows it
    reduced = Memory(2, 300, 0x1000)
    live.add(reduced)
    assert [one.size for one in live.counted_references()] == [300]
    assert live.bytes == 300
    assert rows(live) == [(1, 0x1000, 400), (0, 0x1000, 400), (1, 0x1000, 300)]
    gathered.size, gathered.address = 400, 0x2000
    live.add(gathered)
    del gathered, reduced
    assert (live.bytes, len(list(live.counted_references()))) == (0, 0)


def test_memory_that_a_storage_got_unseen_is_of_the_stack_that_made_the_storage():
    live = recording()
    gathered = Memory(1, 400, 0x1000)
    known = live.add(gathered, stack=7)
    gathered.size, gathered.address = 400, 0x2000
    assert live.refresh(known, gathered)
    assert live.add(gathered).stack == 7
    del gathered
    another = Memory(1, 300, 0x3000)  # where the first one was
    assert live.add(another).stack == 0


# -- what a handler of a signal raises as a storage dies -----------------------------------------


def dying() -> tuple[LiveStorages, list[object]]:
    """Storages of which two lie on the same memory."""
    live = recording()
    storages = [Memory(1, 100, 0x100), Memory(2, 200, 0x200), Memory(3, 200, 0x200)]
    for storage in storages:
        live.add(storage)
    live.take_rows()
    return live, list(storages)


def assert_all_ended(live: LiveStorages) -> None:
    assert (live.bytes, live.references, live.failure) == (0, {}, "")
    assert sorted(rows(live)) == [(0, 0x100, 100), (0, 0x200, 200)]


def test_a_signal_at_any_moment_of_a_storage_s_end_interrupts_the_program_once(monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    number, interruptions = 0, 0
    while number == interruptions:
        live, storages = dying()
        with alarms():
            try:
                with at_call(number, LiveStorages.forget.__code__):
                    storages.clear()
            except Alarm:
                interruptions += 1
        assert_all_ended(live)
        number += 1
    assert interruptions >= 6  # place(), the clock and the row of two
    assert unraisable == []


def test_a_signal_that_came_as_a_storage_was_to_die_interrupts_the_program(monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    live, storages = dying()
    drop = as_it_dies(storages)
    with alarms(), pytest.raises(Alarm):
        drop()
    assert_all_ended(live)
    assert unraisable == []
