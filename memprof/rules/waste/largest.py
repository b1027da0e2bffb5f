"""largest: one tensor makes much of the peak, and nothing more is known of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import (
    LargeTensor,
    is_in_module,
    large_tensor,
    made_by_module,
    made_on_its_line,
)
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.best_of_rows import best_of_rows
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import Place, called_name
from memprof.source_code.verbs import COPYING, FACTORIES, JOINING, LEARNING, SAME_VALUES
from memprof.trace import Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.owners import CATEGORY_NAMES
from memprof.views.peak_without import Saving
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_TIMES_SAVED = 4
"""Times the saving, that the tensors of one size come to: then others beside them are as many."""
_MOSTLY = 0.5
"""Of the peak, in what a line makes on its way; and of that, what goes with it."""
_MOVING = COPYING | FACTORIES | JOINING | LEARNING | SAME_VALUES | {"items", "step"}
"""Calls that compute no new values of tensors, or on no line that could do it in parts."""


@dataclass(frozen=True, slots=True, eq=False)
class Large(Match):
    """The largest tensor, and how it came about."""

    is_unlearned: bool = False
    """No backward pass runs while it is there."""
    is_kept: bool = False
    """Most of what is there is saved for a backward pass."""
    learns: bool = False
    """A backward pass comes later in its step, or made it."""
    by_library: bool = False
    """A library that the user's line calls made it: that line cannot do it in parts."""
    by_module: bool = False
    """A module that the user's line calls made it, and no function on that line."""
    of_line: bool = False
    """All that its line makes and drops again is meant, of whatever size."""


class Largest(WasteRule[Large]):
    """Pairwise distances, attention scores, logits over a vocabulary: large, and perhaps meant."""

    name = "largest"
    summary = "one tensor makes much of the peak"
    fixes = ("checkpoint", "smaller_batch", "chunk", "mixed_precision")
    needed = True
    yields_to = (
        "grown-by-copy",
        "binned-curve",
        "broadcast",
        "repeated",
        "upcast",
        "unfused-attention",
        "collected-predictions",
        "one-hot",
        "padded-batches",
        "pairwise-differences",
        "undivided-batch",
        "copied-windows",
        "large-evaluation",
        "dense-embedding-gradient",
        "diagonal-matrix",
        "edge-messages",
        "expanded-input",
        "full-factor",
        "full-spectrum",
        "gathered-weights",
        "log-of-softmax",
        "normalized-anew",
        "partly-read",
        "reduced-later",
        "ranked-by-sorting",
        "reduced-table",
        "summed-products",
        "unlabelled-rows",
    )

    def matches(self, window: Window) -> Iterator[Large]:
        """The largest tensor that is no part of a model, with what is of its size."""
        large = large_tensor(window)
        if large is None:
            return
        row, rows = _chain(window, large)
        origin = window.origin_of(row)
        line = window.frame_of(row) if origin is None else origin
        stack = window.stack(row) if origin is None else window.origin_stack(row)
        saving, there, nbytes = window.replayed(window.whole(rows)), large.there, large.nbytes
        of_line = _of_line(window, large) if _TIMES_SAVED * saving.bytes < nbytes else None
        if of_line is not None:
            row, saving, there = large.row, *of_line
            nbytes = int(window.lives.size[there].sum())
        yield Large(
            row=row,
            rows=there,
            nbytes=nbytes,
            saving=saving,
            of_line=of_line is not None,
            tentative=True,  # it may well be what the program is for
            is_unlearned=_is_unlearned(window, there),
            is_kept=_is_kept(window, there),
            learns=origin is not None or window.learns_after(int(window.lives.alloc[row])),
            in_backward_of=origin is not None,
            by_library=_by_library(stack),
            by_module=is_in_module(line, stack),
        )

    def title(self, match: Large) -> str:
        """Say how many they are."""
        number = len(match.rows)
        if match.of_line:
            return f"are {number} tensors that one line makes on its way to a result"
        title = f"are {number} tensors of one size" if number > 1 else "are one tensor"
        if not match.in_backward_of:
            return title
        return f"{title}, {'the first ' if number > 1 else ''}made in a backward pass"

    def advice(self, match: Large, case: Case) -> Iterator[Advice]:
        """Make it smaller, or not keep it; nothing where its line only moves or joins values."""
        number, nbytes = len(match.rows), format_bytes(match.nbytes)
        takes = f"{number} tensors of one size take" if number > 1 else "One tensor takes"
        it, its = ("they", "their") if number > 1 else ("it", "its")
        place = case.site if case.site is not None and _computes(case.site) else None
        activation = match.learns and (
            match.is_kept or case.finding.category == CATEGORY_NAMES[Category.ACTIVATION]
        )
        if activation:
            again = f"{its.title()} {nbytes} can be recomputed in the backward pass."
            yield Advice("checkpoint", again, case.site)
        elif match.by_module and not match.learns:
            fewer = f"{takes} {nbytes} for one batch, from which nothing learns."
            yield Advice("smaller_batch", fewer, case.site)
        best = best_of_rows(case.site) if case.site is not None and not match.by_module else ""
        if best and match.is_unlearned:
            why = (
                f"{takes} {nbytes} at once, of which nothing but `{best}` is read: go through the "
                "rows in parts, and keep what is found of each."
            )
            yield Advice("chunk", why, case.site)
        elif place is not None and match.of_line:
            why = f"This line works with {nbytes} at a time: give it parts of what it is given."
            yield Advice("chunk", why, place)
        elif place is not None and not (match.by_module or match.by_library or match.is_kept):
            why = f"{takes} {nbytes} at once; in parts {it} need not."
            yield Advice("chunk", why, place)
        if activation:
            half = f"In bfloat16 {its} {nbytes} are half."
            yield Advice("mixed_precision", half, case.site, remains=0.5)


def _of_line(window: Window, large: LargeTensor) -> tuple[Saving, Ints] | None:
    """What all else its line makes and drops would save, of whatever size, and what is there.

    A function of a library has tensors of several sizes at a time: without those of one size the
    others are the peak. None where a backward pass needs them, a module makes them, or they are no
    more than the tensor's own kin.
    """
    lives, row = window.lives, large.row
    made = ~window.has_owner & (window.site == window.site[row]) & (lives.alloc >= 0)
    made &= ~window.stays & (window.freed_in == window.made_in)
    there = np.flatnonzero(made & window.at_peak)
    if not len(there) or is_in_module(window.frame_of(row), window.stack(row)):
        return None
    if not _is_unlearned(window, there) or window.share(int(lives.size[there].sum())) < _MOSTLY:
        return None
    saving = window.replayed(window.whole(np.flatnonzero(made)))
    return (saving, there) if saving.bytes > _MOSTLY * lives.size[there].sum() else None


def _is_unlearned(window: Window, rows: Ints) -> bool:
    """Whether no backward pass runs as long as one of some lifetimes lasts."""
    backward = np.flatnonzero(window.phase_of_event == Phase.BACKWARD)
    begins = np.searchsorted(backward, window.lives.alloc[rows])
    ends = np.searchsorted(backward, window.lives.free[rows])
    return bool((begins == ends).all())


def _is_kept(window: Window, rows: Ints) -> bool:
    """Whether most of it waits for a backward pass: computed in parts, it would wait as well.

    What the pass itself makes on the way does not count.
    """
    rows = rows[window.phase[rows] != Phase.BACKWARD]
    size = window.lives.size[rows]
    waits = (window.category[rows] == Category.ACTIVATION) | (
        window.freed_by[rows] == Phase.BACKWARD
    )
    return 2 * int(size[waits].sum()) > int(size.sum())


def _by_library(stack: tuple[Frame, ...]) -> bool:
    kinds = (frame_kind(frame.filename) for frame in stack)
    own = (kind for kind in kinds if kind in {FrameKind.USER, FrameKind.LIBRARY})
    return next(own, FrameKind.USER) is FrameKind.LIBRARY


def _computes(place: Place) -> bool:
    """Whether a statement calls or multiplies something that makes new values.

    A copy, a joined tensor or a data set is not made in parts, nor is what a backward pass leaves.
    """
    if any(isinstance(n, ast.BinOp) for n in ast.walk(place.statement)):
        return True
    calls = (n for n in ast.walk(place.statement) if isinstance(n, ast.Call))
    return any(called_name(call) not in _MOVING for call in calls)


def _chain(window: Window, large: LargeTensor) -> tuple[int, Ints]:
    """What its stack makes; if the peak does not depend on that, the like of one function.

    A chain of operations, or a pass through several modules, has several of them at any moment.
    """
    row, alike = large.row, large.alike
    rows = made_on_its_line(window, row)
    if 2 * window.replayed(window.whole(rows)).bytes >= large.nbytes:
        return row, rows
    frames = window.owners.sites.frames
    numbers: dict[tuple[str, str], int] = {}
    of_site = [numbers.setdefault((f.filename, f.name), len(numbers)) for f in frames]
    function = np.array(of_site, dtype=np.int64)[window.site]
    passing = alike & ~(_by_modules(window) & (window.category == Category.ACTIVATION))
    there = passing & window.at_peak
    if not there.any():
        return row, rows
    main = int(np.bincount(function[there], weights=window.lives.size[there]).argmax())
    chain = np.flatnonzero(passing & (function == main) & (window.made_in >= 0))
    of_step = chain[window.made_in[chain] == window.made_in[row]]
    return int(of_step[0]) if len(of_step) else row, chain


def _by_modules(window: Window) -> Bools:
    """Per lifetime: whether a module that the user's line calls made it."""
    by_stack = np.zeros(len(window.trace.tables.stacks), dtype=bool)
    for stack in np.unique(window.lives.stack).tolist():
        by_stack[stack] = made_by_module(window, int(np.argmax(window.lives.stack == stack)))
    by_modules: Bools = by_stack[window.lives.stack]
    return by_modules


RULE = Largest()
