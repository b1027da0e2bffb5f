"""retained-graph: activations stay after the step's last backward pass, until the next step."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.graph_lines import retaining
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.unvisited_passes import unlearned_models, unvisited_passes
from memprof.source_code.idioms import read_by_itself
from memprof.source_code.program import Place, bound_names, calls_in, loaded_names, place_of
from memprof.source_code.retained_graphs import asks_to_retain, retain_argument
from memprof.source_code.values import values_of
from memprof.source_code.verbs import CUTTING
from memprof.trace import EMPTY, Action, Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.peak_without import Saving
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE", "advice_within"]

_PART = 0.05
"""Of the bytes, that a module has which takes part in the graph that stays."""
_LEAST_MODULES = 3
"""Modules whose activations stay: fewer are a result that is kept, and no graph."""
_RETAINING = "retain_graph"
_GOING_BACKWARD = ("backward", "grad", "manual_backward")
_LEAST_TENSORS = 3
"""Of fewer modules, which call functions: what each step keeps of them."""
_MOST_FREED = 0.1
"""Of what such modules saved in these steps, that a backward pass frees: it keeps the graph."""


@dataclass(frozen=True, slots=True, eq=False)
class Retained(Match):
    """Graphs that backward passes went through and did not free."""

    called_at: Frame | None = None
    """The user's line that ran the last of these passes; None where no stack of them has one."""
    is_within_step: bool = False
    """They stay through passes that follow in the same step."""
    made_before: frozenset[Frame] = frozenset()
    """The user's frames on the way to activations that a later backward pass goes through."""
    is_done: bool = False
    """No later backward pass goes through what the passes of `called_at` went through."""
    of_line_bytes: int = 0
    """Bytes at the peak that the passes of `called_at` left there."""
    of_line: Saving | None = None
    """What is saved where these passes alone free their graphs."""


class RetainedGraph(WasteRule[Retained]):
    """`retain_graph=True`, or an output with its graph, keeps a graph that was gone through."""

    name = "retained-graph"
    summary = "activations outlive the backward pass that needed them"
    fixes = ("no_retain_graph", "del_ref", "detach")
    yields_to = ("unused-second-order",)
    names_holders = True

    def matches(self, window: Window) -> Iterator[Retained]:
        """Activations that outlive the step's last backward pass, to be freed in the next step."""
        lives = window.lives
        ends = {step: int(events[-1]) for step, events in _by_step(window, Phase.BACKWARD)}
        activation = np.flatnonzero(
            (window.category == Category.ACTIVATION) & (window.made_in >= 0)
        )
        for unread in (unvisited_passes(window), unlearned_models(window)):
            activation = np.setdiff1d(activation, unread)
        last = np.array([ends.get(int(s), -1) for s in window.made_in[activation]], dtype=np.int64)
        over = (last >= 0) & (lives.free[activation] > last)
        over &= _until_replaced(window, activation)
        own = _own_backward(window, activation)
        through = (own >= 0) & _stays_through_passes(window, activation, own)
        rows, at = activation[over | through], np.where(through, own, last)[over | through]
        modules = window.module[rows]
        is_whole = _is_whole(window, rows)
        if len(set(modules.tolist()) - {0}) < _LEAST_MODULES and not is_whole:
            return
        sizes = lives.size[activation]
        is_within = 2 * int(sizes[through].sum()) > int(sizes[over | through].sum())
        saving = window.replayed(window.ended_at(rows, at))
        mask = np.zeros(len(window.lives), dtype=bool)
        mask[rows] = True
        if not is_whole and _is_carried(window, rows, window.main_site(mask)):
            return
        until = np.unique(at)
        called_at = _called_at(window, until)
        own_ends = _ends_of(window, until, called_at)
        of_line = np.isin(at, own_ends)
        yield Retained(
            row=window.main_site(mask),
            rows=rows,
            nbytes=window.bytes_of(mask & window.at_peak) or saving.bytes,
            saving=saving,
            called_at=called_at,
            is_within_step=is_within,
            made_before=_made_before(window, activation, through, own),
            is_done=is_within and _is_done(window, activation, own_ends),
            of_line_bytes=int(lives.size[rows[of_line & window.at_peak[rows]]].sum()),
            of_line=window.replayed(window.ended_at(rows[of_line], at[of_line])),
        )

    def title(self, match: Retained) -> str:
        """Say how long they stay."""
        if match.is_within_step:
            return "are activations that stay after their backward pass, beside the passes after it"
        return (
            "are activations that stay after the backward pass, until the next step replaces them"
        )

    def advice(self, match: Retained, case: Case) -> Iterator[Advice]:
        """Let the backward pass free the graph, else drop what holds it."""
        frame = match.called_at
        calling = case.place_at(frame.filename, frame.line) if frame is not None else None
        requests = list(retaining(case, *([calling] if calling is not None else [])))
        nbytes = format_bytes(match.nbytes)
        if match.is_within_step and calling is not None:
            within = [place for _, place in case.frames if place.scope is calling.scope][:1]
            carried = [one for place in within for one in _advice_on_carried(place, calling)]
            if carried:  # each backward pass needs the graphs of all rounds until that is done
                yield from carried
                requests = []
            elif not match.made_before:  # no later pass goes through any of it
                yield from requests
                requests = []
            elif match.is_done and _asks(calling):
                yield Advice(
                    "no_retain_graph",
                    f"No later pass goes through what the backward pass of line "
                    f"{calling.statement.lineno} has gone through: leave out `retain_graph=True` "
                    "there.",
                    calling,
                    saving=match.of_line,
                )
                requests = []  # the others' graphs may be gone through again
            for place in within:
                own = format_bytes(match.of_line_bytes) if match.of_line_bytes else nbytes
                yield from advice_within(
                    place, [place, *_within(match, case, calling)], calling, own, match
                )
        why = f"{nbytes} of activations outlive the backward pass, held by the loss or the output."
        dropped = Advice("del_ref", why, case.site)
        if not match.is_within_step and calling is not None and _is_of_losses(calling, case):
            what_to_do = (
                "retain it only while another round follows (`retain_graph=i < len(losses) - 1`, "
                "of an `enumerate`)"
                if _reads_each(calling)
                else "add the losses up, and call `backward()` once, without `retain_graph`"
            )
            yield Advice(
                "no_retain_graph",
                "Each round of the loop goes backward through a graph that was made before it, and "
                f"the last leaves it whole: {what_to_do}.",
                calling,
            )
            requests = []
        # Where a loop goes through the graph again, it is to be dropped, not to be freed.
        yield from (
            [*requests, dropped] if any(one.patch for one in requests) else [dropped, *requests]
        )


def _is_whole(window: Window, rows: Ints) -> bool:
    """Whether graphs of few modules stay whole, and a backward pass is asked to leave them so."""
    rows = rows[window.module[rows] > 0]
    steps = np.unique(window.made_in[rows])
    if len(rows) < _LEAST_TENSORS * max(1, len(steps)):
        return False
    saved = (window.category == Category.ACTIVATION) & (window.module > 0)
    saved &= np.isin(window.made_in, steps)
    freed = saved & (window.freed_by == Phase.BACKWARD)
    if window.bytes_of(freed) > _MOST_FREED * window.bytes_of(saved):
        return False
    return any(
        asks_to_retain(call, window.programs)
        for program in window.programs
        for call in calls_in(program.tree, *_GOING_BACKWARD)
    )


def _is_carried(window: Window, rows: Ints, row: int) -> bool:
    """Whether it is mostly what one module makes, and the next turn of a loop is given.

    ``logits, memory = model(x, memory)``: what the graph saved is a result besides.
    """
    sizes = np.bincount(window.module[rows], weights=window.lives.size[rows])
    sizes[0] = 0
    if int((sizes >= _PART * sizes.sum()).sum()) >= _LEAST_MODULES:
        return False
    places = map(place_of, window.user_frames(window.stack(row)))
    return any(
        place is not None and place.loop is not None and any(read_by_itself(place))
        for place in places
    )


def _asks(calling: Place) -> bool:
    """Whether a statement goes backward and retains the graph."""
    calls = calls_in(calling.statement, *_GOING_BACKWARD)
    return any(retain_argument(call) is not None for call in calls)


def _is_of_losses(calling: Place, case: Case) -> bool:
    """Whether a loop goes backward from what it goes over, through graphs made before the loop.

    Or made in no statement of the function around it, which is given the losses.
    """
    loop = calling.loop
    if not isinstance(loop, (ast.For, ast.AsyncFor)) or not _asks(calling):
        return False
    turns = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    made_at = [place.line for _, place in case.frames if place.scope is calling.scope]
    is_before = all(line < loop.lineno for line in made_at)
    return is_before and bool(turns & loaded_names(calling.statement))


def _reads_each(calling: Place) -> bool:
    """Whether a loop around a backward pass reads the gradients of each round."""
    if calls_in(calling.statement, "grad"):
        return True
    loop = calling.loop
    return loop is not None and any(
        isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Load)
        for node in ast.walk(loop)
    )


def _ends_of(window: Window, ends: Ints, line: Frame | None) -> Ints:
    """Those ends of backward passes that are of a line's."""
    own = [_called_at(window, ends[at : at + 1]) == line for at in range(len(ends))]
    return ends[np.array(own, dtype=np.bool_)]


def _is_done(window: Window, activation: Ints, ends: Ints) -> bool:
    """Whether no later backward pass frees what some passes, by their ends, went through.

    By the modules that each such pass went to: what was made before it in these, or in none.
    """
    lives, phases = window.lives, window.phase_of_event
    allocs = np.flatnonzero(window.trace.events.action == Action.ALLOC)
    forward = allocs[phases[allocs] == Phase.FORWARD]
    in_backward = (window.phase == Phase.BACKWARD) & (window.module > 0)
    for end in ends.tolist():
        at = np.searchsorted(forward, end)
        begin = int(forward[at - 1]) if at else 0
        visited = in_backward & (lives.alloc > begin) & (lives.alloc <= end)
        # What no module made may be on the way of either pass.
        reached = np.append(np.unique(window.module[visited]), 0)
        needed = np.isin(window.module[activation], reached)
        needed &= (lives.alloc[activation] <= begin) & (lives.free[activation] > end)
        if (needed & (window.freed_by[activation] == Phase.BACKWARD)).any():
            return False
    return bool(len(ends))


def _own_backward(window: Window, rows: Ints) -> Ints:
    """The last event of the first backward pass after each was made, if that went to its module.

    -1 where it went elsewhere, or none followed. One pass ends where a forward pass begins.
    """
    events = window.trace.events
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    phases = window.phase_of_event[allocs]
    computing = allocs[(phases == Phase.BACKWARD) | (phases == Phase.FORWARD)]
    is_backward = (window.phase_of_event[computing] == Phase.BACKWARD).astype(np.int8)
    change = np.diff(np.concatenate([[0], is_backward, [0]]))
    first, last = (
        computing[np.flatnonzero(change == 1)],
        computing[np.flatnonzero(change == -1) - 1],
    )
    ends = np.full(len(rows), -1, dtype=np.int64)
    if not len(first):
        return ends
    at = np.searchsorted(first, window.lives.alloc[rows])
    lives, module = window.lives, window.module
    by_backward = np.flatnonzero(
        (window.phase == Phase.BACKWARD) & (module > 0) & (lives.alloc >= 0)
    )
    number = np.searchsorted(first, lives.alloc[by_backward], side="right") - 1
    names = max(int(module.max()), 1) + 1
    visited = np.unique(number * names + module[by_backward])
    is_visited = (at < len(first)) & np.isin(at * names + module[rows], visited)
    ends[is_visited] = last[at[is_visited]]
    return ends


def _stays_through_passes(window: Window, rows: Ints, own: Ints) -> Bools:
    """Whether each is there when a forward pass follows ``own``, and no backward pass frees it."""
    allocs = np.flatnonzero(window.trace.events.action == Action.ALLOC)
    forward = allocs[window.phase_of_event[allocs] == Phase.FORWARD]
    following = np.append(forward, window.events)[np.searchsorted(forward, own, side="right")]
    free = window.lives.free[rows]
    same_step = window.step_of_event[np.minimum(following, window.events - 1)]
    stays = (free > following) & (free < window.events) & (window.freed_by[rows] != Phase.BACKWARD)
    through: Bools = stays & (same_step == window.made_in[rows])
    return through


def _made_before(window: Window, activation: Ints, through: Bools, own: Ints) -> frozenset[Frame]:
    """The user's frames of what was made before what stays ``through`` passes, and is needed later.

    A backward pass after their ``own`` frees it: so that one goes through it as well.
    """
    lives, rows, at = window.lives, activation[through], own[through]
    steps = window.made_in[rows]
    begins = {int(step): int(lives.alloc[rows[steps == step]].min()) for step in np.unique(steps)}
    ends = {int(step): int(at[steps == step].max()) for step in np.unique(steps)}
    made_in = window.made_in[activation]
    begin = np.array([begins.get(int(step), -1) for step in made_in], dtype=np.int64)
    end = np.array([ends.get(int(step), window.events) for step in made_in], dtype=np.int64)
    needed = (lives.alloc[activation] < begin) & (lives.free[activation] > end)
    needed &= window.freed_by[activation] == Phase.BACKWARD
    stacks = np.unique(lives.stack[activation[needed]]).tolist()
    return frozenset(
        frame for stack in stacks for frame in window.user_frames(window.trace.stack(stack))
    )


def _advice_on_carried(site: Place, calling: Place) -> Iterator[Advice]:
    """Cut off what a pass hands to that of the next round, as truncated backpropagation does.

    Without that each backward pass goes through all rounds before, which is why the graph is kept.
    """
    bound = {one.id for one in bound_names(site.statement) if isinstance(one, ast.Name)}
    carried = sorted(bound & loaded_names(site.statement))
    asks = any(retain_argument(call) is not None for call in calls_in(calling.statement))
    if site.loop is None or site.loop is not calling.loop or not (carried and asks):
        return
    name, line = carried[0], calling.statement.lineno
    yield Advice(
        "detach",
        f"Each pass goes on from the `{name}` of the round before, so that the backward pass of "
        f"line {line} goes through all rounds again: hand over `{name}.detach()` (of a tuple each "
        "part), and drop `retain_graph=True`.",
        site,
        typed=f"{name}.detach()",
    )


def _within(match: Retained, case: Case, calling: Place) -> Iterator[Place]:
    """Statements in the function of a backward pass that made some of what stays after it."""
    window = case.window
    if window is None:
        return
    stacks = np.unique(window.lives.stack[match.rows]).tolist()
    frames = {frame for stack in stacks for frame in window.user_frames(window.trace.stack(stack))}
    for frame in sorted(frames, key=lambda one: one.line):
        place = case.place_at(frame.filename, frame.line)
        if place is not None and place.scope is calling.scope:
            yield place


def advice_within(
    site: Place, sites: Sequence[Place], calling: Place, nbytes: str, match: Retained
) -> Iterator[Advice]:
    """Detach what a later pass goes through as well, and let go of what holds the graph.

    The first only where gradients that such a pass adds are cleared before the last one. Of several
    ``sites`` that made what stays it is where something is handed over that later passes need.
    """
    of_graphs = _bound_by(site, match.made_before) & _read_below(calling)
    handing = next((one for one in sites if loaded_names(one.statement) & of_graphs), site)
    shared = sorted(loaded_names(handing.statement) & of_graphs)
    line = calling.statement.lineno
    own = [one for one in sites if site.line <= one.line <= calling.line]
    read_by = [one.statement for one in own] + [
        at.statement
        for loss in _losses(calling)
        for value in values_of(calling, loss)
        if value is not None and (at := calling.program.place(value)) is not None
    ]
    is_cut = all(_is_cut_off(one, name) for one in read_by for name in of_graphs)
    if shared and is_cut and not _are_gone_through_below(own, calling):
        yield _let_it_go(calling, shared[0], handing)
        shared = []
    detach = [
        Advice(
            "detach",
            f"{nbytes} of activations stay after the backward pass of line {line}, which keeps "
            f"them as `{name}` is gone through again later: hand over `{name}.detach()` here where "
            "this pass need not reach what made it, and drop `retain_graph=True`.",
            handing,
            typed=f"{name}.detach()",
        )
        for name in shared[:1]
    ]
    names = [one.id for one in bound_names(site.statement) if isinstance(one, ast.Name)]
    let_go = [
        Advice(
            "del_ref",
            f"`{name}` keeps {nbytes} of activations after the backward pass of line {line}: "
            f"{_way_to_drop(name, calling)}.",
            calling,
            saving=match.of_line,
        )
        for name in names[:1]
    ]
    yield from [*detach, *let_go] if _clears_later(calling) else [*let_go, *detach]


def _losses(calling: Place) -> list[str]:
    """The variables from which a statement goes backward."""
    return [
        call.func.value.id
        for call in calls_in(calling.statement, "backward")
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
    ]


def _let_it_go(calling: Place, name: str, handing: Place) -> Advice:
    """To keep no graph that nothing needs: what a later pass goes through as well has none here."""
    why = (
        f"Nothing goes through this graph again: `{name}` is handed over without its own in line "
        f"{handing.line}. Leave `{_RETAINING}=True` out."
    )
    return Advice("no_retain_graph", why, calling)


def _are_gone_through_below(sites: Sequence[Place], calling: Place) -> bool:
    """Whether what some statements bind is read with its graph below a backward pass.

    As features of what is real, which a later loss compares with: such a pass needs the graph.
    """
    scope, end = calling.scope, calling.statement.end_lineno or calling.line
    names = {name for one in sites for name in map(ast.unparse, bound_names(one.statement))}
    below = [
        node
        for node in ast.walk(scope)
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)) and node.lineno > end
    ]
    for name in names | {*_losses(calling)}:
        anew = [one.lineno for one in below if name in map(ast.unparse, bound_names(one))]
        reading = [one for one in below if one.lineno <= min(anew, default=one.lineno)]
        if not all(_is_cut_off(one, name) for one in reading):
            return True
    return False


def _is_cut_off(statement: ast.stmt, name: str) -> bool:
    """Whether a statement reads a name only without its graph: ``recon.detach()``."""
    reads = [
        one
        for one in ast.walk(statement)
        if isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load)
    ]
    cut = [
        call.func.value
        for call in calls_in(statement, *CUTTING)
        if isinstance(call.func, ast.Attribute)
    ]
    return all(any(one is value for value in cut) for one in reads)


def _way_to_drop(name: str, calling: Place) -> str:
    """What to do with a variable that keeps a graph, and with the loss that keeps it, too."""
    losses = _losses(calling)
    if name in losses:
        return f"take its number there (`{name} = {name}.item()`), or `del {name}`"
    made_of = [
        one
        for loss in losses
        for value in values_of(calling, loss)
        if value is not None
        for one in sorted(loaded_names(value))
        if any(isinstance(part, ast.Call) for part in values_of(calling, one))
    ]
    return f"`del {', '.join(dict.fromkeys([name, *made_of, *losses]))}` there"


def _read_below(calling: Place) -> set[str]:
    """Names that statements below the one of a backward pass hand to a call."""
    end = calling.statement.end_lineno or calling.statement.lineno
    return {
        name
        for call in calls_in(calling.scope)
        if call.lineno > end
        for argument in call.args
        for name in loaded_names(argument)
    }


def _bound_by(site: Place, frames: frozenset[Frame]) -> set[str]:
    """Names that statements of the function around ``site`` bind, which lie on some frames."""
    filename = site.program.filename
    lines = {frame.line for frame in frames if frame.filename == filename}
    return {
        target.id
        for node in ast.walk(site.scope)
        if isinstance(node, ast.Assign)
        and not lines.isdisjoint(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        for target in bound_names(node)
        if isinstance(target, ast.Name)
    }


def _clears_later(calling: Place) -> bool:
    """Whether gradients are cleared between the backward pass and the function's last one."""
    line = calling.statement.lineno
    last = max((call.lineno for call in calls_in(calling.scope, "backward")), default=line)
    cleared = (call.lineno for call in calls_in(calling.scope, "zero_grad"))
    return any(line < at < last for at in cleared)


def _until_replaced(window: Window, rows: Ints) -> Bools:
    """Whether each is freed in the next step; or, where a step ends early, before one more begins.

    What a program does after its optimizer has stepped is often the next step's.
    """
    forward = {step: int(events[0]) for step, events in _by_step(window, Phase.FORWARD)}
    made_in, freed_in, free = (
        column[rows] for column in (window.made_in, window.freed_in, window.lives.free)
    )
    last = window.events
    again = np.array([forward.get(int(step) + 2, last) for step in made_in], dtype=np.int64)
    replaced: Bools = (freed_in == made_in + 1) | ((freed_in == made_in + 2) & (free < again))
    return replaced


def _by_step(window: Window, phase: Phase) -> Iterator[tuple[int, Ints]]:
    """Every step with events of a phase, and those events."""
    events = np.flatnonzero(window.phase_of_event == phase)
    steps = window.step_of_event[events]
    edges = np.flatnonzero(np.diff(steps)) + 1
    for part in np.split(events, edges) if len(events) else ():
        yield int(window.step_of_event[part[0]]), part


def _called_at(window: Window, until: Ints) -> Frame | None:
    """The user's innermost line of the backward passes that end with some events.

    What comes last in a pass is often freed by it, and only what is made has a stack.
    """
    events = np.flatnonzero(window.phase_of_event == Phase.BACKWARD)
    stacks = window.trace.events.stack[events]
    events, stacks = events[stacks != EMPTY], stacks[stacks != EMPTY]
    last = np.searchsorted(events, until, side="right") - 1
    for stack in np.unique(stacks[last[last >= 0]]).tolist():
        frames = window.user_frames(window.trace.stack(stack))
        if frames:
            return frames[0]
    return None


RULE = RetainedGraph()
