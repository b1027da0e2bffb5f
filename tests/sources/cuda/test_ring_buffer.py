"""What is new in torch's ring, though the times of its entries differ from look to look."""

from __future__ import annotations

import random

import pytest

from memprof.sources.cuda.ring_buffer import RingPosition, new_entries, operations_in


def entry(action: str, address: int, time_us: int, size: int = 512) -> dict[str, object]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us}


def loop(turns: int, period_us: int = 12) -> list[dict[str, object]]:
    """The same block, allocated and freed in every turn: only the times tell turns apart."""
    return [
        entry(action, 0x1000, 1_000_000 + turn * period_us + at)
        for turn in range(turns)
        for at, action in enumerate(("alloc", "free_requested", "free_completed"))
    ]


def shifted(ring: list[dict[str, object]], shift_us: int) -> list[dict[str, object]]:
    return [{**one, "time_us": one["time_us"] + shift_us} for one in ring]


@pytest.mark.parametrize("shift_us", [0, 1, -1, 7, -40, 400, -900])
@pytest.mark.parametrize("most", [30, 1000])
def test_each_entry_of_a_loop_is_new_once(shift_us, most):
    entries, found = loop(100), []
    seen, at = RingPosition(1_000_000), 0
    random.seed(1)
    for look, upto in enumerate(range(9, 301, 12)):
        ring = shifted(entries[max(0, upto - most) : upto], shift_us * look % 950)
        made = operations_in(entries[at:upto])
        found += new_entries(seen, ring, made, made)
        seen, at = RingPosition.of(ring), upto
    assert len(found) == at
    assert [one["action"] for one in found] == [one["action"] for one in entries[:at]]


def test_what_another_thread_does_in_the_middle_of_a_look_is_new_once():
    entries = loop(40)
    seen = RingPosition.of(entries[:60])
    # the counters were read before and after, and stand for a turn less and a turn more
    assert new_entries(seen, shifted(entries, 3), 57, 63) == shifted(entries[60:], 3)


def test_a_ring_of_nothing_that_was_seen_is_new_as_a_whole():
    seen = RingPosition.of(loop(4))
    ring = [entry("alloc", 0x5000 + at, 1_000_050 + at) for at in range(5)]
    assert new_entries(seen, ring, 5, 5) == ring


def test_what_was_dropped_unseen_makes_less_than_the_counters_say():
    entries = loop(100)
    new = new_entries(RingPosition.of(entries[:30]), shifted(entries[200:230], 2), 200, 200)
    assert operations_in(new) < 200


def test_with_nothing_seen_all_is_new_and_the_first_look_goes_by_the_time():
    entries = loop(10)
    assert new_entries(RingPosition.of([]), entries, 30, 30) == entries
    assert new_entries(RingPosition(1_000_060), entries, 15, 15) == entries[15:]
    assert (
        new_entries(RingPosition(1_000_060 - 5), shifted(entries, -8), 15, 15)
        == shifted(entries, -8)[15:]
    )
    assert new_entries(RingPosition(1_000_060), [], 0, 0) == []
