"""Groups of allocations whose survivors keep growing: by stack, and where stacks differ by line.

Which groups are one leak is decided in `group_by_holder`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from memprof.records import Holder
from memprof.reference_chain import LinkKind, largest_container
from memprof.rules.ended_loops import loop_is_over, training_is_over
from memprof.source_code.fed_anew import is_fed_anew
from memprof.source_code.frame_kind import FrameKind, frame_kind, is_copy_module
from memprof.source_code.idioms import copies_collection, grown_into_new, joins_tensors
from memprof.source_code.program import Place, place_of, source_of
from memprof.trace import EMPTY, SURVIVOR_AGE, Category, Frame, Tables
from memprof.views.sites import sites
from memprof.views.survivors import Survival
from memprof.views.trend import WARM_UP, Rise, floor, rise, rises_throughout

__all__ = ["GrowingGroup", "growing_groups", "is_of_history"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_TORCH = FrameKind.TORCH
_OBJECTS = (LinkKind.ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE, LinkKind.GLOBAL)
_ERRORS = (LinkKind.TRACEBACK, LinkKind.EXCEPTION)
_UNKNOWN: Mapping[int, Sequence[Holder]] = MappingProxyType({})
_LATE = 1 / 3
"""Of the steps, at the end: what was given in them goes on."""
_NEARLY_THROUGHOUT = 0.9
"""Of the steps: a loop that took fewer may have prepared what the later ones work with."""
_OF_TRAINING = 0.75
"""The same where training is over: each batch of a last evaluation counts as a step."""
_LEAST_BIRTHS = 4
_LEAST_TAKEN = 4
"""Tensors of a group that were freed again: then what gives to a container also takes from it."""
_LEAST_FILLINGS = 3
"""Steps that add to what a container keeps with graphs, where looks saw that it grows."""
_LEAST_ITEMS = 6
"""Items of a list, each with the same bytes, that came at no regular distances."""
_LISTS = ("list", "deque", "set")
_LEAST_SPAN = 8
"""Steps from the first rise to the last: less is a start, not a trend."""
_LEAST_EXACT = 4
"""Steps in a row that each add the same: of so regular a series fewer are enough."""
_LEAST_REGULAR = 5
"""Steps, each as long after the one before, that add the same to a container."""
_LEAST_EXACT_BYTES = 64 << 10
"""In each of them."""
_LEAST_GROWN = 8
"""Steps in a row in which a tensor was replaced by a larger one."""
_ANEW = 0.25
"""Of what a tensor had grown by, that is left at most where it begins anew."""
_BOUNDED_HISTORY = re.compile(r"/torch/optim/lbfgs\.py$")
"""L-BFGS keeps ``history_size`` directions, 100 by default, and no more."""
_NEARLY_ALL = 0.8
"""Of the steps after the first: in so many a copied collection has become larger."""
_MOSTLY = 0.5
_ONE_EACH = (Category.GRADIENT, Category.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True, eq=False)
class GrowingGroup:
    """Allocations of one stack or line that stay and become more."""

    stack: int
    """The stack of most of them."""
    rows: Ints
    """Rows of `Survival.lives` that survive and that the last step left."""
    places: Ints
    """Where among the recorded step ends it grows."""
    per_step: float
    """Bytes."""
    confidence: float
    """That it grows without end, from 0 to 1."""
    every: int
    """The usual distance between two places: 1 is every step."""
    replaced: bool = False
    """One tensor, or a collection that is copied, is made anew and larger again and again."""
    collected: bool = False
    """The garbage collector was seen to free such tensors."""
    last_share: float = 1.0
    """Share of the bytes that what was made last in each step has: the result of a line, say."""


_Judge: TypeAlias = Callable[[Survival, Ints, Bools], "GrowingGroup | None"]


def growing_groups(
    survival: Survival, freed: Bools, holders_of: Mapping[int, Sequence[Holder]] = _UNKNOWN
) -> Iterator[GrowingGroup]:
    """Every group of ``survival`` that keeps growing, each allocation in at most one.

    ``freed`` says which allocations the garbage collector freed, ``holders_of`` who holds
    those of a stack, as far as that was searched for.
    """
    lives = survival.lives
    grouped = np.zeros(len(lives), dtype=bool)
    if len(survival) < _LEAST_SPAN + SURVIVOR_AGE + WARM_UP + 1:  # too few to see a trend
        for exact in _exact_groups(survival, freed):
            grouped[exact.rows] = True
            yield exact
        if len(survival) < _LEAST_SPAN + SURVIVOR_AGE:
            return
    survives = survival.outlive_steps
    for keys in (_by_stack(survival), _by_line(survival)):
        for rows in _groups(keys, survives & ~grouped):
            group = _ever_more(survival, rows, freed)
            if group is None or _is_expected(survival, group):
                continue
            if not holders_of.get(group.stack) and _is_collected_at_the_end(survival, group):
                continue
            grouped[rows] = True
            yield group
    for rows, judge in _held_groups(survival, survives & ~grouped, holders_of):
        group = judge(survival, rows, freed)
        if group is not None and not _is_expected(survival, group):
            grouped[rows] = True
            yield group
    freed_later = (lives.allocated_in >= 0) & (lives.freed_in > lives.allocated_in)
    for keys in (_by_stack(survival), _by_innermost(survival)):
        for rows in _groups(keys, freed_later & ~grouped):
            group = _ever_larger(survival, rows, freed, holders_of)
            if group is not None:
                grouped[rows] = True
                yield group


def _held_groups(
    survival: Survival, mask: Bools, holders_of: Mapping[int, Sequence[Holder]]
) -> Iterator[tuple[Ints, _Judge]]:
    """Groups told by who holds them: what has no stack, what errors keep, what C++ does."""
    stacks = survival.lives.stack
    for stack, holders in holders_of.items():
        rows = np.flatnonzero(mask & (stacks == stack))
        if len(rows) < _LEAST_BIRTHS or not holders:
            continue
        if holders[0].links[0].kind == LinkKind.CPP_CYCLE:
            yield rows, _ever_more_in_its_loop
            continue
        at = largest_container(holders[0].links)
        container = holders[0].links[at] if at is not None else None
        if container is None or not holders[0].is_named or container.length < _LEAST_BIRTHS:
            continue
        grows = _has_become_longer(holders)
        if stack == EMPTY:
            yield rows, _ever_more_at_looks if grows else _ever_more
        elif any(link.kind in _ERRORS for link in holders[0].links):
            yield rows, _now_and_then
        elif grows and holders[0].through_graph:
            yield rows, _with_graphs
        elif container.type_name in _LISTS:
            yield rows, partial(_given_to_list, length=container.length, grows=grows)
        else:
            yield rows, _more_than_taken if grows else _at_regular_steps


def _has_become_longer(holders: Sequence[Holder]) -> bool:
    """Whether looks saw that the container of the first holder grew, by whichever of its items."""
    containers = []
    for holder in holders:
        at = largest_container(holder.links)
        if at is not None:
            way = tuple((link.kind, link.name) for link in holder.links[:at])
            containers.append(((way, holder.links[at].length), holder.links[at].grows))
    return any(grows for one, grows in containers if one == containers[0][0])


def _exact_groups(survival: Survival, freed: Bools) -> Iterator[GrowingGroup]:
    """The same for a recording of few steps: only what each step adds to, by the same bytes."""
    lives, everything = survival.lives, np.arange(len(survival.lives))
    stays = (lives.allocated_in >= 0) & survival.outlast(everything)
    for rows in _groups(_by_stack(survival), stays):
        group = _ever_the_same(survival, rows, freed)
        if group is not None and not _is_expected(survival, group):
            yield group


def _by_stack(survival: Survival) -> Ints:
    """The stack of each allocation; without one its module tells it apart, or nothing does (-1)."""
    lives = survival.lives
    keys = lives.stack.astype(np.int64)
    modules = _modules(survival.tables)[lives.label]
    nowhere = keys == EMPTY
    keys[nowhere] = np.where(modules[nowhere] > 0, -1 - modules[nowhere], -1)
    return keys


def _by_line(survival: Survival) -> Ints:
    """The user's line and the module: one line is reached by many stacks in some programs."""
    lives = survival.lives
    line = sites(survival.tables).of_stack[lives.stack].astype(np.int64)
    modules = _modules(survival.tables)[lives.label]
    return np.where(line > 0, line * (int(modules.max(initial=0)) + 1) + modules, -1)


def _by_innermost(survival: Survival) -> Ints:
    """The innermost line of Python and the module: what a library joins for all who call it."""
    lives, tables = survival.lives, survival.tables
    index: dict[tuple[str, int], int] = {}
    lines = [0]
    for stack in range(1, len(tables.stacks)):
        frames = (one for one in tables.stack(stack) if frame_kind(one.filename) > _TORCH)
        inner = next(frames, None)
        place = (inner.filename, inner.line) if inner is not None else None
        lines.append(index.setdefault(place, len(index) + 1) if place is not None else 0)
    line = np.array(lines, dtype=np.int64)[lives.stack]
    modules = _modules(tables)[lives.label]
    return np.where(line > 0, line * (int(modules.max(initial=0)) + 1) + modules, -1)


def _modules(tables: Tables) -> Ints:
    """A number for the module of every label; copies of a model (``Net#2``) share theirs."""
    index: dict[str, int] = {"": 0}
    names = (re.sub(r"#\d+", "", label.module) for label in tables.labels)
    return np.array([index.setdefault(name, len(index)) for name in names], dtype=np.int64)


def _groups(keys: Ints, mask: Bools) -> Iterator[Ints]:
    """Rows in ``mask`` of every key that has enough of them."""
    rows = np.flatnonzero(mask & (keys != -1))
    rows = rows[np.argsort(keys[rows], kind="stable")]
    edges = np.flatnonzero(np.diff(keys[rows])) + 1
    for part in np.split(rows, edges):
        if len(part) >= _LEAST_BIRTHS:
            yield part


def _ever_more(
    survival: Survival, rows: Ints, freed: Bools, least_share: float = _NEARLY_THROUGHOUT
) -> GrowingGroup | None:
    lives, length = survival.lives, len(survival)
    if len(np.unique(lives.allocated_in[rows])) < _LEAST_BIRTHS:
        return None
    count, amount = (
        _alive(lives.allocated_in[rows] + SURVIVOR_AGE, lives.freed_in[rows], weights, length)
        for weights in (np.ones(len(rows), dtype=np.int64), lives.size[rows])
    )
    growth = rise(count, amount, first=WARM_UP + SURVIVOR_AGE - 1)
    if growth is None:
        growth = _rise_to_loops_end(survival, rows, count, amount, least_share)
    if (
        growth is None
        or growth.places[-1] - growth.places[0] < _LEAST_SPAN
        or growth.per_place <= 0
    ):
        return None
    survivors = _survivors_of(survival, rows, growth)
    return _group(survival, survivors if len(survivors) else rows, survivors, growth, freed)


def _ever_more_in_its_loop(survival: Survival, rows: Ints, freed: Bools) -> GrowingGroup | None:
    """What a cycle through C++ keeps: however much follows, nothing can use it any more."""
    return _ever_more(survival, rows, freed, least_share=0.0)


def _rise_to_loops_end(
    survival: Survival, rows: Ints, count: Ints, amount: Ints, least_share: float
) -> Rise | None:
    """The same up to the end of the loop that makes them, or of training, where little follows."""
    last = int(survival.lives.allocated_in[rows].max())
    end = last + SURVIVOR_AGE + 1
    is_trained = training_is_over(survival, last)
    if end >= len(count) or last < min(least_share, _OF_TRAINING if is_trained else 1) * len(count):
        return None
    growth = rise(count[:end], amount[:end], first=WARM_UP + SURVIVOR_AGE - 1)
    if growth is None:
        return None
    stack = _most(survival.lives.stack[rows])
    return growth if is_trained or loop_is_over(survival, stack, last) else None


def _ever_the_same(survival: Survival, rows: Ints, freed: Bools) -> GrowingGroup | None:
    """A group to which every step adds as much, from early on and up to the end."""
    lives, length = survival.lives, len(survival)
    birth_places = lives.allocated_in[rows]
    allocs, count = (
        np.bincount(
            birth_places[birth_places < length], weights=w[birth_places < length], minlength=length
        )
        for w in (lives.size[rows], np.ones(len(rows)))
    )
    first = int(np.flatnonzero(allocs)[0]) if allocs.any() else length
    # What the last steps made may be in variables still; it must be there, too, if this goes on.
    span = slice(first, length - SURVIVOR_AGE)
    same = (allocs[span] == allocs[first : first + 1]) & (count[span] == count[first : first + 1])
    if first > WARM_UP or len(same) < _LEAST_EXACT or not same.all():
        return None
    goes_on = allocs[length - SURVIVOR_AGE :] >= allocs[first]
    if allocs[first] < _LEAST_EXACT_BYTES or not goes_on.all():
        return None
    places = np.arange(first, length)
    confidence = round(float(1 - 0.5 ** (len(places) / 4)), 3)
    growth = Rise(places, float(allocs[first]), float(allocs[first]), confidence, 1)
    return _group(survival, rows, rows, growth, freed)


def _now_and_then(survival: Survival, rows: Ints, freed: Bools) -> GrowingGroup | None:
    """A group to which some steps add and others do not: what a container of errors keeps.

    How often a step fails is chance. That the container was given to in the last third of the steps
    and has kept what it was given in the first half is enough: no cache is filled by errors. What
    is freed is of tries that did not fail.
    """
    lives, length = survival.lives, len(survival)
    rows = rows[lives.freed_in[rows] >= length]
    births = np.unique(lives.allocated_in[rows])
    if len(births) < _LEAST_BIRTHS or births[-1] - births[0] < _LEAST_SPAN:
        return None
    if births[0] > length // 2 or births[-1] < length * (1 - _LATE):
        return None
    return _given_now_and_then(survival, rows, freed, births)


def _given_now_and_then(
    survival: Survival, rows: Ints, freed: Bools, births: Ints, sure: float = _LEAST_BIRTHS
) -> GrowingGroup:
    """A group that steps in ``births`` gave to, and none took from.

    So many births as ``sure`` says halve the doubt that this goes on.
    """
    lives, span = survival.lives, int(births[-1] - births[0])
    growth = Rise(
        places=births,
        per_place=float(lives.size[rows][lives.allocated_in[rows] > births[0]].sum()) / span,
        slope=0.0,
        confidence=round(1 - 0.5 ** (len(births) / sure), 3),
        every=max(1, round(span / (len(births) - 1))),
    )
    return _group(survival, rows, rows, growth, freed)


def _more_than_taken(survival: Survival, rows: Ints, freed: Bools) -> GrowingGroup | None:
    """A group of which some go and more come: what a container keeps that looks saw grow.

    A queue that is emptied too slowly, results that not everybody fetches: by chance no series of
    steps is regular. The floor must rise from early on and up to the end. Tables for ever new
    lengths come as irregularly, and none of them goes.
    """
    if (survival.lives.freed_in[rows] < len(survival)).sum() < _LEAST_TAKEN:
        return None
    return _throughout(survival, rows, freed)


def _with_graphs(survival: Survival, rows: Ints, freed: Bools) -> GrowingGroup | None:
    """A group that a container keeps with graphs, of which looks saw it have ever more.

    It may be filled in few steps, by hundreds of tensors each: in the rollouts between the
    trainings on them. No cache has graphs in it.
    """
    return _more_than_taken(survival, rows, freed) or _in_few_steps(survival, rows, freed)


def _in_few_steps(survival: Survival, rows: Ints, freed: Bools) -> GrowingGroup | None:
    """A group to which some steps up to the last third add, and from which none takes."""
    lives, length = survival.lives, len(survival)
    births = np.unique(lives.allocated_in[rows])
    births = births[births >= 0]
    span = int(births[-1] - births[0]) if len(births) else 0
    if len(births) < _LEAST_FILLINGS or span < _LEAST_SPAN or births[-1] < length * (1 - _LATE):
        return None
    if (lives.freed_in[rows] < length).any():
        return None
    return _given_now_and_then(survival, rows, freed, births, sure=1)


def _at_regular_steps(survival: Survival, rows: Ints, freed: Bools) -> GrowingGroup | None:
    """A group to which every so many steps add as many bytes, up to the end, in a container.

    A copy of a model that a list is given now and then: of a short run the trend alone says little.
    """
    lives, length = survival.lives, len(survival)
    if (lives.freed_in[rows] < length).any() or (lives.allocated_in[rows] < 0).any():
        return None
    births, place = np.unique(lives.allocated_in[rows], return_inverse=True)
    gaps, nbytes = np.diff(births), np.bincount(place.reshape(-1), weights=lives.size[rows])
    is_regular = len(births) >= _LEAST_REGULAR and (gaps == gaps[0]).all()
    if not is_regular or (nbytes != nbytes[0]).any() or nbytes[0] < _LEAST_EXACT_BYTES:
        return None
    every = int(gaps[0])
    if births[-1] - births[0] < _LEAST_SPAN or births[-1] < length - every - SURVIVOR_AGE:
        return None
    growth = Rise(
        places=births,
        per_place=float(nbytes[0]) / every,
        slope=0.0,
        confidence=round(1 - 0.5 ** (len(births) / _LEAST_BIRTHS), 3),
        every=every,
    )
    return _group(survival, rows, rows, growth, freed)


def _given_to_list(
    survival: Survival, rows: Ints, freed: Bools, length: int, *, grows: bool
) -> GrowingGroup | None:
    """A group that a list of this length keeps, of which each item has as many bytes.

    Rounds that take ever longer give to a list ever more rarely. So does what fills a cache; but a
    cache has keys.
    """
    judge = _more_than_taken if grows else _at_regular_steps
    regular = judge(survival, rows, freed)
    lives, steps = survival.lives, len(survival)
    if regular is not None or (lives.freed_in[rows] < steps).any():
        return regular
    births, place = np.unique(lives.allocated_in[rows], return_inverse=True)
    nbytes = np.bincount(place.reshape(-1), weights=lives.size[rows])
    is_one_each = grows or abs(len(births) - length) <= 1
    if births[0] < 0 or not is_one_each or (nbytes != nbytes[0]).any():
        return None
    if len(births) < _LEAST_ITEMS or births[-1] - births[0] < _LEAST_SPAN:
        return None
    if births[-1] < steps * (1 - _LATE) or nbytes[0] < _LEAST_EXACT_BYTES:
        return None
    return _given_now_and_then(survival, rows, freed, births)


def _ever_more_at_looks(survival: Survival, rows: Ints, freed: Bools) -> GrowingGroup | None:
    """What a container keeps that looks saw grow, where only looks know when it was made.

    They come ever more rarely, and several tensors at once.
    """
    return _ever_more(survival, rows, freed) or _throughout(survival, rows, freed)


def _throughout(survival: Survival, rows: Ints, freed: Bools) -> GrowingGroup | None:
    """A group whose floor rises from early on and up to the end, regularly or not."""
    lives, length = survival.lives, len(survival)
    weights = lives.size[rows]
    least = floor(
        _alive(lives.allocated_in[rows] + SURVIVOR_AGE, lives.freed_in[rows], weights, length)
    )
    places = np.flatnonzero(np.diff(least) > 0) + 1
    places = places[places > WARM_UP]
    if len(places) < _LEAST_BIRTHS or places[-1] - places[0] < _LEAST_SPAN:
        return None
    low = int(places[0]) - 1
    if low > length // 2 or not rises_throughout(least, low):
        return None
    span = int(places[-1]) - low
    growth = Rise(
        places=places,
        per_place=float(least[places[-1]] - least[low]) / span,
        slope=0.0,
        confidence=round(1 - 0.5 ** (len(places) / _LEAST_BIRTHS), 3),
        every=max(1, round(span / len(places))),
    )
    return _group(survival, rows, _survivors_of(survival, rows, growth), growth, freed)


def _ever_larger(
    survival: Survival, rows: Ints, freed: Bools, holders_of: Mapping[int, Sequence[Holder]]
) -> GrowingGroup | None:
    """A group that is made anew, larger: by joining an old tensor with a part, or by copying.

    Or by hooks, of which there are ever more.
    """
    lives, length = survival.lives, len(survival)
    if len(rows) < _LEAST_GROWN:
        return None
    count, amount = (
        _alive(lives.allocated_in[rows], lives.freed_in[rows], weights, length)
        for weights in (np.ones(len(rows), dtype=np.int64), lives.size[rows])
    )
    stack = _most(lives.stack[rows])
    holders = holders_of.get(stack, ())
    goes_on = _is_longer(holders_of.get(EMPTY, ()), holders)
    end = _end_of_followed(survival.steps, count, amount, goes_on=goes_on)
    count, amount = count[:end], amount[:end]
    settled = count[max(WARM_UP, int(lives.allocated_in[rows].min())) :]
    if not len(settled) or settled.max() == 0:
        return None
    one_each = _is_one_each(settled)
    by_hooks = not one_each and _is_hooked(holders) and rise(count) is not None
    changes = np.diff(settled)
    changes = changes[changes != 0]  # it may be copied now and then
    rises = len(changes) >= _LEAST_BIRTHS and (changes > 0).mean() >= _NEARLY_ALL
    if not (one_each or by_hooks or rises):
        return None
    if (np.diff(floor(amount)[WARM_UP:]) > 0).sum() < _LEAST_BIRTHS:
        return None
    growth = rise(amount, amount)
    if growth is None or growth.places[-1] - growth.places[0] < _LEAST_SPAN:
        return None
    if _began_anew(amount, growth):
        return None
    made_anew = _joins if one_each else _copies
    made_within = _joins_within if one_each else _copies_within
    is_own = _is_kept_by_program(holders) or _is_given_other_data(survival.tables, stack, holders)
    by_library = is_own and made_within(survival.tables, stack)
    if not (by_hooks or by_library or made_anew(survival.tables, stack)):
        return None
    growth = _by_steps(growth, survival.steps)
    return _group(
        survival, rows, _survivors_of(survival, rows, growth), growth, freed, replaces=True
    )


def _began_anew(amount: Ints, growth: Rise) -> bool:
    """Whether the same has grown as often before, and was then as small again as at first.

    So the state of an answer is, with the next question; until it comes to twice what it had then.
    """
    begin = int(growth.places[0]) - 1
    there = np.flatnonzero(amount[: begin + 1])
    if not len(there):
        return False
    first = int(amount[there[0]])
    earlier = amount[there[0] : begin + 1] - first
    top = int(earlier.max())
    times = int((np.diff(earlier[: int(earlier.argmax()) + 1]) > 0).sum())
    is_small = earlier[-1] <= _ANEW * top
    return times >= _LEAST_BIRTHS and is_small and amount[growth.places[-1]] - first <= 2 * top


def _by_steps(growth: Rise, steps: Ints) -> Rise:
    """The same with its rate for each step: a place may be many steps after the one before.

    What is made anew holds what was added between the windows, too.
    """
    first, last = int(growth.places[0]), int(growth.places[-1])
    share = (last - first) / max(1, int(steps[last] - steps[first]))
    return replace(growth, per_place=share * growth.per_place)


def _is_longer(later: Sequence[Holder], earlier: Sequence[Holder]) -> bool:
    """Whether the same object holds what has no stack, in a container that is longer by now."""
    ways, lengths = [], []
    for holders in (earlier, later):
        links = holders[0].links if holders else ()
        at = largest_container(links)
        if not at:
            return False
        names = [one.name for one in links[:at] if one.kind != LinkKind.ITEM]
        ways.append(names[:-1])  # of several lists that the object has it may be another one
        lengths.append(links[at].length)
    return bool(ways[0]) and ways[0] == ways[1] and lengths[0] < lengths[1]


def _end_of_followed(steps: Ints, count: Ints, amount: Ints, *, goes_on: bool) -> int:
    """The place up to which what is made anew can be followed: the end, or before steps not seen.

    What was made anew between two windows has no stack and is none of the group. So the longest
    stretch counts, if it is the first one and what was made later is larger; or if nothing was, and
    it ``goes_on``.
    """
    length = len(count)
    bounds = [0, *(np.flatnonzero(np.diff(steps) > 1) + 1).tolist(), length]
    longest = max(pairwise(bounds), key=lambda one: one[1] - one[0])
    if longest[0] != 0 or longest[1] == length:
        return length
    end = longest[1]
    later = np.flatnonzero(count[end:]) + end
    is_larger = (
        len(later)
        and count[end - 1]
        and (amount[later[-1]] / count[later[-1]] > amount[end - 1] / count[end - 1])
    )
    return end if is_larger or (goes_on and not len(later)) else length


def _is_one_each(settled: Ints) -> bool:
    """Whether as many are there at each place, from some time in the first half on."""
    changes = np.flatnonzero(np.diff(settled))
    return not len(changes) or (
        bool((np.diff(settled) >= 0).all()) and int(changes[-1]) < len(settled) // 2
    )


def _group(
    survival: Survival,
    rows: Ints,
    survivors: Ints,
    growth: Rise,
    freed: Bools,
    *,
    replaces: bool = False,
) -> GrowingGroup:
    stack = _most(survival.lives.stack[rows])
    return GrowingGroup(
        stack=stack,
        rows=survivors,
        places=growth.places,
        per_step=growth.per_place,
        confidence=growth.confidence,
        every=growth.every,
        replaced=replaces,
        collected=bool((freed & (survival.lives.stack == stack)).any()),
        last_share=_last_share(survival, survivors),
    )


def _last_share(survival: Survival, rows: Ints) -> float:
    """The share of the bytes of the last that was made of some rows in each step."""
    lives = survival.lives
    rows = rows[np.argsort(lives.alloc[rows], kind="stable")]
    steps = lives.allocated_in[rows]
    is_last = np.append(steps[1:] != steps[:-1], [True])[: len(rows)]
    total = int(lives.size[rows].sum())
    return float(lives.size[rows[is_last]].sum() / total) if total else 1.0


def _survivors_of(survival: Survival, rows: Ints, growth: Rise) -> Ints:
    """Those of ``rows`` that the last step left; where a reset took all, the last rise."""
    rows_left = rows[survival.outlast(rows)]
    if len(rows_left):
        return rows_left
    birth_places, death_places, last = (
        survival.lives.allocated_in[rows],
        survival.lives.freed_in[rows],
        int(growth.places[-1]),
    )
    there: Ints = rows[(birth_places <= last) & (last < death_places)]
    return there


def _alive(birth_places: Ints, death_places: Ints, weights: Ints, length: int) -> Ints:
    """The sum of ``weights`` at every place; each counts from its birth until before its death."""
    change = np.zeros(length + 1, dtype=np.int64)
    there = birth_places < np.minimum(death_places, length)
    np.add.at(change, birth_places[there], weights[there])
    np.add.at(change, np.minimum(death_places[there], length), -weights[there])
    return np.cumsum(change[:-1])


def _most(stacks: Ints) -> int:
    values, counts = np.unique(stacks, return_counts=True)
    return int(values[counts.argmax()])


def _is_expected(survival: Survival, group: GrowingGroup) -> bool:
    """Gradients and optimizer state while there are no more than one per parameter.

    They come when a layer is unfrozen or first used, and go on for as many steps as there are
    layers; more of them than parameters means optimizers that are not given back. Where most of the
    parameters are new themselves, models pile up, and what belongs to them with them.
    """
    lives = survival.lives
    frames = survival.tables.stack(group.stack)
    if is_of_history(frames):
        return True
    category = _most(lives.category[group.rows]) if len(group.rows) else 0
    if category not in _ONE_EACH:
        return False
    everything = np.arange(len(lives))
    there = (lives.category == Category.PARAMETER) & survival.outlast(everything)
    are_new = (
        bool((lives.allocated_in[there] >= WARM_UP).mean() >= _MOSTLY) if there.any() else False
    )
    return len(group.rows) <= int(there.sum()) and not are_new


def _is_collected_at_the_end(survival: Survival, group: GrowingGroup) -> bool:
    """True if a line collects late what it has collected and given back as often before.

    An evaluation that ends the program: within training each was over before a step's end.
    """
    lives = survival.lives
    if int(group.places[0]) <= len(survival) // 2:
        return False
    line = sites(survival.tables).of_stack[lives.stack]
    before = line == sites(survival.tables).of_stack[group.stack]
    before &= (lives.allocated_in >= 0) & (lives.freed_in - lives.allocated_in < SURVIVOR_AGE)
    before &= lives.allocated_in < int(lives.allocated_in[group.rows].min())
    return int(before.sum()) >= len(group.rows)


def is_of_history(frames: tuple[Frame, ...]) -> bool:
    """True if L-BFGS itself made it: the closure that it calls is the program's."""
    for frame in frames:
        if frame_kind(frame.filename) is FrameKind.USER:
            return False
        if _BOUNDED_HISTORY.search(frame.filename.replace("\\", "/")):
            return True
    return False


def _joins(tables: Tables, stack: int) -> bool:
    """True if the statement of a stack (the user's, or C++ of torch's) joins tensors."""
    if any("at::native::cat" in frame.name for frame in tables.stack(stack)):
        return True
    place = place_of(sites(tables).frames[int(sites(tables).of_stack[stack])])
    return place is not None and _makes_longer(place)


def _joins_within(tables: Tables, stack: int) -> bool:
    """The same of the innermost line, a library's."""
    place = _innermost(tables, stack)
    return place is not None and _makes_longer(place)


def _makes_longer(place: Place) -> bool:
    """True if a statement joins tensors, or makes what takes in another one and its place."""
    return joins_tensors(place.statement) or bool(grown_into_new(place))


def _copies_within(tables: Tables, stack: int) -> bool:
    """True if the innermost line of a stack, a library's, copies a collection."""
    place = _innermost(tables, stack)
    return place is not None and copies_collection(place)


def _innermost(tables: Tables, stack: int) -> Place | None:
    """The innermost statement that is not torch's."""
    frames = (one for one in tables.stack(stack) if frame_kind(one.filename) > _TORCH)
    inner = next(frames, None)
    program = source_of(inner.filename) if inner is not None and not inner.changed else None
    return program.at(inner.line) if program is not None and inner is not None else None


def _is_kept(holders: Sequence[Holder]) -> bool:
    """True if an object of the program keeps what is held, and no call that runs just now.

    While a prompt is answered its cache grows, too, as the generating function's own.
    """
    links = holders[0].links if holders and holders[0].is_named else ()
    return any(link.kind in _OBJECTS for link in links) and not any(
        link.kind == LinkKind.LOCAL and frame_kind(link.filename) is not FrameKind.USER
        for link in links
    )


def _is_kept_by_program(holders: Sequence[Holder]) -> bool:
    """True if that is so by an object of a class, or a variable of a module, of the program's own.

    What a function's variable leads to through objects of libraries alone, such as the cache of the
    answer that is being generated, may be gone with the next one.
    """
    links = holders[0].links if holders else ()
    program = source_of(links[0].filename) if links else None
    own = {one.name for one in program.classes()} if program is not None else set()
    return _is_kept(holders) and any(
        link.kind == LinkKind.GLOBAL
        or (
            link.kind in _OBJECTS
            and (link.type_name in own or frame_kind(link.filename) is FrameKind.USER)
        )
        for link in links
    )


def _is_given_other_data(tables: Tables, stack: int, holders: Sequence[Holder]) -> bool:
    """True if a variable of the program's holds what a loop's call adds to, with data of its own.

    A cache of one prompt that each of many questions is answered with, and makes longer. An answer
    that is generated is given what came of the last call.
    """
    links = holders[0].links if holders and holders[0].is_named else ()
    if not links or links[0].kind != LinkKind.LOCAL:
        return False
    place = place_of(sites(tables).frames[int(sites(tables).of_stack[stack])])
    return place is not None and is_fed_anew(place)


def _is_hooked(holders: Sequence[Holder]) -> bool:
    """True if a hook of a module or a tensor leads to what is held."""
    return any(link.kind == LinkKind.HOOK for one in holders[:1] for link in one.links)


def _copies(tables: Tables, stack: int) -> bool:
    """True if a stack runs through Python's `copy`, or a statement that copies a collection."""
    for frame in tables.stack(stack):
        if frame_kind(frame.filename) is FrameKind.USER:
            break
        if is_copy_module(frame.filename):
            return True
    place = place_of(sites(tables).frames[int(sites(tables).of_stack[stack])])
    return place is not None and copies_collection(place)
