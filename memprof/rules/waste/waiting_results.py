"""waiting-results: results wait in memory until they are reduced, or go without being read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile

import numpy as np

from memprof.rules.case import Case
from memprof.rules.results_read import Fate, calling_frame, fates, reads_outside_torch
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import filling, keyword
from memprof.source_code.program import (
    Place,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    place_of,
    with_imported,
)
from memprof.source_code.verbs import SAME_VALUES
from memprof.trace import Action, Category, Frame
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak."""
_FEWEST = 4
"""Results at the peak."""
_WIDE_LOSSES = frozenset(("binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss"))
"""Losses whose mean or sum has the storage of all their values."""
_ENTRIES = ("enumerate", "items", "values", "zip")
"""What goes through a container's entries as they are."""
_COLLECTING = frozenset(("list", "sorted", "tuple"))
_LEAST_ENDED = 0.5
"""Of what a line made, that has to be gone where nothing read it: a cache lets go of what is not
wanted first, and what is wanted stays."""
_MOSTLY = 0.5
_MOST_ROOM = 0.1
"""Of the results, that may come as one of those before goes while most of them stay."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitingResults(Match):
    """What was made at a line, and what came of it."""

    fate: Fate | None = None
    kept_at: Frame | None = None
    """The line that called what made them."""
    loss: str = ""
    """The function of torch whose results they are, if these are numbers with the room of all the
    values that they are the mean of."""


class WaitingResultsRule(WasteRule[WaitingResults]):
    """`outputs.append(logits)` for each batch, and behind the loop `logits.argmax(-1)`."""

    name = "waiting-results"
    summary = "results wait in memory until they are reduced, or nothing reads them at all"
    fixes = ("reduce_predictions", "del_ref", "item")
    yields_to = ("reduced-later", "unread-entries")
    accumulates = True

    def matches(self, window: Window) -> Iterator[WaitingResults]:
        """By what operators did with results that had outlived calls of models, to their end."""
        lives = window.lives
        for fate in fates(window):
            of_stack = (lives.stack == fate.stack) & np.isin(lives.requested, fate.sizes)
            of_stack &= window.category != Category.ACTIVATION  # it is there for a graph
            own = np.flatnonzero(of_stack & ~window.has_owner)
            there = own[window.at_peak[own]]
            nbytes = int(lives.size[there].sum())
            if window.share(nbytes) < _LEAST_SHARE or len(there) < _FEWEST:
                continue
            lasted = lives.free - lives.alloc
            # A line may make others, too; but what goes with those was kept with them.
            own = _with_those_freed_then(window, own, 2 * lasted[own] >= np.median(lasted[there]))
            if _make_room(window, own) or not (fate.readers or _are_mostly_over(window, own)):
                continue
            loss = _wide_loss(window, int(there[-1]))
            if not (fate.readers or loss) and _were_read(window, own):
                continue
            computed = np.isin(lives.stack, fate.computed) & (lives.requested >= fate.sizes[0])
            computed &= ~window.has_owner
            yield WaitingResults(
                row=int(there[-1]),
                rows=there,
                nbytes=nbytes,
                saving=window.replayed(_without(window, own, np.flatnonzero(computed))),
                tentative=reads_outside_torch(with_imported(window.programs)),
                fate=fate,
                kept_at=_collecting_frame(window, fate.stack)
                or _keeping_frame(window, fate.stack)
                or calling_frame(window, fate.stack),
                loss=loss,
            )

    def title(self, match: WaitingResults) -> str:
        """Say how many there are, and what for."""
        assert match.fate is not None
        if match.loss:
            return f"are {len(match.rows)} numbers, each with the memory that `{match.loss}` took"
        until = "until they are reduced" if match.fate.readers else "and are never read"
        return f"are {len(match.rows)} results that wait {until}"

    def advice(self, match: WaitingResults, case: Case) -> Iterator[Advice]:
        """Reduce each as it comes; or leave them out."""
        fate, kept = match.fate, match.kept_at
        assert fate is not None
        place = case.place_at(kept.filename, kept.line) if kept is not None else None
        place = _filling_after(place) or _filling_of(place) or place
        nbytes = format_bytes(match.nbytes)
        if match.loss:
            why = (
                f"`{match.loss}` returns a number in the memory of all the values that it is of, "
                f"{nbytes} here: keep it as one (`.item()`, which waits for the device, or "
                "`.detach().clone()`)."
            )
            yield Advice("item", why, place or case.site)
            return
        if not fate.readers:
            why = (
                f"{nbytes} are kept over several calls of the model, and no operator computed "
                "anything more of them before they went: leave them out, or let go of them at once."
            )
            yield Advice("del_ref", why, place or case.site)
            return
        why = (
            f"{nbytes} are kept until {fate.lines} them, {fate.figures}: compute that of each as "
            "it comes, and keep the result."
        )
        yield Advice("reduce_predictions", why, place or case.site)


def _are_mostly_over(window: Window, rows: Ints) -> bool:
    ended = window.lives.free[rows] < len(window.trace.events)
    return bool(ended.mean() >= _LEAST_ENDED)


def _were_read(window: Window, rows: Ints) -> bool:
    """Whether operators read most of them when others had been made, as far as is known.

    What was read then, before it had outlived enough calls, is not unread: it waits from then on.
    """
    lives = window.lives
    read_at = window.unread_from[rows] - 1
    is_known = read_at < lives.free[rows] - 1
    made = np.sort(lives.alloc[rows])
    following = np.append(made, len(window.trace.events))[
        np.searchsorted(made, lives.alloc[rows]) + 1
    ]
    return bool(is_known.any()) and bool((read_at > following)[is_known].mean() >= _MOSTLY)


def _with_those_freed_then(window: Window, rows: Ints, chosen: Bools) -> Ints:
    """Some rows, and others that are freed with them, before anything else is made."""
    made = np.flatnonzero(window.trace.events.action == Action.ALLOC)
    burst = np.searchsorted(made, window.lives.free[rows])
    return rows[chosen | np.isin(burst, np.unique(burst[chosen]))]


def _wide_loss(window: Window, row: int) -> str:
    """The function of a loss that a lifetime is the mean or sum of, where torch keeps its room.

    Seen with torch 2.13: others return a tensor of their own.
    """
    inner = takewhile(lambda one: frame_kind(one.filename) is FrameKind.TORCH, window.stack(row))
    names = [frame.name.rpartition(".")[2] for frame in inner]
    loss = next((name for name in names if name in _WIDE_LOSSES), "")
    place = place_of(window.frame_of(row)) if loss else None
    if place is None:
        return ""
    calls = calls_in(place.statement, loss)
    given = [one for call in calls if (one := keyword(call, "reduction")) is not None]
    is_number = all(isinstance(one, ast.Constant) and one.value != "none" for one in given)
    return loss if calls and is_number else ""


def _filling_after(place: Place | None) -> Place | None:
    """The statement of the same loop that puts what another one binds into a container, as it is.

    ``all_logits.append(out.logits)`` after ``out = model(batch)``.
    """
    loop = place.loop if place is not None else None
    if place is None or loop is None:
        return None
    names = _bound(place.statement)
    statements = [one for one in ast.walk(loop) if isinstance(one, (ast.Expr, ast.Assign, ast.For))]
    for statement in sorted(statements, key=lambda one: one.lineno):
        growth = filling(statement)
        for value in growth.values if growth is not None else ():
            if _is_as_it_was(value, names):
                return place.program.place(statement)
        source = statement.iter if isinstance(statement, ast.For) else statement.value
        if not isinstance(statement, ast.Expr) and _is_as_it_was(source, names):
            names |= _bound(statement)
    return None


def _filling_of(place: Place | None) -> Place | None:
    """The statement of the same function that fills the empty container that another one makes.

    Of several entries, each with a list of its own, as well: `results.setdefault(key, [])`.
    """
    if place is None or not isinstance(place.statement, (ast.Assign, ast.AnnAssign)):
        return None
    names = {ast.unparse(one) for one in bound_names(place.statement)}
    for node in ast.walk(place.scope):
        growth = filling(node) if isinstance(node, (ast.Expr, ast.Assign)) else None
        if growth is not None and names & set(_chain(growth.container)):
            return place.program.place(node)
    return None


def _chain(container: str) -> Iterator[str]:
    """A container as it is written, and what it is an entry of, outermost last."""
    node: ast.AST = ast.parse(container, mode="eval").body
    yield container
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
        yield ast.unparse(node)


def _bound(statement: ast.stmt) -> set[str]:
    return {one.id for one in bound_names(statement) if isinstance(one, ast.Name)}


def _is_as_it_was(value: ast.expr, names: set[str]) -> bool:
    """Whether an expression is one of some variables, or a part of it: nothing is computed."""
    calls = {called_name(one) for one in ast.walk(value) if isinstance(one, ast.Call)}
    is_computed = any(isinstance(one, (ast.BinOp, ast.Compare)) for one in ast.walk(value))
    is_own = bool(loaded_names(value) & names)
    return is_own and not is_computed and calls <= SAME_VALUES | {"detach", *_ENTRIES}


def _collecting_frame(window: Window, stack: int) -> Frame | None:
    """The line that has all that a generator yields at once, where results come of that.

    ``*_, last = samples()``, or ``list(samples())``.
    """
    for inner, outer in pairwise(window.user_frames(window.trace.stack(stack))):
        generator, place = place_of(inner), place_of(outer)
        if generator is None or place is None or generator.function is None:
            continue
        nodes = ast.walk(generator.function)
        yields = any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in nodes)
        name = generator.function.name
        if yields and any(_collects(node, name) for node in ast.walk(place.statement)):
            return outer
    return None


def _collects(node: ast.AST, generator: str) -> bool:
    """Whether an expression or statement keeps all that a call of a generator yields."""
    if isinstance(node, ast.Assign):
        targets = [one for target in node.targets for one in ast.walk(target)]
        return called_name(node.value) == generator and any(
            isinstance(one, ast.Starred) for one in targets
        )
    if isinstance(node, ast.Call) and called_name(node) in _COLLECTING:
        return any(called_name(one) == generator for one in node.args)
    if isinstance(node, ast.ListComp):
        return called_name(node.generators[0].iter) == generator
    return False


def _keeping_frame(window: Window, stack: int) -> Frame | None:
    """The line that a search found to keep what a stack made, in a function on the way to that.

    Elsewhere it is one that whatever is handed to it is kept by.
    """
    holders = [one.holders[0] for one in window.searches if one.stack == stack]
    frames = window.user_frames(window.trace.stack(stack))
    functions = [(f.filename, place.function) for f in frames if (place := place_of(f)) is not None]
    for holder in holders:
        frame = Frame("", holder.filename, holder.line)
        place = place_of(frame)
        if place is not None and (holder.filename, place.function) in functions:
            return frame
    return None


def _make_room(window: Window, own: Ints) -> bool:
    """Whether results go one by one as new ones come, and most stay: a cache, or a sliding window.

    That one of a cache is not asked for before it makes room is nothing to change.
    """
    lives = window.lives
    events = np.concatenate([lives.alloc[own], lives.free[own]])
    change = np.repeat([1, -1], len(own))
    order = np.argsort(events, kind="stable")
    alive = np.cumsum(change[order])
    made = np.flatnonzero(change[order] > 0)
    # The fewest that are there between one that is made and the next.
    fewest = np.minimum.reduceat(alive, made)[:-1]
    goes = np.add.reduceat(change[order] < 0, made)[:-1] > 0
    making_room = goes & (2 * fewest >= alive.max())
    return bool(making_room.sum() > _MOST_ROOM * len(own))


def _without(window: Window, own: Ints, computed: Ints) -> Cuts:
    """Each result until the next one is made; of what is computed of all of them, nothing."""
    lives = window.lives
    own = own[np.argsort(lives.alloc[own], kind="stable")]
    brief = window.ended_at(own[:-1], lives.alloc[own[1:]])
    whole = window.whole(np.setdiff1d(computed, own))
    return Cuts(
        np.concatenate([brief.rows, whole.rows]),
        np.concatenate([brief.start, whole.start]),
        np.concatenate([brief.end, whole.end]),
    )


RULE = WaitingResultsRule()
