"""old-graphs: activations of a bounded number of earlier steps stay with their graphs."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.records import Holder
from memprof.rules.case import Case
from memprof.rules.forward_passes import runs_within
from memprof.rules.graph_lines import calling_place, is_unlearned, running_sum, under_no_grad
from memprof.rules.lifespan import outlive_steps
from memprof.rules.references import advice_on_exceptions
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.source_facts import lines_of_training
from memprof.rules.stored_contexts import advice_on_context, stored_attribute
from memprof.source_code.call_sites import handed_to
from memprof.source_code.idioms import growing, keyword
from memprof.source_code.patch import diff, wrapped
from memprof.source_code.program import (
    LOOPS,
    Place,
    Program,
    assigned,
    calls_in,
    own_calls,
    place_of,
)
from memprof.source_code.retained_graphs import asks_to_retain
from memprof.source_code.values import goes_backward, is_object, survives_call
from memprof.trace import EMPTY, Category, Frame, Phase
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_MOST_VISITED = 0.1
"""Of what graphs saved outside of modules, that is of lines a backward pass goes through."""
_LEAST_MODULES = 2
"""Modules whose activations stay: of one module it is as a rule a result that was stored."""
_GROWTH = 1.4
"""The most in the second half of the steps over that in the first: a bounded number is full by
then, or nearly so. What grows steadily has doubled, and is a leak: other findings are about it."""
_LOOKS = 64
"""Steps at which the bytes are counted."""

_NEARLY_ALL = 0.9
"""Of the bytes, that one step made."""
_FEWEST_KEEPING = 2
"""Statements that keep the graph of one pass, of which cutting off one saves nothing."""
_GOING_BACKWARD = ("backward", "grad", "manual_backward")
_MOSTLY = 0.5
"""Share of the bytes that backward passes freed: what is dropped unused goes at any other time. And
of those that graphs have saved."""


@dataclass(frozen=True, slots=True, eq=False)
class OldGraph(Match):
    """Activations of earlier steps."""

    steps: int = 0
    """Steps that made those at the peak."""


class OldGraphs(WasteRule[OldGraph]):
    """A deque of the last outputs, or the like, keeps the graph of each of them."""

    name = "old-graphs"
    summary = "graphs of a few earlier steps are still held"
    fixes = ("no_create_graph", "detach", "no_grad", "clear_traceback", "save_for_backward")
    yields_to = ("evaluation-graph", "retained-graph")
    names_holders = True

    def matches(self, window: Window) -> Iterator[OldGraph]:
        """Activations of several modules that outlive their steps, neither growing nor awaited."""
        mask = outlive_steps(window) & _is_of_graph(window)
        if not mask.any() or _grows(window, mask) or _is_awaited(window, mask):
            return
        at_peak = mask & window.at_peak
        in_modules = at_peak & (window.module > 0) & ~_is_left_of_learnt(window, at_peak)
        is_of_few = len(np.unique(window.module[in_modules])) < _LEAST_MODULES
        if is_of_few and not _is_mostly_saved(window, at_peak):
            return
        others = _going_with(window, mask)
        if window.bytes_of(others & window.at_peak) > window.bytes_of(at_peak):
            mask |= others
            at_peak = mask & window.at_peak
        rows = np.flatnonzero(mask)
        yield OldGraph(
            row=window.main_site(at_peak),
            rows=np.flatnonzero(at_peak),
            nbytes=window.bytes_of(at_peak),
            saving=window.replayed(window.ended_at(rows, _last_needed(window, rows))),
            steps=len(np.unique(window.made_in[at_peak])),
            made_alike=_results_of(window, at_peak),
        )

    def title(self, match: OldGraph) -> str:
        """Say of how many steps."""
        return f"are activations of {_earlier_steps(match)} whose graphs are still held"

    def is_meant(self, holders: Sequence[Holder], window: Window) -> bool:
        """Whether a backward pass goes on through what is stored, as one over several steps.

        Where such graphs were let go of, and none in a backward pass, none did.
        """
        places = _storing(_with_graphs(holders))
        return not _went_unlearned(window) and _goes_on(places, window.programs)

    def is_unfounded(self, match: OldGraph, holders: Sequence[Holder], window: Window) -> bool:
        """Whether what a graph has saved as well is stored without it."""
        kept = [] if any(one.through_graph for one in holders) else holders
        places = _storing(kept)
        made_at = {(one.filename, one.line) for one in window.stack(match.row)}
        storing = [one for one in places if growing(one) is not None]
        if not storing:  # a variable has a container that another function fills
            is_filled_later = all((one.filename, one.line) not in made_at for one in kept)
            return bool(places) and is_filled_later and all(map(_makes_container, places))
        return all(map(_stores_detached, storing))

    def advice(self, match: OldGraph, case: Case) -> Iterator[Advice]:
        """Detach what is stored; a stored exception, or a context's attribute, comes first.

        Nothing where a backward pass goes on through it.
        """
        of_holders = map(case.place_of, _with_graphs(case.finding.holders))
        places = [place for place in of_holders if place is not None]
        is_over = case.window is not None and _went_unlearned(case.window)
        if not is_over and _goes_on(places, case.everywhere):
            return
        context = stored_attribute(case)
        if context is not None:
            yield from advice_on_context(context)
            return
        why = f"Tensors of {_earlier_steps(match)} are kept with the graphs that made them"
        site = calling_place(case)
        several = _keeping_one_pass(case, site) if site is not None else []
        unbuilt = [*_unbuilt(match, case, site, several, why)] if site is not None else []
        added = running_sum(places[0]) if places and len(several) < _FEWEST_KEEPING else None
        if added is None:
            yield from unbuilt
        for place, argument in [*handed_to(site)][:1] if site is not None else ():
            text = ast.unparse(argument)
            safe = not is_object(place, argument) and not _learned_later(case, place, argument)
            others = [one for one in several if one.line != place.line]
            safe &= not others  # one of them alone saves nothing
            patch = diff(place.program, *wrapped(argument, ".detach()")) if safe else ""
            also = f", and likewise in {_lines(others)}" if others else ""
            why_here = f"{why}: hand over `{text}.detach()`{also}."
            yield Advice("detach", why_here, place, patch=patch)
        yield from advice_on_exceptions(case)
        each = f": detach what {_lines(several)} keep" if len(several) > 1 else ""
        carried = _carried(case)
        if carried:
            names = " and ".join(f"`{name}`" for name in carried)
            each = (
                f": each round of a loop computes {names} from that of the last, and no backward "
                "pass goes through it. Detach what the loop begins with"
            )
        if added is not None:
            each = f": add `{ast.unparse(added.value)}` detached, or its number (`.item()`)"
        elif not places and site is not None and _is_learnt_at(case, site):
            each = f": detach what is kept of line {site.line}'s result, which the step learns from"
        yield Advice("detach", f"{why}{each}.", places[0] if places else site)
        if added is not None:  # a line that is known to keep them says more than where they are of
            yield from unbuilt


def _carried(case: Case) -> list[str]:
    """Variables that a loop computes from themselves, with the graphs of what no module made."""
    window = case.window
    if window is None or (window.category == Category.ACTIVATION).any():
        return []
    names = set()
    for search in window.searches:
        for holder in search.holders:
            place = case.place_of(holder) if holder.through_graph else None
            name = holder.links[0].name
            if place is not None and name and _is_of_itself(place, name):
                names.add(name)
    return sorted(names)


def _unbuilt(
    match: OldGraph, case: Case, site: Place, several: Sequence[Place], why: str
) -> Iterator[Advice]:
    """No graph at all, where no backward pass goes through it, nor through any of that line."""
    if _is_learnt_at(case, site):
        return
    if _asks_for_graph(site) and isinstance(site.statement, ast.Return):
        yield Advice(
            "no_create_graph",
            f"{why}: `create_graph=True` has gradients computed with a graph of their own, and no "
            "backward pass goes through it.",
            site,
        )
        return  # it records even where `no_grad` is around it
    if not _is_left_alone(match, case):
        return
    is_kept_by_several = len(several) >= _FEWEST_KEEPING
    patch = under_no_grad(case)
    is_over = case.window is not None and _went_unlearned(case.window)
    is_needless = bool(patch) or is_unlearned(case)
    is_needless |= is_over and (is_kept_by_several or _never_learned_by_call(case, site))
    if is_needless or (is_kept_by_several and _are_never_learned(case, several)):
        kept_at = f"{_lines(several)} keep them, and no" if is_kept_by_several else "no"
        yield Advice(
            "no_grad", f"{why}: {kept_at} backward pass goes through them.", site, patch=patch
        )


def _asks_for_graph(place: Place) -> bool:
    """Whether a statement computes gradients with a graph: ``grad(loss, w, create_graph=True)``.

    What a function returns of it at once, it has not differentiated itself.
    """
    given = (keyword(call, "create_graph") for call in own_calls(place.statement))
    return any(isinstance(one, ast.Constant) and one.value is True for one in given)


def _is_learnt_at(case: Case, site: Place) -> bool:
    """Whether backward passes go through what a statement on the way to the tensors computes."""
    lines = lines_of_training(case.window)
    return any(frame in lines for frame, place in case.frames if place is site)


def _is_of_itself(place: Place, name: str) -> bool:
    """Whether a statement in a loop binds a name to what it computes of it: ``r = r - step``."""
    if not any(isinstance(one, LOOPS) for one in place.around):
        return False
    return any(
        isinstance(target, ast.Name)
        and target.id == name
        and value is not None
        and any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))
        for target, value in assigned(place.statement)
    )


def _keeping_one_pass(case: Case, site: Place) -> list[Place]:
    """The statements of a function that each keep something with the graph of its pass."""
    window = case.window
    if window is None:
        return []
    places = {}
    for search in window.searches:
        if not any(_is_in(site, frame) for frame in window.trace.stack(search.stack)):
            continue
        for holder in search.holders:
            place = case.place_of(holder) if holder.through_graph else None
            if place is not None and place.function is site.function:
                places[place.line] = place
    return [place for _, place in sorted(places.items())]


def _lines(places: Sequence[Place]) -> str:
    """``line 86``, ``lines 86 and 87``."""
    numbers = [str(place.line) for place in places]
    return f"{'lines' if len(numbers) > 1 else 'line'} {' and '.join(numbers)}"


def _is_in(site: Place, frame: Frame) -> bool:
    place = place_of(frame) if frame.filename == site.program.filename else None
    return place is not None and place.function is site.function


def _is_left_alone(match: OldGraph, case: Case) -> bool:
    """Whether no backward pass has gone through the graphs: it would have freed some of them.

    Unless it is told to retain them.
    """
    window = case.window
    if window is None or _retains(window):
        return False
    freed_in = np.append(window.phase_of_event, Phase.UNKNOWN)[window.lives.free[match.rows]]
    return not bool((freed_in == Phase.BACKWARD).any())


def _never_learned_by_call(case: Case, site: Place) -> bool:
    """Whether no backward pass freed any activation of the calls that a statement makes."""
    window = case.window
    frames = [frame for frame, place in case.frames if place.statement is site.statement]
    if window is None or not frames:
        return False
    activations = window.category == Category.ACTIVATION
    stacks = np.unique(window.lives.stack[activations]).tolist()
    own = [one for one in stacks if frames[0] in window.trace.stack(one)]
    rows = activations & np.isin(window.lives.stack, own)
    return not bool((window.freed_by[rows] == Phase.BACKWARD).any())


def _are_never_learned(case: Case, places: Sequence[Place]) -> bool:
    """Whether no backward pass starts from what statements put into containers."""
    filled = [(place, growing(place)) for place in places]
    return all(
        filling is not None and not goes_backward(place, filling.container, case.everywhere)
        for place, filling in filled
    )


def _storing(holders: Sequence[Holder]) -> list[Place]:
    """The statements of holders."""
    lines = [Frame("", one.filename, one.line) for one in holders if one.filename]
    return [place for one in lines if (place := place_of(one)) is not None]


def _stores_detached(place: Place) -> bool:
    """Whether a statement stores what it has cut off from its graph."""
    value = getattr(place.statement, "value", None)
    return isinstance(value, ast.AST) and bool(calls_in(value, "detach"))


def _makes_container(place: Place) -> bool:
    """Whether a statement binds variables to what calls return."""
    value = getattr(place.statement, "value", None)
    values = getattr(value, "elts", [value])
    return isinstance(place.statement, ast.Assign) and all(isinstance(v, ast.Call) for v in values)


def _with_graphs(holders: Sequence[Holder]) -> Sequence[Holder]:
    """Those that keep graphs: what a graph has saved may be kept by itself as well, for later."""
    return [one for one in holders if one.through_graph] or holders


def _earlier_steps(match: OldGraph) -> str:
    return "1 earlier step" if match.steps == 1 else f"{match.steps} earlier steps"


def _going_with(window: Window, mask: Bools) -> Bools:
    """What graphs have saved outside of modules: it is freed in one go with what modules made.

    Between the two nothing is allocated.
    """
    free = window.lives.free
    goes = np.searchsorted(np.sort(window.lives.alloc), free)
    others = outlive_steps(window) & ~window.has_owner & (window.module == 0)
    others &= np.isin(window.category, (Category.UNKNOWN, Category.TEMPORARY))
    with_them: Bools = others & np.isin(goes, np.unique(goes[mask & (free < window.events)]))
    with_them &= free < window.events
    stacks = np.unique(window.lives.stack[with_them])
    # what is still there at the end was made by the same lines
    still: Bools = others & (free >= window.events)
    still &= np.isin(window.lives.stack, stacks[stacks != EMPTY])
    every: Bools = with_them | still
    return every


def _results_of(window: Window, at_peak: Bools) -> tuple[int, ...]:
    """Stacks of what modules made and what was freed in the very steps of the graphs."""
    steps, freed = (np.unique(column[at_peak]) for column in (window.made_in, window.freed_in))
    alike = outlive_steps(window) & window.at_peak & (window.module > 0)
    alike &= np.isin(window.freed_in, freed)
    rows = np.flatnonzero(alike)
    rows = rows[np.argsort(window.lives.stack[rows], kind="stable")]
    edges = np.flatnonzero(np.diff(window.lives.stack[rows])) + 1
    of_stacks = [one for one in np.split(rows, edges) if len(one)]
    same = [one for one in of_stacks if np.array_equal(np.unique(window.made_in[one]), steps)]
    return tuple(int(window.lives.stack[one[0]]) for one in same)


def _is_of_graph(window: Window) -> Bools:
    """What graphs saved: of modules' operators, else what searches came upon through one."""
    of_modules: Bools = window.category == Category.ACTIVATION
    if of_modules.any():
        stacks = np.unique(window.lives.stack[of_modules])
        unlooked = (window.category == Category.UNKNOWN) & (window.phase == Phase.FORWARD)
        # What the same calls made while autograd was not looked at: it goes as the others do.
        unlooked &= np.isin(window.lives.stack, stacks) & ~window.has_owner & (window.module > 0)
        both: Bools = of_modules | unlooked
        return both
    saved = outlive_steps(window) & _saved_stacks(window) & ~window.has_owner
    in_backward = window.phase == Phase.BACKWARD
    saved &= ~in_backward  # of a graph that a backward pass has made: which goes on through it
    visited = np.unique(window.origin_site[in_backward])
    if in_backward.any() and not visited.any():
        return np.zeros(len(saved), dtype=bool)  # what they went through was not looked at
    # A backward pass that goes through it computes gradients of what the same lines computed.
    of_visited = saved & np.isin(window.site, visited)
    if window.bytes_of(of_visited) > _MOST_VISITED * window.bytes_of(saved):
        return np.zeros(len(saved), dtype=bool)
    saved &= ~of_visited
    return saved


def _is_left_of_learnt(window: Window, at_peak: Bools) -> Bools:
    """What is left of passes of which a backward pass of their step has freed the most.

    That went through them: it is their results, which something else has saved as well.
    """
    saved = np.flatnonzero(
        (window.category == Category.ACTIVATION)
        & (window.module > 0)
        & np.isin(window.made_in, np.unique(window.made_in[at_peak]))
    )
    freed, left = Counter[tuple[int, tuple[Frame, ...]]](), Counter[tuple[int, tuple[Frame, ...]]]()
    callers = {
        stack: tuple(window.user_frames(window.trace.stack(stack)))
        for stack in np.unique(window.lives.stack[saved]).tolist()
    }
    keys = [
        (step, callers[stack])
        for step, stack in zip(
            window.made_in[saved].tolist(), window.lives.stack[saved].tolist(), strict=True
        )
    ]
    for key, is_freed in zip(
        keys, (window.freed_by[saved] == Phase.BACKWARD).tolist(), strict=True
    ):
        (freed if is_freed else left)[key] += 1
    of_learnt = np.zeros(len(window.lives), dtype=bool)
    of_learnt[saved] = [freed[key] >= left[key] for key in keys]
    return of_learnt


def _is_mostly_saved(window: Window, at_peak: Bools) -> bool:
    """Whether searches in the job came upon most of it through graphs that something holds."""
    nbytes = window.bytes_of(at_peak & _saved_stacks(window))
    return nbytes > _MOSTLY * window.bytes_of(at_peak)


def _saved_stacks(window: Window) -> Bools:
    """What was made by stacks of which searches came upon something through a graph."""
    saved = {
        one.stack for one in window.searches if any(held.through_graph for held in one.holders[:1])
    }
    of_saved: Bools = np.isin(window.lives.stack, list(saved))
    return of_saved


def _last_needed(window: Window, rows: Ints) -> Ints:
    """Until when lifetimes are of use: up to the end of the forward pass that made them.

    A pass ends, too, where the same line of the same module makes the like again. A backward pass
    frees what it goes through, unless it is told to retain it: then up to that one of the same
    step. None has freed these.
    """
    alloc = window.lives.alloc[rows]
    if _retains(window):
        moments = np.flatnonzero(window.phase_of_event == Phase.BACKWARD)
    else:
        in_module = np.array([bool(label.module) for label in window.trace.tables.labels])
        moments = np.array([end for *_, end in runs_within(window, in_module)], dtype=np.int64)
    at = np.searchsorted(moments, alloc, side="right")
    needed: Ints = np.minimum(_step_ends(window, rows), np.append(moments, window.events)[at])
    if not _retains(window):
        needed = np.minimum(needed, _made_again(window, rows))
    return np.where(alloc < 0, -1, needed)  # what was there before the window is of an earlier step


def _made_again(window: Window, rows: Ints) -> Ints:
    """When the stack and module of each lifetime makes the next of these; else the window's end."""
    lives = window.lives
    keys = np.stack([lives.stack[rows].astype(np.int64), window.module[rows]], 1)
    _, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.reshape(-1)
    order = np.lexsort((lives.alloc[rows], which))
    following = np.append(lives.alloc[rows][order][1:], window.events)
    following[np.append(which[order][1:] != which[order][:-1], True)] = window.events
    again: Ints = np.full(len(rows), window.events, dtype=np.int64)
    again[order] = following
    return again


def _step_ends(window: Window, rows: Ints) -> Ints:
    """The last event of the step that made each lifetime."""
    steps, which = np.unique(window.made_in[rows], return_inverse=True)
    ends = [window.first_event.get(int(step) + 1, window.events) - 1 for step in steps]
    of_rows: Ints = np.array(ends, dtype=np.int64)[which.reshape(-1)]
    return of_rows


def _retains(window: Window) -> bool:
    """Whether a call of the program asks for a graph to be retained."""
    return any(
        asks_to_retain(call, window.programs)
        for program in window.programs
        for call in calls_in(program.tree, *_GOING_BACKWARD)
    )


def _grows(window: Window, mask: Bools) -> bool:
    """Whether there is much more of it in the second half of the steps than there ever was before.

    What is emptied now and then, as at each epoch's end, has as much in both. Those of one step
    alone are no more for that they came late.
    """
    of_step = np.bincount(window.made_in[mask] + 1, weights=window.lives.size[mask])
    if of_step.max() >= _NEARLY_ALL * of_step.sum():
        return False
    there = [window.bytes_of(mask & window.lives.alive_at(event)) for event in _step_events(window)]
    half = len(there) // 2
    return max(there[half:]) > _GROWTH * max(there[: half + 1])


def _step_events(window: Window) -> list[int]:
    """The first events of steps at equal distances, from the first to the last one."""
    steps = window.steps
    at = np.unique(np.linspace(0, len(steps) - 1, _LOOKS).astype(np.int64))
    return [window.first_event[int(step)] for step in steps[at]]


def _is_awaited(window: Window, mask: Bools) -> bool:
    """Whether backward passes freed most of it: a loss over several steps needs their graphs."""
    freed = mask & (window.lives.free < window.events)
    by_backward = freed & (window.freed_by == Phase.BACKWARD)
    return window.bytes_of(by_backward) > _MOSTLY * window.bytes_of(freed)


def _went_unlearned(window: Window) -> bool:
    """Whether most of what graphs of earlier steps kept is gone, and no backward pass freed it."""
    rows = np.flatnonzero(outlive_steps(window) & (window.category == Category.ACTIVATION))
    gone = rows[window.lives.free[rows] < window.events]
    freed_in = np.append(window.phase_of_event, Phase.UNKNOWN)[window.lives.free[gone]]
    is_learned = bool((freed_in == Phase.BACKWARD).any())
    return len(gone) > _MOSTLY * len(rows) and not is_learned and not _retains(window)


def _goes_on(places: Sequence[Place], programs: Sequence[Program]) -> bool:
    """Whether a backward pass may start from what one of the places puts into a container."""
    filled = ((place, growing(place)) for place in places)
    return any(
        filling is not None and goes_backward(place, filling.container, programs)
        for place, filling in filled
    )


def _learned_later(case: Case, place: Place, argument: ast.expr) -> bool:
    """Whether a backward pass may start from what a statement hands over."""
    growth = growing(place)
    if growth is not None:
        return goes_backward(place, growth.container, case.everywhere)
    return not survives_call(place, argument, case.everywhere, number=False)


RULE = OldGraphs()
