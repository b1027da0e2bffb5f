"""What the blocks were that were live when memory ran out: their sizes, and who called for them.

By their lines they are grouped in `owners`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from memprof.oom.failed_allocation import Failure
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import EMPTY, Frame
from memprof.units import format_bytes, format_count
from memprof.views.owners import Group
from memprof.views.sites import NO_SITE, site_name

__all__ = ["blocks_by_size", "callers"]

_TOP = 8
_LINES_SUFFICE = 0.5
"""Share of the live bytes whose lines are known, up to which blocks are listed by size as well."""
_DEEPEST = 6
"""Callers of callers that are looked at to tell lines apart."""


def blocks_by_size(failure: Failure, alive: npt.NDArray[np.bool_]) -> tuple[Group, ...]:
    """Live blocks by size, where stacks do not tell what most bytes are."""
    if failure.window is None or not alive.any():
        return ()
    lives = failure.window.lives
    size, has_stack = lives.size[alive], lives.stack[alive] != EMPTY
    if size[has_stack].sum() > _LINES_SUFFICE * size.sum():
        return ()
    sizes, counts = np.unique(size, return_counts=True)
    order = np.argsort(-sizes * counts, kind="stable")[:_TOP]
    return tuple(
        Group(_of_size(int(sizes[i]), int(counts[i])), int(sizes[i] * counts[i]), int(counts[i]), i)
        for i in order.tolist()
    )


def _of_size(size: int, count: int) -> str:
    if count == 1:
        return f"1 block of {format_bytes(size)}"
    return f"{format_count(count)} blocks of {format_bytes(size)}"


def callers(failure: Failure, alive: npt.NDArray[np.bool_]) -> tuple[Group, ...]:
    """Where the lines were called from, as far out as they begin to differ."""
    if failure.window is None or not alive.any():
        return ()
    lives, trace = failure.window.lives, failure.window.trace
    lines = len(np.unique(failure.window.owners.site.of[alive]))
    rows = lives.stack[alive]
    sizes, counts = np.bincount(rows, lives.size[alive]), np.bincount(rows)
    stacks = {int(row): _user_functions(trace.stack(int(row))) for row in np.unique(rows)}
    for depth in range(1, _DEEPEST):
        sums: dict[str, tuple[int, int]] = {}
        for row, frames in stacks.items():
            name = site_name(frames[min(depth, len(frames) - 1)] if frames else NO_SITE)
            size, count = sums.get(name, (0, 0))
            sums[name] = size + int(sizes[row]), count + int(counts[row])
        if len(sums) > lines:
            order = sorted(sums, key=lambda name: -sums[name][0])[:_TOP]
            return tuple(Group(n, sums[n][0], sums[n][1], i) for i, n in enumerate(order))
    return ()


def _user_functions(stack: Sequence[Frame]) -> list[Frame]:
    """The user's frames, innermost first, one for each function."""
    by_name: dict[tuple[str, str], Frame] = {}
    for frame in stack:
        if frame_kind(frame.filename) is FrameKind.USER:
            by_name.setdefault((frame.filename, frame.name), frame)
    return list(by_name.values())
