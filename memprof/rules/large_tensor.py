"""The one tensor that makes much of the peak and is no part of a model.

Several rules say what it is by the statement that made it. Each decides for itself; of those that
match, the one that says most is declared by ``yields_to``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

import numpy as np

from memprof.rules.rule import Match
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import Place, place_of
from memprof.trace import SURVIVOR_AGE, Category, Frame, Phase
from memprof.views.stacks import made_likewise
from memprof.views.window import Bools, Ints, Window

__all__ = [
    "LargeTensor",
    "is_in_module",
    "large_tensor",
    "largest_with_kin",
    "made_by_its_statement",
    "made_by_module",
    "made_on_its_line",
    "match_of",
    "one_of_several",
]

_LEAST_SHARE = 0.2
"""Of the peak, with all tensors of its size: less is what every program has."""
_LEAST_ONE = 0.1
"""Of the peak: many small tensors of one size are a collection, and no large tensor."""
_LEAST_OF_SEVERAL = 0.05
"""The same where an operation makes several of it, one of the other, value by value."""
_LEAST_OF_SIZE = 0.25
"""Of the largest that the same lines make in a step: they may make small tensors as well."""


@dataclass(frozen=True, slots=True, eq=False)
class LargeTensor:
    """The largest tensor at the peak that a step computes, with all tensors of its size."""

    row: int
    """The first that its step made: the others came of it."""
    alike: Bools
    """Lifetimes of its size, at any time, that are neither part of a model nor inputs."""
    in_every_step: Bools
    """These, and what the same lines made in steps whose batches are of other lengths, or for
    another caller."""
    there: Ints
    """Those of its size that are there at the peak."""
    nbytes: int
    """What these take."""
    place: Place | None
    """The statement that made it; None where its file is not here."""


@lru_cache(maxsize=1)  # five rules ask for that of one window
def large_tensor(window: Window) -> LargeTensor | None:
    """The largest tensor that is no part of a model, if it makes much of the peak."""
    return _large_tensor(window, _LEAST_ONE)


def one_of_several(window: Window) -> LargeTensor | None:
    """The same, if it makes much of the peak with others of its size."""
    return _large_tensor(window, _LEAST_OF_SEVERAL)


def largest_with_kin(window: Window) -> LargeTensor | None:
    """The same, if it alone makes a tenth of the peak: what comes of it may be of other sizes."""
    return _large_tensor(window, _LEAST_ONE, least_share=_LEAST_ONE)


def _large_tensor(
    window: Window, least_one: float, *, least_share: float = _LEAST_SHARE
) -> LargeTensor | None:
    if window.peak.event < 0:
        return None
    mask = window.at_peak & ~window.has_owner & (window.category != Category.INPUT)
    # A variable that the next call of a model binds anew is gone when that has ended its step.
    mask &= window.freed_in - window.made_in <= SURVIVOR_AGE
    if not mask.any():
        return None
    row = window.largest(mask)
    # Results and gradients of its size came of it; the first of them is where it began.
    # A block may be larger than asked for, where its rest was too small to split off.
    size = window.lives.requested[row]
    alike = (
        ~window.has_owner & (window.lives.requested == size) & (window.category != Category.INPUT)
    )
    is_brief = window.freed_in - window.made_in <= SURVIVOR_AGE
    # What is there from before the first of them on has only its size in common with them.
    first = int(window.lives.alloc[alike & is_brief].min())
    alike &= is_brief | (window.lives.alloc > first)
    there = np.flatnonzero(alike & window.at_peak)
    nbytes = int(window.lives.size[there].sum())
    if window.share(nbytes) < least_share or window.share(int(size)) < least_one:
        return None
    row = _first_of(window, np.flatnonzero(alike & (window.made_in == _step_of(window, there))))
    in_every_step = _in_every_step(window, alike)
    return LargeTensor(row, alike, in_every_step, there, nbytes, place_of(window.frame_of(row)))


def _step_of(window: Window, there: Ints) -> int:
    """The step that made some: that of the peak, if it made one; they may be there since another.

    A variable of a loop has the last round's result until the next is there.
    """
    steps = window.made_in[there]
    at_peak = int(window.step_of_event[window.peak.event])
    return at_peak if (steps == at_peak).any() else int(steps[0])


def _first_of(window: Window, rows: Ints) -> int:
    """The first of a step's tensors of one size that those at the peak may come of.

    What was gone before the next was made has no part in it, but that a backward pass had before.
    """
    first = int(rows[window.at_peak[rows]][0])
    if window.phase[first] == Phase.BACKWARD:
        return int(rows[0])
    lives = window.lives
    for row in rows[rows < first][::-1]:
        if lives.free[row] > lives.alloc[first]:
            first = int(row)
    return first


def _in_every_step(window: Window, alike: Bools) -> Bools:
    of_stacks = made_likewise(window, alike)
    of_stacks &= np.isin(window.origin_site, np.unique(window.origin_site[alike]))
    sizes = window.lives.requested
    steps, step = np.unique(window.made_in, return_inverse=True)  # numbers may be of any size
    largest = np.zeros(len(steps), dtype=np.int64)
    np.maximum.at(largest, step[of_stacks], sizes[of_stacks])
    of_stacks &= sizes >= _LEAST_OF_SIZE * largest[step]
    in_every_step: Bools = alike | (
        of_stacks & ~window.has_owner & (window.category != Category.INPUT)
    )
    return in_every_step


def match_of(window: Window, large: LargeTensor, spared: Bools) -> Match:
    """The tensor as what a rule matches, with the peak without ``spared`` lifetimes."""
    return Match(
        row=large.row,
        rows=large.there,
        nbytes=large.nbytes,
        saving=window.replayed(window.whole(np.flatnonzero(spared))),
    )


def made_on_its_line(window: Window, row: int) -> Ints:
    """Every lifetime that the same stack made; in a backward pass, of the same forward line."""
    alike = window.lives.stack == window.lives.stack[row]
    return np.flatnonzero(alike & (window.origin_site == window.origin_site[row]))


def made_by_its_statement(window: Window, row: int) -> bool:
    """Whether the user's line computed the tensor itself: no module, no library that it calls."""
    if made_by_module(window, row):
        return False
    line = window.frame_of(row)
    inside = takewhile(lambda frame: frame != line, window.stack(row))
    return not any(frame_kind(frame.filename) is FrameKind.LIBRARY for frame in inside)


def made_by_module(window: Window, row: int) -> bool:
    """Whether a module that the line calls made the tensor, and no function on the line itself."""
    return is_in_module(window.frame_of(row), window.stack(row))


def is_in_module(line: Frame, stack: tuple[Frame, ...]) -> bool:
    """Whether a line calls the rest of a stack, innermost first, through a module."""
    inside = takewhile(lambda frame: frame != line, stack)
    return any("_call_impl" in frame.name for frame in inside)
