"""positions-cut: logits of every position are computed, and values of the last ones are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.positions_read import PositionsRead, positions_read
from memprof.trace import Phase
from memprof.units import format_bytes, format_percent
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, that the result of one call has."""
_OF_LINEAR = "/torch/nn/modules/linear.py"
_MOST_TIMES = 64
"""Positions for each that is read: values of other shapes are no such values."""
_NUMBER_BYTES = 8
"""Of a single number, as a loss function makes one beside what it returns."""
_ABOUT = 0.02
"""By which a gradient may be smaller: of logits that were shifted it has a position less."""
_OF_RESULT = 1 / 64
"""Of the result: what is computed of it for a row of the batch is so large at least."""


@dataclass(frozen=True, slots=True, eq=False)
class PositionsCut(Match):
    """What is read, and the share of the positions that this is."""

    read: PositionsRead | None = None
    share: float = 0.0


class CutPositions(WasteRule[PositionsCut]):
    """`per_token_logps(model, ids)[:, -completion:]`: the prompt's logits are made for nothing."""

    name = "positions-cut"
    summary = "logits of every position are computed, and values of the last ones are read"
    fixes = ("narrow_first",)
    yields_to = ("partly-read",)

    def matches(self, window: Window) -> Iterator[PositionsCut]:
        """Results of a layer in the step of the peak, of which the first positions are cut off."""
        if window.peak.event < 0:
            return
        lives = window.lives
        large = (window.made_in == window.step_of_event[window.peak.event]) & ~window.has_owner
        large &= (window.phase == Phase.FORWARD) & (lives.size >= _LEAST_SHARE * window.peak.bytes)
        for row in np.flatnonzero(large).tolist():
            stack = window.stack(row)
            if not stack or _OF_LINEAR not in stack[0].filename.replace("\\", "/"):
                continue
            read = positions_read(stack)
            share = _share(window, read, row) if read is not None else 0.0
            if read is None or not 0 < share < 1:
                continue
            rows = _computed_for_all(window, read, row)
            gone = (lives.size[rows] * (1 - share)).astype(np.int64)
            there = rows[window.at_peak[rows]]
            if not len(there):
                continue
            yield PositionsCut(
                row=row,
                rows=there,
                nbytes=int(lives.size[there].sum()),
                saving=window.replayed(replace(window.whole(rows), bytes=gone)),
                read=read,
                share=share,
            )
            return

    def title(self, match: PositionsCut) -> str:
        """Say how many of the positions are read."""
        return (
            "are computed for all positions, and values of "
            f"{format_percent(match.share, 1)} of them are read"
        )

    def advice(self, match: PositionsCut, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the match says all
        """Have the model compute the others."""
        read = match.read
        assert read is not None
        name = read.place.program.filename.replace("\\", "/").rpartition("/")[2]
        size = format_bytes(match.nbytes)
        why = (
            f"Only `{read.text}` is read ({name}:{read.place.line}), and {size} are logits of all "
            "positions and what is computed of them: have the model compute those positions alone "
            f"(`{read.switch}`), and take the tokens that go with them."
        )
        yield Advice("narrow_first", why, read.asking, typed=f"model(…, {read.switch}=…)")


def _through(window: Window, read: PositionsRead) -> Bools:
    """Which lifetimes the function made that takes a value of each position, or what it calls."""
    function = read.computing
    lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    tables = window.trace.tables
    inside = {
        number
        for number, frame in enumerate(tables.frames)
        if frame.filename == read.asking.program.filename and frame.line in lines
    }
    of_stack = np.array([not inside.isdisjoint(stack) for stack in tables.stacks])
    through: Bools = of_stack[window.lives.stack]
    return through


def _beside_model(window: Window, row: int) -> Bools:
    """Which lifetimes no module of the model made: the program itself, or the module of a loss."""
    roots = np.array([name.partition(".")[0] for name in window.owners.module.names])
    own = window.module[row]
    beside: Bools = window.module == 0
    return beside | (roots[window.module] != roots[own]) if own else beside


def _share(window: Window, read: PositionsRead, row: int) -> float:
    """The share of the positions that are read; 0 where no tensors show it.

    The last thing that the function makes has a value for each position. What lines of the program
    compute next of those that are read is smaller by that share.
    """
    lives = window.lives
    own = (window.made_in == window.made_in[row]) & (window.phase != Phase.BACKWARD)
    own &= _beside_model(window, row) & (lives.alloc > lives.alloc[row])
    through = np.flatnonzero(own & _through(window, read) & (lives.requested > _NUMBER_BYTES))
    if not len(through):
        return 0.0
    last = through[lives.alloc[through].argmax()]
    whole = int(lives.requested[last])
    smaller = own & (lives.alloc > lives.alloc[last]) & (lives.requested < whole)
    smaller &= lives.requested * _MOST_TIMES >= whole
    rows = np.flatnonzero(smaller)
    for behind in rows[np.argsort(lives.alloc[rows])].tolist():
        stack = window.stack(behind)
        if stack and frame_kind(stack[0].filename) is FrameKind.USER:
            return float(lives.requested[behind]) / whole
    return _share_in_backward(window, row, int(lives.alloc[last]), whole)


def _share_in_backward(window: Window, row: int, last: int, whole: int) -> float:
    """The same by the first gradient, which a loss has that is the mean of what is read."""
    lives = window.lives
    behind = (window.made_in == window.made_in[row]) & (window.phase == Phase.BACKWARD)
    behind &= (lives.alloc > last) & (lives.requested > _NUMBER_BYTES)
    rows = np.flatnonzero(behind)
    first = int(lives.requested[rows[lives.alloc[rows].argmin()]]) if len(rows) else whole
    return first / whole if first < whole <= first * _MOST_TIMES else 0.0


def _computed_for_all(window: Window, read: PositionsRead, row: int) -> Ints:
    """Results of the layer, what the function computes of them, and gradients about as large."""
    lives = window.lives
    least = _OF_RESULT * int(lives.requested[row])
    is_large = (lives.requested >= least) & ~window.has_owner
    results = is_large & (lives.stack == lives.stack[row])
    if window.module[row]:  # by whichever lines the same layer was come to
        results |= (
            is_large & (window.module == window.module[row]) & (window.phase == Phase.FORWARD)
        )
    computed = is_large & _through(window, read) & _beside_model(window, row)
    sizes = np.unique(lives.requested[results | computed]).astype(np.float64)
    gradients = np.flatnonzero(is_large & (window.phase == Phase.BACKWARD))
    apart = np.abs(lives.requested[gradients][:, None] / sizes - 1).min(axis=1, initial=np.inf)
    rows: Ints = np.union1d(np.flatnonzero(results | computed), gradients[apart <= _ABOUT])
    return rows


RULE = CutPositions()
