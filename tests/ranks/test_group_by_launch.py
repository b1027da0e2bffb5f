"""Which recordings are the ranks of one launch."""

from __future__ import annotations

from memprof.ranks.group_by_launch import command_of, gaps, launches
from memprof.records import Header

MINUTE = 60_000_000


def header(rank: int, size: int = 4, at: int = 0, argv: tuple[str, ...] = ("train.py",)) -> Header:
    return Header((1, 1), created_us=1_000 * MINUTE + at, argv=list(argv), rank=rank, world_size=size)  # fmt: skip


def members(*headers: Header) -> list[tuple[int, ...]]:
    return [launch.members for launch in launches(headers)]


def test_ranks_of_one_command_that_began_together_are_one_launch_in_order_of_ranks():
    (launch,) = launches([header(2, at=5), header(0), header(1, at=MINUTE)])
    assert (launch.members, launch.repeated, launch.world_size) == ((1, 2, 0), (), 4)
    assert launch.started_us == 1_001 * MINUTE


def test_slow_nodes_may_begin_minutes_after_others():
    starts = [0, 9 * MINUTE, 18 * MINUTE, 27 * MINUTE]
    assert members(*[header(n, at=at) for n, at in enumerate(starts)]) == [(0, 1, 2, 3)]


def test_what_an_earlier_launch_left_behind_is_another_launch():
    old = [header(n, at=0) for n in range(4)]
    new = [header(n, at=60 * MINUTE) for n in range(2)]
    assert members(*old, *new) == [(4, 5), (0, 1, 2, 3)]


def test_another_command_or_world_size_is_another_launch():
    others = (header(0, argv=("eval.py",)), header(1, argv=("eval.py",)))
    assert members(header(0), header(1), *others) == [(0, 1), (2, 3)]
    assert members(header(0), header(1), header(2, size=8), header(3, size=8)) == [(0, 1), (2, 3)]


def test_words_that_launchers_give_to_each_rank_do_not_part_them():
    words = ["train.py", "--local-rank=1", "--lr", "0.1", "--node_rank", "7", "8"]
    assert list(command_of(words)) == ["train.py", "--lr", "0.1", "8"]
    assert members(*[header(n, argv=("t.py", f"--local_rank={n}")) for n in (0, 1)]) == [(0, 1)]


def test_of_a_rank_that_is_there_twice_the_later_one_counts():
    (launch,) = launches([header(0), header(1, at=3), header(1, at=7), header(0, at=1)])
    assert (launch.members, sorted(launch.repeated)) == ((3, 2), [0, 1])


def test_single_recordings_and_those_without_a_rank_are_no_launch():
    assert launches([header(-1), header(-1), header(3)]) == []
    assert launches([header(3), header(3, at=2)]) == []
    assert launches([]) == []


def test_missing_ranks_are_told_in_stretches():
    assert gaps([0, 1, 4, 5, 9], 12) == [(2, 3), (6, 8), (10, 11)]
    assert gaps([2, 1, 0, 2], 3) == []
    assert gaps([], 2) == [(0, 1)]


def test_ranks_beyond_an_impossible_world_cost_nothing():
    assert gaps([0, 7, 10**12], 1 << 30) == [(1, 6), (8, (1 << 30) - 1)]
