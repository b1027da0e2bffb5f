"""idle-optimizer: an optimizer that steps no more keeps its states while others train."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idle_attributes import read_no_more
from memprof.source_code.kept_objects import kept_object
from memprof.source_code.last_reads import last_read_before, reads_again
from memprof.source_code.program import Place, bound_names, own_calls, place_of
from memprof.source_code.scopes import parameters
from memprof.source_code.values import values_of
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


@dataclass(frozen=True, slots=True, eq=False)
class IdleOptimizerState(Match):
    """What is left of a training that is over."""

    name: str = ""
    """The optimizer, as it is called on the last line that reads it."""
    place: Place | None = None
    last_line: int = 0
    gradients: int = 0
    """Bytes of gradients among them."""
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
            match = _match(window, way, stacks, rows) if way and len(rows) else None
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
        why = (
            f"`{match.name}` steps no more after line {match.last_line}, and keeps "
            f"{format_bytes(match.nbytes - match.gradients)} of states: let go of it, and of "
            "whatever else holds it."
        )
        if match.gradients:
            why += (
                f" The last gradients are there too ({format_bytes(match.gradients)}): call its "
                "`zero_grad()` before."
            )
        yield Advice("del_ref", why, place or case.site, typed=f"del {match.name}")


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
    now = window.trace.stack(int(window.trace.events.stack[window.peak.event]))
    if window.share(nbytes) < _LEAST_SHARE:
        return None
    read = _last_read(window, way[0], now) or _last_read_by_caller(way, now)
    keeping = kept_object(way, window.user_frames(now)) if read is None else None
    if keeping is not None:
        read = ast.unparse(bound_names(keeping.statement)[0]), keeping, keeping.line
    if read is None:
        return None
    name, place, line = read
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
        is_kept=keeping is not None,
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
    made = list(values_of(place, optimizer.id))
    if not made or not all(isinstance(one, ast.Call) for one in made):
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
    made = list(values_of(caller, name.id))
    if not made or not all(isinstance(one, ast.Call if key is None else ast.Dict) for one in made):
        return None
    item, line = key.value if isinstance(key, ast.Constant) else None, running[0].line
    if reads_again(caller, name.id, line, item):
        return None
    return ast.unparse(given), caller, last_read_before(caller, name.id, line, item)


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
