"""stored-twice: a replay memory stores each observation as a state and as the one before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import stays_near_peak
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import (
    Place,
    Program,
    assigned,
    bound_names,
    calls_in,
    loaded_names,
    place_of,
)
from memprof.source_code.scopes import parameters
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTwice(Match):
    """The two tensors, as written, and the statement that fills the one that is not needed."""

    states: str = ""
    next_states: str = ""
    place: Place | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Filling:
    """``self.states[at] = state``: what a parameter of a method is put into."""

    place: Place
    function: str
    parameter: str
    position: int
    """Among the arguments of a call, without ``self``."""


class TwiceStored(WasteRule[StoredTwice]):
    """`memory.add(state, action, next_state)`, and then `state = next_state`."""

    name = "stored-twice"
    summary = "each observation is stored as a state and as the next one"
    fixes = ("store_once",)
    yields_to = ("bytes-as-floats",)

    def matches(self, window: Window) -> Iterator[StoredTwice]:
        """Two tensors of one size that stay; what one is given the other is given next time."""
        lives = window.lives
        mask = stays_near_peak(window)
        large = [
            row
            for row in np.flatnonzero(mask).tolist()
            if window.share(int(lives.size[row])) >= _LEAST_SHARE
        ]
        for first, second in permutations(large, 2):
            if lives.requested[first] != lives.requested[second]:
                continue
            places = place_of(window.frame_of(first)), place_of(window.frame_of(second))
            names = _attribute(places[0]), _attribute(places[1])
            if places[0] is None or not all(names) or names[0] == names[1]:
                continue
            place = _filled_with_the_next(window.programs, places[0], *names)
            if place is not None:
                yield StoredTwice(
                    row=second,
                    rows=np.array([second]),
                    nbytes=int(lives.size[second]),
                    saving=window.replayed(window.whole(np.array([second]))),
                    states=names[0],
                    next_states=names[1],
                    place=place,
                )
                return

    def title(self, match: StoredTwice) -> str:
        """Say what is in both."""
        return f"are `{match.next_states}`, whose entries the next ones of `{match.states}` repeat"

    def advice(self, match: StoredTwice, case: Case) -> Iterator[Advice]:
        """Store each once."""
        at = match.place
        place = case.place_at(at.program.filename, at.line) if at is not None else None
        yield Advice(
            "store_once",
            f"What `{match.next_states}` is given for one step is given to `{match.states}` for "
            f"the next: leave out the first, {format_bytes(match.nbytes)}, and read "
            f"`{match.states}` one place further. Of stacked frames store each frame once.",
            place or case.site,
        )


def _attribute(place: Place | None) -> str:
    """``self.states`` of a statement that binds it and nothing else; else empty."""
    targets = bound_names(place.statement) if place is not None else []
    if len(targets) != 1 or not isinstance(targets[0], ast.Attribute):
        return ""
    return ast.unparse(targets[0])


def _filled_with_the_next(
    programs: Sequence[Program], place: Place, states: str, next_states: str
) -> Place | None:
    """The statement that fills ``next_states``, if what it takes goes into ``states`` next time."""
    of_states, of_next = _filling(place, states), _filling(place, next_states)
    if of_states is None or of_next is None or of_states.function != of_next.function:
        return None
    for program in programs:
        for call in calls_in(program.tree, of_next.function):
            state, following = _given(call, of_states), _given(call, of_next)
            at = program.place(call)
            if state and following and at is not None and _goes_on(at, state, following):
                return of_next.place
    return None


def _filling(place: Place, name: str) -> _Filling | None:
    """Where a method puts one of its parameters into an entry of an attribute."""
    if place.class_ is None:
        return None
    for node in ast.walk(place.class_):
        for target, value in assigned(node) if isinstance(node, ast.Assign) else ():
            is_entry = isinstance(target, ast.Subscript) and ast.unparse(target.value) == name
            at = place.program.place(node)
            if not is_entry or value is None or at is None or at.function is None:
                continue
            named = list(parameters(at.function))
            given = [one for one in named[1:] if one in loaded_names(value)]
            if len(given) == 1:
                position = named.index(given[0]) - 1
                return _Filling(at, at.function.name, given[0], position)
    return None


def _given(call: ast.Call, filling: _Filling) -> str:
    """The variable that a call hands to the parameter; empty for anything else."""
    values = [one.value for one in call.keywords if one.arg == filling.parameter]
    if not any(isinstance(one, ast.Starred) for one in call.args):
        values += call.args[filling.position : filling.position + 1]
    names = [one.id for one in values[:1] if isinstance(one, ast.Name)]
    return names[0] if names else ""


def _goes_on(place: Place, state: str, following: str) -> bool:
    """Whether the loop around a call makes what follows the state of its next round."""
    return place.loop is not None and any(
        isinstance(target, ast.Name)
        and target.id == state
        and isinstance(value, ast.Name)
        and value.id == following
        for node in ast.walk(place.loop)
        if isinstance(node, ast.Assign)
        for target, value in assigned(node)
    )


RULE = TwiceStored()
