"""retry: a failed call is tried again while its exception still holds the first try's tensors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import FUNCTIONS, place_of
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class FailedTryTensors(Match):
    """Tensors of a failed try, and the handler in which it is tried again."""

    filename: str = ""
    line: int = 0
    """The line of ``except``."""


@dataclass(frozen=True, slots=True, eq=False)
class _Handling:
    """A frame that runs in an ``except`` block."""

    frame: Frame
    attempt: ast.Try
    handler: ast.ExceptHandler


class Retry(WasteRule[FailedTryTensors]):
    """The peak is inside an `except` block, beside what the `try` block has made."""

    name = "retry"
    summary = "a retry inside `except` runs beside the tensors of the failed try"
    fixes = ("move_out_of_except",)

    def matches(self, window: Window) -> Iterator[FailedTryTensors]:
        """Tensors that the `try` block made and that are there when the handler makes the peak."""
        if window.peak.event < 0:
            return
        now = window.stack_at_peak
        handling = _handling(now)
        if handling is None:
            return
        failed = [
            row
            for row in np.flatnonzero(window.at_peak & ~window.has_owner).tolist()
            if any(_is_in_body(frame, handling) for frame in window.stack(row))
        ]
        if not failed:
            return
        rows = np.array(failed, dtype=np.int64)
        # The same lines' tensors of all steps: each could go when its try has made the last.
        stacks = np.unique(window.lives.stack[rows])
        alike = np.flatnonzero(np.isin(window.lives.stack, stacks) & ~window.has_owner)
        mask = np.zeros(len(window.lives), dtype=bool)
        mask[rows] = True
        yield FailedTryTensors(
            row=window.main_site(mask),
            rows=rows,
            nbytes=window.bytes_of(mask),
            saving=window.replayed(window.ended_at(alike, _last_of_try(window, alike))),
            filename=handling.frame.filename,
            line=handling.handler.lineno,
        )

    def title(self, match: FailedTryTensors) -> str:  # noqa: ARG002 - every match reads the same
        """Say what holds them."""
        return "belong to the failed try, whose exception is still being handled"

    def advice(self, match: FailedTryTensors, case: Case) -> Iterator[Advice]:
        """Leave the handler before trying again."""
        why = (
            f"The retry runs while the exception still holds {format_bytes(match.nbytes)} of the "
            "failed try: set a flag in the handler and retry after it."
        )
        place = case.place_at(match.filename, match.line)
        yield Advice("move_out_of_except", why, place, match.line)


def _handling(stack: tuple[Frame, ...]) -> _Handling | None:
    """The innermost frame of a stack that runs inside an ``except`` block."""
    for frame in stack:
        place = place_of(frame)
        if place is None:
            continue
        handler = None
        for node in reversed(place.around):
            if isinstance(node, FUNCTIONS):
                break
            if isinstance(node, ast.ExceptHandler):
                handler = node
            if isinstance(node, ast.Try) and handler is not None and handler in node.handlers:
                return _Handling(frame, node, handler)
    return None


def _is_in_body(frame: Frame, handling: _Handling) -> bool:
    """Whether a frame is of the same function, at a line of the ``try`` block."""
    if (frame.filename, frame.name) != (handling.frame.filename, handling.frame.name):
        return False
    body = handling.attempt.body
    return body[0].lineno <= frame.line <= (body[-1].end_lineno or body[-1].lineno)


def _last_of_try(window: Window, rows: Ints) -> Ints:
    """Per row, the last event at which its own try made one of those rows.

    A step may try several times, as each block of a model does: what a try made is given back when
    its exception is, before the next one begins.
    """
    lives = window.lives
    made = rows[np.argsort(lives.alloc[rows])]
    steps = window.made_in[made]
    last = []
    for row in rows.tolist():
        own = lives.alloc[made[steps == window.made_in[row]]]
        before_its_end = max(1, int(np.searchsorted(own, lives.free[row])))
        last.append(int(own[before_its_end - 1]))
    return np.array(last, dtype=np.int64)


RULE = Retry()
