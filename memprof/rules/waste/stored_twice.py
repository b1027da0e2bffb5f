"""stored-twice: a replay memory stores each observation as a state and as the one before it.

Or stacks of frames, each of which has all but one frame of the one before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from memprof.reference_chain import THROUGH_GRAPH, largest_container
from memprof.rules.case import Case
from memprof.rules.lifespan import outlive_steps, stays_near_peak
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import without_casts
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
from memprof.source_code.sliding_stacks import sliding_stack
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak."""
_FEWEST = 8
"""Stacks that are kept: fewer are those of one batch, or of several environments."""
_LEAST_STACK = 1024
"""Bytes: a few numbers that are stacked have sizes that divide many others."""
_LEAST_KEPT = 0.5
"""Of those that a line made since the oldest of them: of which few are kept, the others may be all
that two share."""
_COPY = "copy_"
_LITERALS = (ast.List, ast.Tuple, ast.Set)
_REMAINS = 0.5
"""At most, of stacks of two frames and more."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTwice(Match):
    """The two tensors, as written, and the statement that fills the one that is not needed.

    Or what each stack takes over of the one before.
    """

    states: str = ""
    next_states: str = ""
    place: Place | None = None
    shared: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Filling:
    """``self.states[at] = state``: what a parameter of a method is put into."""

    place: Place
    function: str
    parameter: str
    position: int
    """Among the arguments of a call, without ``self``."""
    key: str = ""
    """Of the entry that is taken of it, as written, where it is a dictionary."""


class TwiceStored(WasteRule[StoredTwice]):
    """`memory.add(state, action, next_state)`, and then `state = next_state`."""

    name = "stored-twice"
    summary = "each observation is stored as a state and as the next one"
    fixes = ("store_once",)
    yields_to = ("bytes-as-floats",)
    stands_beside = True

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
            place, others = place_of(window.frame_of(first)), place_of(window.frame_of(second))
            if place is None:
                continue
            for names in product(_attributes(place), _attributes(others)):
                filled = _filled_with_the_next(window.programs, place, *names)
                if filled is None:
                    continue
                yield StoredTwice(
                    row=second,
                    rows=np.array([second]),
                    nbytes=int(lives.size[second]),
                    # many agents are written so, and left so: not where each frame is there often
                    tentative=not _is_of_stacks(window, int(lives.requested[first])),
                    saving=window.replayed(window.whole(np.array([second]))),
                    states=names[0],
                    next_states=names[1],
                    place=filled,
                )
                return
        stacks = _sliding_stacks(window, mask)
        if stacks is not None:
            yield stacks

    def title(self, match: StoredTwice) -> str:
        """Say what is in both."""
        if match.shared:
            return f"are stacks that are kept, each with the `{match.shared}` of the one before"
        return f"are `{match.next_states}`, whose entries the next ones of `{match.states}` repeat"

    def advice(self, match: StoredTwice, case: Case) -> Iterator[Advice]:
        """Store each once."""
        if match.shared:
            why = (
                f"Each of the stacks, {format_bytes(match.nbytes)}, has the `{match.shared}` of "
                "the one before: keep each frame once, and stack those of a row as it is drawn."
            )
            yield Advice("store_once", why, case.site, remains=_REMAINS)
            return
        at = match.place
        place = case.place_at(at.program.filename, at.line) if at is not None else None
        yield Advice(
            "store_once",
            f"What `{match.next_states}` is given for one step is given to `{match.states}` for "
            f"the next: leave out the first, {format_bytes(match.nbytes)}, and read "
            f"`{match.states}` one place further. Of stacked frames store each frame once.",
            place or case.site,
        )


def _is_of_stacks(window: Window, nbytes: int) -> bool:
    """Whether so many bytes have room for a number of stacks of frames that the program makes."""
    for site, frame in enumerate(window.owners.sites.frames):
        place = place_of(frame)
        if place is None or not sliding_stack(place):
            continue
        sizes = np.unique(window.lives.requested[(window.site == site) & ~window.at_peak])
        fits = (size for size in sizes.tolist() if size >= _LEAST_STACK and nbytes % size == 0)
        if any(nbytes >= _FEWEST * size for size in fits):
            return True
    return False


def _sliding_stacks(window: Window, mask: Bools) -> StoredTwice | None:
    """Stacks that a container keeps, of one line that makes each of the one before."""
    lives = window.lives
    held = _stacks_held(window)
    for site in window.large_sites(mask, _LEAST_SHARE):
        place = place_of(window.owners.sites.frames[site])
        shared = sliding_stack(place) if place is not None else ""
        row = window.largest(mask & (window.site == site)) if shared else -1
        if row < 0:
            continue
        made = (window.site == site) & (lives.requested == lives.requested[row])
        rows = np.flatnonzero(made & mask)
        is_held = np.isin(lives.stack[rows], list(held)).any()
        if is_held and len(rows) >= max(_FEWEST, _LEAST_KEPT * _since_first(made, rows)):
            there = rows[window.at_peak[rows]]
            return StoredTwice(
                row=row,
                rows=there,
                nbytes=int(lives.size[there].sum()),
                # Of a memory that is full others were there before, which have made room.
                saving=window.replayed(window.whole(np.flatnonzero(made & outlive_steps(window)))),
                shared=shared,
            )
    return None


def _since_first(made: Bools, rows: Ints) -> int:
    """How many were made from the first of some rows on: a full memory drops what is older."""
    return int(np.count_nonzero(made[rows[0] :])) if len(rows) else 0


def _stacks_held(window: Window) -> set[int]:
    """Those of whose tensors a search found a container, and no graph, to have many."""
    held = set()
    for search in window.searches:
        links = search.holders[0].links
        at = largest_container(links)
        is_of_graph = any(link.kind in THROUGH_GRAPH for link in links)
        if at is not None and not is_of_graph and links[at].length >= _FEWEST:
            held.add(search.stack)
    return held


def _attributes(place: Place | None) -> list[str]:
    """``self.states`` of a statement that binds it and nothing else; else empty.

    Of a dictionary with keys that are written out each entry: ``self.kept['now']``.
    """
    targets = bound_names(place.statement) if place is not None else []
    if place is None or len(targets) != 1 or not isinstance(targets[0], ast.Attribute):
        return []
    name, value = ast.unparse(targets[0]), getattr(place.statement, "value", None)
    keys: list[ast.expr | None] = []
    if isinstance(value, ast.DictComp):
        (loop, *more) = value.generators
        is_of_keys = not more and ast.unparse(loop.target) == ast.unparse(value.key)
        keys = [*loop.iter.elts] if is_of_keys and isinstance(loop.iter, _LITERALS) else []
    elif isinstance(value, ast.Dict):
        keys = value.keys
    else:
        return [name]
    return [f"{name}[{ast.unparse(one)}]" for one in keys if isinstance(one, ast.Constant)]


def _filled_with_the_next(
    programs: Sequence[Program], place: Place, states: str, next_states: str
) -> Place | None:
    """The statement that fills ``next_states``, if what it takes goes into ``states`` next time."""
    if states == next_states:
        return None
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
    """Where a method puts one of its parameters, or an entry of one, into an attribute's entry."""
    if place.class_ is None:
        return None
    for node in ast.walk(place.class_):
        value = _written(node, name)
        at = place.program.place(node) if value is not None else None
        if value is None or at is None or at.function is None:
            continue
        named = list(parameters(at.function))
        given = [one for one in named[1:] if one in loaded_names(value)]
        if len(given) == 1:
            position = named.index(given[0]) - 1
            plain = without_casts(value)
            is_entry = isinstance(plain, ast.Subscript) and isinstance(plain.slice, ast.Constant)
            key = ast.unparse(plain.slice) if isinstance(plain, ast.Subscript) and is_entry else ""
            return _Filling(at, at.function.name, given[0], position, key)
    return None


def _written(node: ast.AST, name: str) -> ast.expr | None:
    """What a statement writes into an entry of a name: ``x[i] = y``, ``x[i].copy_(y)``."""
    pairs = list(assigned(node)) if isinstance(node, ast.Assign) else []
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args:
        pairs += [(call.func.value, call.args[0])] if call.func.attr == _COPY else []
    return next(
        (
            value
            for target, value in pairs
            if isinstance(target, ast.Subscript) and ast.unparse(target.value) == name
        ),
        None,
    )


def _given(call: ast.Call, filling: _Filling) -> str:
    """The variable that a call hands to the parameter, moved or not; empty for anything else."""
    values = [one.value for one in call.keywords if one.arg == filling.parameter]
    if not any(isinstance(one, ast.Starred) for one in call.args):
        values += call.args[filling.position : filling.position + 1]
    if filling.key:
        values = [
            value
            for given in values[:1]
            if isinstance(given, ast.Dict)
            for key, value in zip(given.keys, given.values, strict=True)
            if key is not None and ast.unparse(key) == filling.key
        ]
    plain = [without_casts(one) for one in values[:1]]
    names = [one.id for one in plain if isinstance(one, ast.Name)]
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
