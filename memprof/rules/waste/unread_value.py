"""unread-value: a function that goes on has a variable which it reads no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.running_variables import still_running, variable_of
from memprof.source_code.last_reads import is_its_only_holder, last_read_before, reads_again
from memprof.source_code.logits_read import is_product, is_read_by_cross_entropy
from memprof.source_code.program import Place, place_of
from memprof.trace import Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, with all tensors of the variable, …"""
_LEAST_OF_STEP = 0.2
"""… or where the same step made them: few functions let go of each value once they have read it."""
_MOST_STACKS = 50
"""Stacks of the largest tensors in which a variable is looked for."""
_LINEAR = "/torch/nn/modules/linear.py"
_OF_GRAPHS = (Category.ACTIVATION, Category.GRADIENT)
"""What autograd keeps, whichever variable goes."""


@dataclass(frozen=True, slots=True)
class _Variable:
    """A variable of a function that runs at the peak."""

    name: str
    place: Place
    """The statement that binds it."""
    last_line: int
    """On which it is read last."""
    back: int
    """Place of the function's frame in a stack, counted from its outer end."""
    is_unsaved: bool = False
    """No graph keeps it: a product of matrices that a cross entropy alone reads."""


@dataclass(frozen=True, slots=True, eq=False)
class UnreadValue(Match):
    """What a variable keeps."""

    variable: _Variable | None = None


class UnreadVariable(WasteRule[UnreadValue]):
    """`features = encode(images)`, and the images stay while a head is trained on the features."""

    name = "unread-value"
    summary = "a function that goes on has a variable which it reads no more"
    fixes = ("del_ref",)
    yields_to = ("idle-copy", "loaded", "retained-graph", "joined", "lingering")

    def matches(self, window: Window) -> Iterator[UnreadValue]:
        """Each variable of the functions that run at the peak, with its tensors there."""
        if window.peak.event < 0:
            return
        at_peak = window.stack_at_peak
        lives = window.lives
        # What lay there as a backward pass began, and outlived it, is perhaps none of its graph's.
        outlives = (window.category == Category.ACTIVATION) & (window.freed_by != Phase.BACKWARD)
        mask = window.at_peak & ~window.has_owner
        mask &= ~np.isin(window.category, _OF_GRAPHS) | outlives
        total = np.bincount(lives.stack[mask], weights=lives.size[mask])
        stacks = np.argsort(-total, kind="stable")[:_MOST_STACKS]
        by_variable: dict[_Variable, list[int]] = {}
        for stack in stacks[total[stacks] > 0].tolist():
            variable = _variable(window, window.trace.stack(stack), at_peak)
            if variable is None:
                continue
            own = mask & (lives.stack == stack) & (variable.is_unsaved | ~outlives)
            if own.any():
                # What a statement made besides its value is kept by something else.
                by_variable.setdefault(variable, []).append(int(np.flatnonzero(own)[-1]))
        for variable, rows_of in by_variable.items():
            match = _match(window, variable, np.array(rows_of, dtype=np.int64))
            if match is not None:
                yield match

    def title(self, match: UnreadValue) -> str:
        """Say in which variable, and after which line."""
        assert match.variable is not None
        one = match.variable
        return f"stay in `{one.name}`, which nothing reads after line {one.last_line}"

    def advice(self, match: UnreadValue, case: Case) -> Iterator[Advice]:
        """Drop the variable after its last use."""
        assert match.variable is not None
        one = match.variable
        why = (
            f"`{one.name}` keeps {format_bytes(match.nbytes)} until the function returns: "
            f"`del {one.name}` after line {one.last_line}, where it is read last."
        )
        place = one.place.program.at(one.last_line)
        yield Advice("del_ref", why, place or case.site)


def _variable(window: Window, made_by: Sequence[Frame], now: Sequence[Frame]) -> _Variable | None:
    """The variable that keeps what a stack made, where its function runs on and reads it no more.

    Both stacks are innermost first.
    """
    back = still_running(made_by, now)
    if back is None:
        return None
    place, line_now = place_of(made_by[-back]), now[-back].line
    if place is None or line_now <= (place.statement.end_lineno or place.line):
        return None
    name = variable_of(place, made_by[:-back])
    if not name or reads_again(place, name, line_now):
        return None
    is_unsaved = _is_of_product(made_by) and is_read_by_cross_entropy(place, name)
    if not (is_unsaved or is_its_only_holder(window.programs, place, name)):
        return None
    return _Variable(name, place, last_read_before(place, name, line_now), back, is_unsaved)


def _is_of_product(made_by: Sequence[Frame]) -> bool:
    """Whether a stack made a product of matrices: in a linear layer, or by a statement of one."""
    if made_by[0].filename.replace("\\", "/").endswith(_LINEAR):
        return True
    place = place_of(made_by[0])
    return place is not None and is_product(place)


def _ends_of_graphs(window: Window, made: Ints, ends: Ints) -> Ints:
    """These events or, where a graph was built since a tensor was made, its backward pass's last.

    Until then the graph may keep the tensor, whichever variable goes.
    """
    backward = np.flatnonzero(window.phase_of_event == Phase.BACKWARD)
    last = np.full(int(window.step_of_event.max(initial=0)) + 2, -1, dtype=np.int64)
    np.maximum.at(last, window.step_of_event[backward], backward)
    saved = np.sort(window.lives.alloc[window.category == Category.ACTIVATION])
    has_graph = np.searchsorted(saved, made, side="right") < np.searchsorted(saved, ends)
    of_step = last[np.maximum(window.step_of_event[made], 0)]
    return np.where(has_graph, np.maximum(ends, of_step), ends)


def _match(window: Window, variable: _Variable, rows: Ints) -> UnreadValue | None:
    lives = window.lives
    alike = np.isin(lives.stack, lives.stack[rows]) & ~window.has_owner & (lives.alloc >= 0)
    if variable.is_unsaved:  # operands that autocast converts there are the graph's
        alike &= window.freed_by != Phase.BACKWARD
    every = np.flatnonzero(alike)
    made = lives.alloc[every]
    ends = _first_events_beyond(window, variable, made)
    if not variable.is_unsaved:
        ends = _ends_of_graphs(window, made, ends)
    rows = np.intersect1d(rows, every[ends < window.peak.event])
    nbytes = int(lives.size[rows].sum())
    of_step = (window.made_in[rows] == window.step_of_event[window.peak.event]).all()
    if window.share(nbytes) < (_LEAST_OF_STEP if of_step else _LEAST_SHARE):
        return None
    mask = np.zeros(len(lives), dtype=bool)
    mask[rows] = True
    return UnreadValue(
        row=window.main_site(mask),
        rows=rows,
        nbytes=nbytes,
        saving=window.replayed(window.ended_at(every, ends)),
        variable=variable,
    )


def _first_events_beyond(window: Window, variable: _Variable, made: Ints) -> Ints:
    """For each of these events the first later one that comes of a line below the last read."""
    own = (variable.place.program.filename, variable.last_line)
    stacks = window.trace.events.stack
    beyond = [
        number
        for number in np.unique(stacks).tolist()
        if _is_beyond(window.trace.stack(number), variable.back, own)
    ]
    events = np.append(np.flatnonzero(np.isin(stacks, beyond)), window.events)
    ends: Ints = events[np.searchsorted(events[:-1], made, side="right")]
    return ends


def _is_beyond(stack: Sequence[Frame], back: int, last_read: tuple[str, int]) -> bool:
    """Whether a stack's frame at a place is in a line of the same file below the last read."""
    if len(stack) < back:
        return False
    frame, (filename, line) = stack[-back], last_read
    return frame.filename == filename and frame.line > line


RULE = UnreadVariable()
