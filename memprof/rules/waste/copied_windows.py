"""copied-windows: overlapping windows of a sequence are copied where a view would show them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.lasting_names import keeping_line
from memprof.source_code.program import place_of
from memprof.source_code.windows_copied import CopiedWindows, copied_windows
from memprof.trace import EMPTY, Frame
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak: a batch of windows is copied by every program."""
_LASTING = 3
"""Steps that a copy of a view is there, at least: no operand of a computation is."""
_FEWEST = 64
"""Windows that are kept, each as a tensor of its own."""
_OVERLAP = 2
"""Times as large as what they are windows of: each value is there twice."""


@dataclass(frozen=True, slots=True, eq=False)
class Windows(Match):
    """The sequence, and how much of it is to stay."""

    windows: CopiedWindows | None = None
    """None where the source shows no sequence, and operators were seen to copy a view of one."""
    remains: float = 0.0
    """Share of the bytes that the sequence itself may take, where it is gone by the peak."""


@dataclass(frozen=True, slots=True, eq=False)
class _Stacked:
    """What a stack made of windows."""

    row: int
    rows: Ints
    nbytes: int
    windows: CopiedWindows | None
    of: int
    """Bytes of the sequence, where that is gone by the peak."""


class CopiedWindowsRule(WasteRule[Windows]):
    """`torch.stack([series[i : i + n] for i in range(len(series) - n)])`."""

    name = "copied-windows"
    summary = "overlapping windows of a sequence are copied where a view would show them"
    fixes = ("unfold",)

    def matches(self, window: Window) -> Iterator[Windows]:
        """Tensors at the peak that a statement joins of windows, each value twice and more."""
        mask = window.at_peak & ~window.has_owner
        by_site: dict[int, list[_Stacked]] = {}
        for stack in np.unique(window.lives.stack[mask]).tolist():
            stacked = _stacked(window, np.flatnonzero(mask & (window.lives.stack == stack)))
            if stacked is not None:
                by_site.setdefault(int(window.site[stacked.row]), []).append(stacked)
        for calls in by_site.values():  # of a function for training and for tests, one finding
            calls.sort(key=lambda one: -one.nbytes)
            rows = np.concatenate([one.rows for one in calls])
            nbytes = sum(one.nbytes for one in calls)
            cut = rows
            windows = calls[0].windows
            if (
                windows is None or windows.is_computed
            ):  # what it was computed of on the way goes as well
                of_calls = np.isin(window.lives.stack, window.lives.stack[rows])
                cut = np.flatnonzero(of_calls & ~window.has_owner)
            yield Windows(
                row=calls[0].row,
                rows=rows,
                nbytes=nbytes,
                saving=window.replayed(window.whole(cut)),
                windows=windows,
                look_at=_keeping_line(window, calls[0].row) if windows is None else None,
                remains=min(1.0, sum(one.of for one in calls) / nbytes),
            )

    def title(self, match: Windows) -> str:
        """Say of what they are."""
        of = f" of `{match.windows.sequence}`" if match.windows is not None else ""
        return f"are overlapping windows{of}, copied side by side"

    def advice(self, match: Windows, case: Case) -> Iterator[Advice]:
        """Show them by a view, and copy what a batch needs."""
        if match.windows is None:
            why = (
                "`unfold(…)` takes no memory until something is computed of it, here "
                f"{format_bytes(match.nbytes)}: compute that of the sequence before, or of each "
                "batch."
            )
            yield Advice("unfold", why, case.site, remains=match.remains)
            return
        sequence = match.windows.sequence
        if match.windows.is_converted:
            sequence = f"torch.as_tensor({sequence})"  # an array, or a list
        why = (
            f"`{sequence}.unfold(0, size, step)` shows the same windows and takes no memory: index "
            f"it for each batch. {format_bytes(match.nbytes)} are copies."
        )
        if match.windows.is_each:
            why = (
                f"Each of {len(match.rows)} is a copy of a part of `{match.windows.sequence}`, and "
                "overlaps with the next: keep where each begins, and take the part when it is "
                f"asked for. {format_bytes(match.nbytes)} are copies."
            )
        if match.windows.is_view:
            why = (
                f"`{sequence}.unfold(…)` takes no memory until it is copied: keep it, and index it "
                f"for each batch. {format_bytes(match.nbytes)} are copies."
            )
        if match.windows.is_computed:
            why = (
                f"`{sequence}.unfold(…)` takes no memory until something is computed of it, here "
                f"{format_bytes(match.nbytes)}: compute that of `{sequence}` before, or of each "
                "batch."
            )
        yield Advice("unfold", why, case.site, remains=match.remains)


def _stacked(window: Window, rows: Ints) -> _Stacked | None:
    """What one stack made, if it is windows that hold each value twice and more."""
    row = int(rows[window.lives.size[rows].argmax()])
    is_bare = window.lives.stack[row] == EMPTY
    rows = rows[rows == row] if is_bare else rows  # without a stack no two are of one line
    nbytes = int(window.lives.size[rows].sum())
    place = place_of(window.frame_of(row)) if window.share(nbytes) >= _LEAST_SHARE else None
    windows = copied_windows(place) if place is not None else None
    if windows is None:
        return _seen_by_operators(window, row, rows) if place is not None else None
    if windows.is_each:  # a batch's are brief, and few
        are_kept = window.freed_in[rows] - window.made_in[rows] >= _LASTING
        are_many = len(rows) >= _FEWEST and bool(are_kept.all())
        return _Stacked(row, rows, nbytes, windows, 0) if are_many else None
    of = None if is_bare else _sequences(window, row, is_computed=windows.is_computed)
    overlaps = windows.is_overlapping or not (windows.is_converted or of is None)
    if not overlaps or 2 * window.lives.size[row] < nbytes:
        return None  # nothing says that each value is there twice, or no one tensor has it all
    is_brief = window.freed_in[row] - window.made_in[row] < _LASTING
    if (windows.is_view or windows.is_indexed) and is_brief:
        return None  # a step computes with them
    return _Stacked(row, rows, nbytes, windows, 0 if of is None else of)


def _seen_by_operators(window: Window, row: int, rows: Ints) -> _Stacked | None:
    """The same by what operators were given, of the largest tensor of a stack that stays."""
    key = int(window.lives.stack[row]), int(window.lives.requested[row])
    times = [
        times
        for record in window.overlap_copies
        for stack, size, times in zip(record.stack, record.size, record.times, strict=True)
        if (stack, size) == key
    ]
    nbytes = int(window.lives.size[rows].sum())
    is_brief = window.freed_in[row] - window.made_in[row] < _LASTING
    if not times or min(times) < _OVERLAP or is_brief or 2 * window.lives.size[row] < nbytes:
        return None
    return _Stacked(row, rows, nbytes, None, int(nbytes / min(times)))


def _keeping_line(window: Window, row: int) -> Frame | None:
    frame, _ = keeping_line(window.user_frames(window.stack(row)))
    return frame


def _sequences(window: Window, row: int, *, is_computed: bool) -> int | None:
    """Bytes of the largest tensor that may be the sequence and is gone by the peak; 0 without.

    None where a tensor was there as the windows were made that is too large to be in them twice.
    """
    lives = window.lives
    there = lives.alive_at(int(lives.alloc[row])) & ~window.has_owner
    there[row] = False
    if is_computed:  # what it is computed of on its line is as large
        there &= window.site != window.site[row]
    if (_OVERLAP * lives.size[there] > lives.size[row]).any():
        return None
    return int(lives.size[there & ~window.at_peak].max(initial=0))


RULE = CopiedWindowsRule()
