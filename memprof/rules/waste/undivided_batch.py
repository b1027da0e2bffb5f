"""undivided-batch: a library works on a whole batch at once, and has a switch to divide it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor
from memprof.rules.library_switch import Switch, switch_to_parts
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import Place, own_calls
from memprof.trace import Category, Frame
from memprof.units import format_bytes
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak, in what is made below the function, where no tensor is large."""
_LEAST_PARTS = 2
"""A batch of one is not divided, and how many it has is not recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class Undivided(Match):
    """The library's switch."""

    switch: Switch | None = None


class UndividedBatch(WasteRule[Undivided]):
    """`vae.decode(latents)` of a dozen images, without `vae.enable_slicing()`."""

    name = "undivided-batch"
    summary = "a library works on a whole batch at once, and has a switch to divide it"
    fixes = ("divide_batch",)

    def matches(self, window: Window) -> Iterator[Undivided]:
        """The largest tensor, from which nothing learns, made below a function with a switch.

        Or the largest of the step, where much of the peak was made below that function: a layer
        makes several, none of which is large.
        """
        large = large_tensor(window)
        row = large.row if large is not None else _largest_of_step(window)
        if row < 0 or window.learns_after(int(window.lives.alloc[row])):
            return
        frame, switch = _switch(window.stack(row))
        if frame is None or switch is None:
            return
        rows = np.flatnonzero(_made_below(window, frame) & (window.made_in >= 0))
        there = rows[window.at_peak[rows]]
        share = window.share(int(window.lives.size[there].sum()))
        if large is None and share < _LEAST_SHARE:
            return
        yield Undivided(
            row=row,
            rows=there,
            nbytes=int(window.lives.size[there].sum()),
            saving=window.replayed(window.whole(rows)),
            switch=switch,
        )

    def title(self, match: Undivided) -> str:
        """Name the function."""
        assert match.switch is not None
        return f"are made for a whole batch at once by `{match.switch.function}`"

    def advice(self, match: Undivided, case: Case) -> Iterator[Advice]:
        """Throw the switch."""
        switch = match.switch
        assert switch is not None
        receiver = _receiver(case.site, switch)
        how = f"{receiver}.{switch.method}()" if receiver else f"{switch.class_}.{switch.method}()"
        why = (
            f"`{how}` has `{switch.function}` work on the parts of a batch one after the other: "
            f"{format_bytes(match.nbytes)} are there for all of it."
        )
        yield Advice("divide_batch", why, case.site, remains=1 / _LEAST_PARTS)


def _largest_of_step(window: Window) -> int:
    """The largest lifetime at the peak that its step has made, and that is no input; else -1."""
    if window.peak.event < 0:
        return -1
    step = window.step_of_event[window.peak.event]
    mask = window.at_peak & ~window.has_owner & (window.made_in == step)
    mask &= (window.category != Category.INPUT) & (window.lives.alloc >= 0)
    return window.largest(mask) if mask.any() else -1


def _switch(stack: Sequence[Frame]) -> tuple[Frame | None, Switch | None]:
    """The outermost function of a library with a switch, below the program's innermost line."""
    below = takewhile(lambda frame: frame_kind(frame.filename) is not FrameKind.USER, stack)
    of_library = (frame for frame in below if frame_kind(frame.filename) is FrameKind.LIBRARY)
    switches = [(frame, switch_to_parts(frame)) for frame in of_library]
    return next((one for one in reversed(switches) if one[1] is not None), (None, None))


def _made_below(window: Window, caller: Frame) -> Bools:
    """Per lifetime: whether a statement of a function was running as it was made."""
    by_stack = np.zeros(len(window.trace.tables.stacks), dtype=bool)
    for stack in np.unique(window.lives.stack).tolist():
        frames = window.stack(int(np.argmax(window.lives.stack == stack)))
        by_stack[stack] = any(
            (one.filename, one.name) == (caller.filename, caller.name) for one in frames
        )
    made_below: Bools = by_stack[window.lives.stack]
    return made_below


def _receiver(place: Place | None, switch: Switch) -> str:
    """The object whose method the program calls, as it writes it; empty where another one does."""
    calls = own_calls(place.statement, switch.function) if place is not None else []
    receivers = [call.func.value for call in calls if isinstance(call.func, ast.Attribute)]
    return ast.unparse(receivers[0]) if receivers else ""


RULE = UndividedBatch()
