"""Which recordings are the ranks of one launch of a job, told by their headers alone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memprof.records import Header

__all__ = ["Launch", "command_of", "gaps", "launches"]

_TOGETHER_US = 600 * 1_000_000
"""Ranks of one launch start within this of one another: torchrun's rendezvous waits no longer."""
_RANK_OPTION = re.compile(r"--?[\w-]*rank(=\S*)?")
"""``--local-rank=3``, ``--node_rank 1``: what launchers give to each rank differently."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The recordings of one launch, each told by its index among all."""

    members: tuple[int, ...]
    """One a rank, in order of ranks."""
    repeated: tuple[int, ...]
    """Earlier recordings of ranks that are there already."""
    world_size: int
    started_us: int
    """When the last of its ranks began."""


def launches(headers: Sequence[Header]) -> list[Launch]:
    """Launches of at least two ranks, the latest first.

    Ranks belong together if they have the same command line and world size and began within ten
    minutes of another one; so a file that an earlier launch left behind is not taken for one.
    """
    jobs: dict[tuple[int, tuple[str, ...]], list[int]] = defaultdict(list)
    for number, header in enumerate(headers):
        if header.rank >= 0:
            jobs[header.world_size, tuple(command_of(header.argv))].append(number)
    groups = [
        _launch(headers, near) for numbers in jobs.values() for near in _near(headers, numbers)
    ]
    return sorted((one for one in groups if len(one.members) > 1), key=lambda one: -one.started_us)


def command_of(argv: Sequence[str]) -> Iterable[str]:
    """The words of a command line without what is a rank's own."""
    skip = False
    for word in argv:
        option = _RANK_OPTION.fullmatch(word)
        if option is None and not (skip and word.isdecimal()):
            yield word
        skip = option is not None and option[1] is None


def _near(headers: Sequence[Header], numbers: Sequence[int]) -> Iterable[list[int]]:
    by_time = sorted(numbers, key=lambda n: headers[n].created_us)
    together: list[int] = []
    for number in by_time:
        if (
            together
            and headers[number].created_us - headers[together[-1]].created_us > _TOGETHER_US
        ):
            yield together
            together = []
        together.append(number)
    yield together


def _launch(headers: Sequence[Header], numbers: Sequence[int]) -> Launch:
    """Of a rank that is there twice, the later one counts."""
    latest = {headers[n].rank: n for n in numbers}
    members = tuple(latest[rank] for rank in sorted(latest))
    counted_members = set(members)
    return Launch(
        members=members,
        repeated=tuple(n for n in numbers if n not in counted_members),
        world_size=headers[members[0]].world_size,
        started_us=max(headers[n].created_us for n in members),
    )


def gaps(present: Iterable[int], size: int) -> list[tuple[int, int]]:
    """Stretches of ``0 … size - 1`` that are not in ``present``, as first and last."""
    ranges, expected = [], 0
    for rank in sorted({rank for rank in present if 0 <= rank < size}):
        if rank > expected:
            ranges.append((expected, rank - 1))
        expected = rank + 1
    return [*ranges, (expected, size - 1)] if expected < size else ranges
