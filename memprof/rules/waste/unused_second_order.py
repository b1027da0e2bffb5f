"""unused-second-order: gradients keep the graph that made them, and none are taken through it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.unvisited_passes import keeps_graph
from memprof.source_code.idioms import arguments_named, keyword
from memprof.source_code.program import Place, Program, own_calls, place_of
from memprof.trace import EMPTY, Action, Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, that the graph has."""
_MOSTLY = 0.9
"""Of the bytes of a graph, after which it is gone."""
_HALF = 0.5
_ARGUMENT = "create_graph"
_SAME = 1.25
"""Times as many tensors in the last pass as in the first: more is a derivative of the one before,
whose graph grows with every pass through it."""


@dataclass(frozen=True, slots=True, eq=False)
class SecondOrder(Match):
    """The graph of some gradients, through which no backward pass goes."""

    called_at: Frame | None = None
    """The line of the program from which all of it came, where the function also serves others."""
    asked_by: Place | None = None
    """The statement that has the argument."""


class UnusedSecondOrder(WasteRule[SecondOrder]):
    """`create_graph=True` where no gradient of the gradient is taken."""

    name = "unused-second-order"
    summary = "gradients keep the graph that made them, and none are taken through it"
    fixes = ("no_create_graph",)

    def matches(self, window: Window) -> Iterator[SecondOrder]:
        """Of each way to such a call: what its passes make, and the activations before them.

        No backward pass frees any of it, and none comes of another line while it is there.
        """
        lives = window.lives
        stays = (
            (window.freed_by != Phase.BACKWARD) & ~window.has_owner & (lives.free < window.events)
        )
        made = (window.phase == Phase.BACKWARD) & (lives.stack != EMPTY)
        frames = {
            stack: tuple(window.user_frames(window.trace.stack(stack)))
            for stack in np.unique(lives.stack[stays]).tolist()
        }
        of_way: dict[tuple[Frame, ...], list[int]] = defaultdict(list)
        for row in np.flatnonzero(made & stays).tolist():
            of_way[frames[int(lives.stack[row])]].append(row)
        for way, of_pass in of_way.items():
            rows = np.array(of_pass, dtype=np.int64)
            if not window.at_peak[rows].any():
                continue
            asked = _asks_for_graph(window.programs, way[0]) if way else None
            if asked is None:
                continue
            graph = _graph_of(window, frames, way, stays)
            at_peak = np.flatnonzero(graph & window.at_peak)
            if window.share(int(lives.size[at_peak].sum())) < _LEAST_SHARE:
                continue
            if _is_gone_through(window, at_peak, way):
                continue
            cuts = [_ended_with_passes(window, _with_cut_off(window, graph), way)]
            # Of other callers that go through none either, it can be left out as well.
            for other, of_other in of_way.items():
                if other[:1] == way[:1] and other != way:
                    own = _graph_of(window, frames, other, stays)
                    of_step = _of_one_step(window, own, of_other)
                    if (
                        len(of_step)
                        and _are_left(window, of_step, other)
                        and not _is_gone_through(window, of_step, other)
                    ):
                        cuts.append(_ended_with_passes(window, _with_cut_off(window, own), other))
            alike = sum(one[:1] == way[:1] for one in _ways(window))
            yield SecondOrder(
                row=window.main_site(_mask(window, rows[window.at_peak[rows]])),
                rows=at_peak,
                nbytes=int(lives.size[at_peak].sum()),
                saving=window.replayed(Cuts.joined(*cuts)),
                called_at=way[1] if way[1:] and len(cuts) < alike else None,
                asked_by=asked,
            )

    def title(self, match: SecondOrder) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are."""
        return "are the graph of gradients, through which no backward pass goes"

    def advice(self, match: SecondOrder, case: Case) -> Iterator[Advice]:
        """Leave the graph out."""
        called = match.called_at
        at = match.asked_by
        place = case.place_at(at.program.filename, at.line) if at is not None else None
        when = f" where it is called from line {called.line}" if called is not None else ""
        yield Advice(
            "no_create_graph",
            f"`create_graph=True` keeps {format_bytes(match.nbytes)} for gradients of these "
            f"gradients, and none are taken{when}: leave it out there, and detach what the next "
            "pass begins with.",
            place or case.site,
        )


def _asks_for_graph(programs: Sequence[Program], frame: Frame) -> Place | None:
    """The statement by which a line asks for gradients that can be differentiated; None without.

    That is another one where the line hands on keyword arguments that it was given, ``**options``.
    """
    place = place_of(frame)
    calls = own_calls(place.statement, "grad", "backward") if place is not None else []
    values = [keyword(call, _ARGUMENT) for call in calls]
    if any(value is not None and _may_be_true(value) for value in values):
        return place
    if not any(one.arg is None for call in calls for one in call.keywords):
        return None
    given = (at for at, value in arguments_named(programs, _ARGUMENT) if _may_be_true(value))
    return next(given, None)


def _may_be_true(value: ast.expr) -> bool:
    return not isinstance(value, ast.Constant) or value.value is True


def _ways(window: Window) -> set[tuple[Frame, ...]]:
    """The lines of the program, innermost first, from which backward passes were run."""
    stacks = np.unique(window.lives.stack[window.phase == Phase.BACKWARD]).tolist()
    return {tuple(window.user_frames(window.trace.stack(stack))) for stack in stacks}


def _graph_of(
    window: Window, frames: dict[int, tuple[Frame, ...]], way: tuple[Frame, ...], stays: Bools
) -> Bools:
    """What passes of a way make, and the activations that its caller's function made before."""
    lives, depth = window.lives, len(way) - 1  # none at a script's own level
    within = [s for s, one in frames.items() if one[len(one) - depth :] == way[1:]]
    made = (window.phase == Phase.BACKWARD) & (lives.stack != EMPTY)
    made |= window.category == Category.ACTIVATION
    graph: Bools = np.isin(lives.stack, within) & made & stays
    return graph


def _with_cut_off(window: Window, graph: Bools) -> Ints:
    """The same with what is there at the window's end, in the middle of such passes."""
    lives = window.lives
    stacks = np.unique(lives.stack[graph])
    cut_off = ~window.has_owner & (lives.free >= window.events)
    cut_off &= np.isin(lives.stack, stacks[stacks != EMPTY])
    return np.flatnonzero(graph | cut_off)


def _of_one_step(window: Window, graph: Bools, of_pass: list[int]) -> Ints:
    """What of a graph one step made, of those in which such passes ran the last whole one."""
    steps = np.unique(window.made_in[of_pass])
    step = steps[-2] if len(steps) > 1 else steps[-1]
    return np.flatnonzero(graph & (window.made_in == step))


def _are_left(window: Window, rows: Ints, way: tuple[Frame, ...]) -> bool:
    """Whether these are most of the activations that the caller's function made in their steps.

    Else a backward pass has freed most: it went through the graph.
    """
    lives = window.lives
    steps = np.unique(window.made_in[rows])
    alike = np.isin(window.made_in, steps) & (window.category == Category.ACTIVATION)
    for stack in np.unique(lives.stack[alike]).tolist():
        frames = tuple(window.user_frames(window.trace.stack(stack)))
        if frames[len(frames) - len(way) + 1 :] != way[1:]:
            alike &= lives.stack != stack
    left = np.zeros(len(lives), dtype=bool)
    left[rows] = True
    return window.bytes_of(left & alike) >= _HALF * window.bytes_of(alike)


def _mask(window: Window, rows: Ints) -> Bools:
    mask = np.zeros(len(window.lives), dtype=bool)
    mask[rows] = True
    return mask


def _is_gone_through(window: Window, rows: Ints, way: tuple[Frame, ...]) -> bool:
    """Whether a backward pass may read some tensors, of which none has freed any.

    So it is where another line runs one that keeps graphs while they are there, or where each pass
    makes more than the one before. Until most of their bytes are gone: the gradients themselves may
    be kept.
    """
    in_order = rows[np.argsort(window.lives.free[rows])]
    sizes = np.cumsum(window.lives.size[in_order])
    mostly = int(np.searchsorted(sizes, _MOSTLY * sizes[-1]))
    first, last = int(window.lives.alloc[rows].min()), int(window.lives.free[in_order[mostly]])
    allocs, in_pass = _allocs(window, max(first, 0), last)
    stacks = np.unique(window.trace.events.stack[allocs[in_pass]]).tolist()
    ways = {stack: tuple(window.user_frames(window.trace.stack(stack))) for stack in stacks}
    others = {one for one in ways.values() if one != way}
    if any(not one or keeps_graph(one[0]) for one in others) or len(others) == len(ways):
        return True
    own = [stack for stack, one in ways.items() if one == way]
    begins, ends = _runs(in_pass & np.isin(window.trace.events.stack[allocs], own))
    counts = ends - begins + 1
    return int(counts[-1]) > _SAME * int(counts[0])


def _ended_with_passes(window: Window, rows: Ints, way: tuple[Frame, ...]) -> Cuts:
    """Each tensor gone as a backward pass that keeps no graph lets go of it.

    Of the pass of this way that made it, or comes after it: an activation goes when the pass is
    through with its module, what the pass makes when the next tensor is made, and the last of a
    module when the next one's are; with the pass where no such module shows.
    """
    allocs, in_pass = _allocs(window, 0, window.events)
    stacks = window.trace.events.stack[allocs]
    of_way = [
        stack
        for stack in np.unique(stacks[in_pass]).tolist()
        if tuple(window.user_frames(window.trace.stack(stack))) == way
    ]
    begins, ends = _runs(in_pass & np.isin(stacks, of_way))
    last_of_pass = np.append(allocs[ends], window.events)
    made_at = window.lives.alloc[rows]
    number = np.searchsorted(allocs[ends], made_at)
    until = last_of_pass[number]
    modules = _module_of_label(window)[window.trace.events.label[allocs]]
    for at in np.unique(number[number < len(ends)]).tolist():
        of_pass = np.flatnonzero(number == at)
        place = np.arange(begins[at], ends[at] + 1)
        last = place[np.append(np.diff(modules[place]) != 0, True)]  # of each module in a row
        for one in of_pass.tolist():
            row = rows[one]
            if made_at[one] >= allocs[begins[at]]:
                own = int(np.searchsorted(allocs[last], made_at[one]))
                if made_at[one] != allocs[last[own]]:
                    until[one] = allocs[np.searchsorted(allocs, made_at[one]) + 1]
                    continue
                own += 1
            else:
                there = np.flatnonzero(modules[last] == window.module[row])
                own = int(there[-1]) if len(there) else len(last)
            if own < len(last):
                until[one] = allocs[last[own]]
    return window.ended_at(rows, until)


def _module_of_label(window: Window) -> Ints:
    """Per label the number of its module among the window's."""
    number = {name: at for at, name in enumerate(window.owners.module.names)}
    labels = window.trace.tables.labels
    return np.array([number.get(label.module, -1) for label in labels], dtype=np.int64)


def _allocs(window: Window, first: int, last: int) -> tuple[Ints, Bools]:
    """Allocations with a stack among some events, and whether each is of a backward pass."""
    events = window.trace.events
    has_stack = (events.action[first:last] == Action.ALLOC) & (events.stack[first:last] != EMPTY)
    allocs = np.flatnonzero(has_stack) + first
    return allocs, window.phase_of_event[allocs] == Phase.BACKWARD


def _runs(mask: Bools) -> tuple[Ints, Ints]:
    """Where each stretch of a mask begins, and its last place."""
    edges = np.diff(mask.astype(np.int8), prepend=0, append=0)
    return np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1


RULE = UnusedSecondOrder()
