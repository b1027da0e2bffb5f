"""saved-unread: a function of the program's saves tensors that its backward pass never reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.saved_unread import SavedUnread, saved_unread
from memprof.trace import Phase
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak."""


@dataclass(frozen=True, slots=True, eq=False)
class Saved(Match):
    """The call that saves."""

    saved: SavedUnread | None = None


class SavedUnreadRule(WasteRule[Saved]):
    """`ctx.save_for_backward(x, y)` of a `torch.autograd.Function` whose backward reads `x`."""

    name = "saved-unread"
    summary = "tensors are saved for a backward pass that never reads them"
    fixes = ("save_less",)

    def matches(self, window: Window) -> Iterator[Saved]:
        """What such a call alone keeps until the backward pass, at the peak."""
        for program in window.programs:
            for found in saved_unread(program):
                rows = _kept(window, found)
                there = rows[window.at_peak[rows]]
                nbytes = int(window.lives.size[there].sum())
                if not len(there) or window.share(nbytes) < _LEAST_SHARE:
                    continue
                ends = _last_of_forward(window, rows)
                yield Saved(
                    row=int(there[window.lives.size[there].argmax()]),
                    rows=there,
                    nbytes=nbytes,
                    saving=window.replayed(window.ended_at(rows, ends)),
                    saved=found,
                )

    def title(self, match: Saved) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they wait for."""
        return "are saved for a backward pass that does not read them"

    def advice(self, match: Saved, case: Case) -> Iterator[Advice]:
        """Save the others alone."""
        found = match.saved
        assert found is not None
        names = " and ".join(f"`{name}`" for name in found.names)
        verb = "is" if len(found.names) == 1 else "are"
        yield Advice(
            "save_less",
            f"{names} {verb} saved and never read in `backward`: {format_bytes(match.nbytes)} wait "
            "for it. Save what it reads, and take only that from `ctx.saved_tensors`.",
            case.place_at(found.place.program.filename, found.place.line) or case.site,
            typed=found.typed,
        )


def _kept(window: Window, found: SavedUnread) -> Ints:
    """Lifetimes that the saving alone keeps: freed with what it saves, by the backward pass."""
    frames = window.owners.sites.frames
    filename = found.place.program.filename
    function = found.place.function
    assert function is not None
    own_lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    in_forward = np.array([f.filename == filename and f.line in own_lines for f in frames])
    lines = {line for bound in found.made.values() for line in bound}
    unread = np.array([f.filename == filename and f.line in lines for f in frames], dtype=bool)
    waits = ~window.has_owner & (window.freed_by == Phase.BACKWARD) & (window.lives.alloc >= 0)
    made = waits & unread[window.site]
    if found.given:
        made |= _given(window, waits & in_forward[window.site], waits)
    return np.flatnonzero(made)


def _given(window: Window, own: Bools, waits: Bools) -> Bools:
    """What was made before a call's own tensors, and is freed with them in one go: its inputs.

    What another operator has saved as well is freed when that has gone backward.
    """
    lives = window.lives
    moments = np.searchsorted(np.sort(lives.alloc), lives.free)
    first: dict[int, int] = {}
    for row in np.flatnonzero(own).tolist():
        moment = int(moments[row])
        first[moment] = min(first.get(moment, window.events), int(lives.alloc[row]))
    given = np.zeros(len(lives), dtype=bool)
    for row in np.flatnonzero(waits & ~own).tolist():
        given[row] = int(lives.alloc[row]) < first.get(int(moments[row]), -1)
    return given


def _last_of_forward(window: Window, rows: Ints) -> Ints:
    """Until when they are of use without it: the next allocation but one, which reads them."""
    allocs = np.sort(window.lives.alloc)
    at = np.searchsorted(allocs, window.lives.alloc[rows], side="right") + 1
    following = np.append(allocs, [window.events, window.events])
    ends: Ints = np.minimum(following[np.minimum(at, len(following) - 1)], window.lives.free[rows])
    return ends


RULE = SavedUnreadRule()
