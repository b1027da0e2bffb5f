"""idle-optimizer: an optimizer that steps no more keeps its states while others train."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idle_attributes import read_no_more
from memprof.source_code.kept_objects import kept_object
from memprof.source_code.last_reads import last_read_before, reads_again
from memprof.source_code.program import (
    Place,
    assigned,
    bound_names,
    called_name,
    calls_in,
    own_calls,
    place_of,
)
from memprof.source_code.schedulers import schedulers_of
from memprof.source_code.scopes import parameters
from memprof.source_code.values import values_of
from memprof.source_code.verbs import HANDING_OUT, SAVING
from memprof.trace import Category, Frame
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_STEPS = 8
"""In which it does not step: others may take turns with it."""
_FEWEST_SEEN = 4
"""Steps in which an optimizer makes something: then the last of them is its last step."""
_LEAST_SHARE = 0.05
"""Of the peak, in states and gradients."""
_HANDING_OUT = HANDING_OUT | {"next"}
"""Calls whose result was there before."""


@dataclass(frozen=True, slots=True, eq=False)
class IdleOptimizerState(Match):
    """What is left of a training that is over."""

    name: str = ""
    """The optimizer, as it is called on the last line that reads it."""
    place: Place | None = None
    last_line: int = 0
    gradients: int = 0
    """Bytes of gradients among them."""
    schedulers: tuple[str, ...] = ()
    """Variables that nothing reads any more either, with schedulers that hold it."""
    is_of_several: bool = False
    """Of objects that are trained on one line, one after the other; the name is of each of them."""
    is_kept: bool = False
    """The name is where the program keeps the object that trained, when that is over."""


class IdleOptimizer(WasteRule[IdleOptimizerState]):
    """`pretrainer.fit(table)`, and its optimizer stays while a classifier is trained."""

    name = "idle-optimizer"
    summary = "an optimizer that steps no more keeps its states while others train"
    fixes = ("del_ref",)

    def matches(self, window: Window) -> Iterator[IdleOptimizerState]:
        """States at the peak, by the line that stepped, whose optimizer nothing reads any more."""
        states = window.at_peak & (window.category == Category.OPTIMIZER_STATE)
        states &= window.module > 0
        if not states.any():
            return
        by_way: dict[tuple[Frame, ...], list[int]] = defaultdict(list)
        for number in range(len(window.trace.tables.stacks)):
            by_way[tuple(window.user_frames(window.trace.stack(number)))].append(number)
        for way, stacks in by_way.items():
            rows = np.flatnonzero(states & np.isin(window.lives.stack, stacks))
            if not way or not len(rows):
                continue
            match = _match(window, way, stacks, rows) or _one_after_the_other(window, way, rows)
            if match is not None:
                yield match

    def title(self, match: IdleOptimizerState) -> str:
        """Say whose they are."""
        what = "states and gradients" if match.gradients else "states"
        return f"are {what} of a training that is over, by `{match.name}`"

    def advice(self, match: IdleOptimizerState, case: Case) -> Iterator[Advice]:
        """Let go of the optimizer after its last step, and of what gradients are left."""
        assert match.place is not None
        place = case.place_at(match.place.program.filename, match.last_line)
        if match.is_kept:
            what = "states and gradients" if match.gradients else "states"
            why = (
                f"`{match.place.code.strip()}` keeps what trained, and with it "
                f"{format_bytes(match.nbytes)} of {what}, though that training is over: keep of it "
                "what is read later, and not the object."
            )
            yield Advice("del_ref", why, place or case.site)
            return
        named = " and ".join(f"`{one}`" for one in match.schedulers)
        others = f"{named}, which has it as well" if named else "whatever else holds it"
        why = (
            f"`{match.name}` steps no more after line {match.last_line}, and keeps "
            f"{format_bytes(match.nbytes - match.gradients)} of states: let go of it, and of "
            f"{others}."
        )
        if match.gradients:
            why += (
                f" The last gradients are there too ({format_bytes(match.gradients)}): call its "
                "`zero_grad()` before."
            )
        typed = f"del {', '.join((match.name, *match.schedulers))}"
        if match.is_of_several:
            typed = f"{match.name} = None"
        yield Advice("del_ref", why, place or case.site, typed=typed)


def _match(
    window: Window, way: Sequence[Frame], stacks: Sequence[int], rows: Ints
) -> IdleOptimizerState | None:
    """The same of the states that the program's own frames led to, innermost first.

    ``stacks`` are all that go through these frames and no others of the program's.
    """
    modules = np.unique(window.module[rows])
    gradient = (window.category == Category.GRADIENT) & (window.lives.alloc >= 0)
    is_own = np.isin(window.module, modules)
    own, others = np.flatnonzero(gradient & is_own), np.flatnonzero(gradient & ~is_own)
    stepped = _last_step_by(window, stacks)
    if stepped >= 0:  # layers may be part of another model by then
        made = window.lives.alloc
        own, others = own[made[own] <= stepped], np.flatnonzero(gradient & (made > stepped))
    if not len(own) or not len(others):
        return None
    last = max(stepped, int(window.lives.alloc[own].max()))
    later = window.steps[window.steps > window.step_of_event[last]]
    if last >= window.peak.event or len(later) < _LEAST_STEPS or 2 * len(later) < len(window.steps):
        return None
    if len(np.intersect1d(window.made_in[others], later)) < _LEAST_STEPS:
        return None  # nothing is trained after it
    left = own[window.at_peak[own]]
    every = np.concatenate([rows, left])
    nbytes = int(window.lives.size[every].sum())
    now = window.stack_at_peak
    if window.share(nbytes) < _LEAST_SHARE:
        return None
    read = _last_read(window, way[0], now) or _last_read_by_caller(way, now)
    keeping = kept_object(way, window.user_frames(now)) if read is None else None
    if keeping is not None:
        read = ast.unparse(bound_names(keeping.statement)[0]), keeping, keeping.line
    if read is None:
        return None
    name, place, line = read
    schedulers = _unread_schedulers(place, name, now)
    # It is used to the end of its last step.
    ends = np.full(len(every), int(np.searchsorted(window.step_of_event[:-1], int(later[0]))))
    return IdleOptimizerState(
        row=int(rows[np.argmax(window.lives.size[rows])]),
        rows=every,
        nbytes=nbytes,
        saving=window.replayed(window.ended_at(every, ends)),
        name=name,
        place=place,
        last_line=line,
        gradients=int(window.lives.size[left].sum()),
        schedulers=schedulers,
        is_kept=keeping is not None,
    )


def _one_after_the_other(
    window: Window, way: Sequence[Frame], rows: Ints
) -> IdleOptimizerState | None:
    """The same where one line trains models one after the other: all but the last are done with.

    So it is known where recording ended with the program, or each model is made anew for its turn.
    """
    named = _named_by_caller(way)
    if named is None or not (window.reaches_end or _is_made_anew(*named)):
        return None
    saved = [call for program in window.programs for call in calls_in(program.tree, *SAVING)]
    if named[0].rpartition(".")[2] in {
        node.attr for call in saved for node in ast.walk(call) if isinstance(node, ast.Attribute)
    }:
        return None
    root_of = np.array([name.partition(".")[0] for name in window.owners.module.names])
    gradients = (window.category == Category.GRADIENT) & (window.lives.alloc >= 0)
    gradients &= window.module > 0
    turns = []
    for root in set(root_of[window.module[rows]].tolist()):
        own = np.flatnonzero(gradients & (root_of[window.module] == root))
        if len(own):
            alloc = window.lives.alloc[own]
            turns.append((int(alloc.min()), int(alloc.max()), root, own))
    turns.sort()
    if any(later[0] <= earlier[1] for earlier, later in pairwise(turns)):
        return None  # they take turns
    kept, ends, left_bytes = [], [], 0
    for _, last, root, own in turns:
        later = window.steps[window.steps > window.step_of_event[last]]
        if last >= window.peak.event or len(later) < _LEAST_STEPS:
            continue
        left = own[window.at_peak[own]]
        every = np.concatenate([rows[root_of[window.module[rows]] == root], left])
        kept.append(every)
        ends.append(np.full(len(every), window.first_event[int(later[0])]))
        left_bytes += int(window.lives.size[left].sum())
    every = np.concatenate(kept) if kept else rows[:0]
    nbytes = int(window.lives.size[every].sum())
    if len(kept) == len(turns) or window.share(nbytes) < _LEAST_SHARE or not len(every):
        return None
    name, place = named
    return IdleOptimizerState(
        row=int(every[np.argmax(window.lives.size[every])]),
        rows=every,
        nbytes=nbytes,
        saving=window.replayed(window.ended_at(every, np.concatenate(ends))),
        name=name,
        place=place,
        last_line=place.statement.end_lineno or place.line,
        gradients=left_bytes,
        is_of_several=True,
    )


def _named_by_caller(way: Sequence[Frame]) -> tuple[str, Place] | None:
    """An optimizer that is an object's, as it is called where that object is handed to what trains.

    ``stage.optimizer`` of ``train(stage)``, and of ``stage.fit()``; None where it is no attribute
    of a variable there.
    """
    place = place_of(way[0])
    calls = own_calls(place.statement, "step") if place is not None else []
    optimizer = calls[0].func if calls else None
    text = ast.unparse(optimizer.value) if isinstance(optimizer, ast.Attribute) else ""
    first = place
    for frame in way[1:]:
        root, dot, rest = text.partition(".")
        function, caller = (place.function if place is not None else None), place_of(frame)
        if function is None or caller is None or not root:
            break
        if root == "self":
            called = own_calls(caller.statement, function.name)
            receiver = called[0].func if len(called) == 1 else None
            given = receiver.value if isinstance(receiver, ast.Attribute) else None
        elif root in parameters(function):
            given = _given_as(caller, function, root)
        else:
            break
        if given is None:
            return None
        text, place = f"{ast.unparse(given)}{dot}{rest}", caller
    if place is None or place is first or not text.replace(".", "").isidentifier():
        return None
    return (text, place) if "." in text and not text.startswith("self.") else None


def _is_made_anew(name: str, place: Place) -> bool:
    """Whether a loop around a statement makes the object of a name in each of its passes."""
    root, loop = name.partition(".")[0], place.loop
    if loop is None or not _is_bound_to(place, root, ast.Call):
        return False
    return all(
        called_name(value) not in _HANDING_OUT and any(value is one for one in ast.walk(loop))
        for value in values_of(place, root)
        if value is not None
    )


def _last_step_by(window: Window, stacks: Sequence[int]) -> int:
    """The last event of an optimizer that some stacks lead to; -1 where it tells nothing.

    Some optimizers make their states, and nothing in later steps.
    """
    events = np.flatnonzero(np.isin(window.trace.events.stack, stacks))
    steps = np.unique(window.step_of_event[events])
    return int(events[-1]) if len(steps) >= _FEWEST_SEEN else -1


def _last_read(
    window: Window, stepped_at: Frame, now: Sequence[Frame]
) -> tuple[str, Place, int] | None:
    """The optimizer of a line that steps, where and on what line it is read last.

    None where something may read it again, or where that is not known.
    """
    place = place_of(stepped_at)
    calls = own_calls(place.statement, "step") if place is not None else []
    if place is None or not calls or not isinstance(calls[0].func, ast.Attribute):
        return None
    optimizer = calls[0].func.value
    if isinstance(optimizer, ast.Attribute):
        idle = read_no_more(optimizer.attr, now, window.programs)
        return (idle.name, idle.place, idle.line) if idle is not None else None
    running = [
        one for one in now if (one.filename, one.name) == (stepped_at.filename, stepped_at.name)
    ]
    if not isinstance(optimizer, ast.Name) or not running:
        return None
    line = running[0].line
    if not _is_bound_to(place, optimizer.id, ast.Call):
        return None  # a parameter, which the caller has as well
    if reads_again(place, optimizer.id, line):
        return None
    return optimizer.id, place, last_read_before(place, optimizer.id, line)


def _last_read_by_caller(
    way: Sequence[Frame], now: Sequence[Frame]
) -> tuple[str, Place, int] | None:
    """The same of an optimizer that a function was given which has returned, as its caller has it.

    ``fit(model, first, data)`` and ``fit(model, stages["first"], data)``.
    """
    place = place_of(way[0])
    caller = place_of(way[1]) if len(way) > 1 else None
    calls = own_calls(place.statement, "step") if place is not None else []
    receiver = calls[0].func if calls else None
    optimizer = receiver.value if isinstance(receiver, ast.Attribute) else None
    if place is None or place.function is None or caller is None or caller.function is None:
        return None
    given = _given_as(caller, place.function, ast.unparse(optimizer)) if optimizer else None
    running = [one for one in now if (one.filename, one.name) == (way[1].filename, way[1].name)]
    if given is None or len(running) != 1 or running[0].line <= way[1].line:
        return None
    key = given.slice if isinstance(given, ast.Subscript) else None
    name = given.value if isinstance(given, ast.Subscript) else given
    if not isinstance(name, ast.Name) or not (key is None or isinstance(key, ast.Constant)):
        return None
    if not _is_bound_to(caller, name.id, ast.Call if key is None else ast.Dict):
        return None
    item, line = key.value if isinstance(key, ast.Constant) else None, running[0].line
    if reads_again(caller, name.id, line, item):
        return None
    return ast.unparse(given), caller, last_read_before(caller, name.id, line, item)


def _unread_schedulers(place: Place, name: str, now: Sequence[Frame]) -> tuple[str, ...]:
    """The variables with schedulers of an optimizer's that its function reads no more."""
    lines = [
        frame.line
        for frame in now
        if (at := place_of(frame)) is not None
        if at.program is place.program and at.scope is place.scope
    ]
    names = schedulers_of(place, name) if len(lines) == 1 else ()
    return tuple(one for one in names if not reads_again(place, one, lines[0]))


def _is_bound_to(place: Place, name: str, kind: type[ast.expr]) -> bool:
    """Whether all that a variable of a function is bound to is of a kind, as it is written.

    ``world, optimizer = made()`` binds each to a part of what a call returns.
    """
    values = list(values_of(place, name))
    parts = [
        value
        for node in ast.walk(place.scope)
        if isinstance(node, ast.Assign)
        for target, value in assigned(node)
        if isinstance(target, ast.Name) and target.id == name and value is node.value
        if target not in node.targets
    ]
    known = [*(one for one in values if one is not None), *parts]
    return 0 < len(known) == len(values) and all(isinstance(one, kind) for one in known)


def _given_as(caller: Place, function: ast.AST, name: str) -> ast.expr | None:
    """What the one call of a function by a statement gives it as a parameter."""
    calls = own_calls(caller.statement, getattr(function, "name", ""))
    names = [one for one in parameters(function) if one not in ("self", "cls")]
    if len(calls) != 1 or name not in names:
        return None
    given = dict(zip(names, calls[0].args, strict=False))
    given |= {one.arg: one.value for one in calls[0].keywords if one.arg is not None}
    return given.get(name)


RULE = IdleOptimizer()
