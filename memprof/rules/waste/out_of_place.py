"""out-of-place: a large tensor is computed anew from itself, and nothing reads the old one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import keyword
from memprof.source_code.program import (
    Place,
    bound_names,
    called_name,
    calls_in,
    place_of,
)
from memprof.source_code.scopes import parameters
from memprof.trace import EMPTY, Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak, that one of the tensors has."""
_LEAST_SAVED = 0.25
"""Of the peak."""
_TORCH = "torch"
_COMMUTATIVE = (ast.Add, ast.Mult)
_IN_PLACE = {ast.Add: "add_", ast.Sub: "sub_", ast.Mult: "mul_", ast.Div: "div_"}
_METHODS = frozenset(
    (
        *("abs", "add", "clamp", "clamp_max", "clamp_min", "div", "exp", "log", "log1p", "mul"),
        *("multiply", "neg", "pow", "sqrt", "square", "sub", "subtract", "true_divide"),
    )
)
"""Methods that compute each value of one, and have a form in place."""
_REDUCTIONS = (
    *("amax", "amin", "max", "mean", "median", "min", "norm", "quantile", "std", "sum", "var"),
)
"""Methods that make a new tensor of what they read."""
_MOST_AFTER = 2
"""Allocations that may come between the result and the end of what it replaces."""


@dataclass(frozen=True, slots=True, eq=False)
class OutOfPlace(Match):
    """What is computed, and how that is done in place."""

    name: str = ""
    instead: str = ""
    """As a person would type it; empty where the name is read more than once."""
    lines: tuple[int, ...] = ()
    """Of other statements of the same kind, which compute the same name one after the other."""
    function: str = ""
    """The function that is handed the old values, where one computes the new ones."""


@dataclass(frozen=True, slots=True, eq=False)
class _Computation:
    """A statement that computes a name from itself."""

    place: Place
    name: str
    instead: str
    """How that is done in place; empty where the name is read more than once."""
    function: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Replacement:
    """What such a statement makes, all of one size."""

    size: int
    result: int
    """What it leaves at the end."""
    old: int
    """What the name had before."""
    temporaries: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Operation:
    """One step of a computation, with its method in place."""

    of: ast.expr
    method: str
    given: tuple[ast.expr, ...]
    text: str


class OutOfPlaceRule(WasteRule[OutOfPlace]):
    """`data = (data - mean) / std`: the old values, the differences and the result at once."""

    name = "out-of-place"
    summary = "a large tensor is computed anew from itself, beside its old values"
    fixes = ("in_place",)
    yields_to = ("bytes-as-floats", "double-precision", "widened-weights")

    def matches(self, window: Window) -> Iterator[OutOfPlace]:
        """The statement that runs at the peak, where it binds anew the name of what it reads."""
        event = window.peak.event
        stack = int(window.trace.events.stack[event]) if event >= 0 else EMPTY
        frames = window.user_frames(window.trace.stack(stack)) if stack != EMPTY else ()
        computed = _computed_at(frames)
        own = _own(window, computed.place) if computed is not None else None
        if computed is None or own is None or not (own & window.at_peak).any():
            return
        lives = window.lives
        there = np.flatnonzero(own & window.at_peak)
        size = int(lives.requested[there].max())
        there = there[lives.requested[there] == size]
        replacement = _replacement(window, own, size)
        if replacement is None or window.share(size) < _LEAST_SHARE:
            return
        others = [
            (one, other)
            for one in _siblings(computed)
            if (other := _replacement(window, _own(window, one.place), size)) is not None
        ]
        every = [replacement, *(other for _, other in others)]
        saving = window.replayed(
            Cuts.joined(*(one for each in every for one in _cuts(window, each)))
        )
        if window.share(saving.bytes) < _LEAST_SAVED:
            return
        rows = np.union1d(there, [replacement.old])
        yield OutOfPlace(
            row=int(there[-1]),
            rows=rows,
            nbytes=int(lives.size[rows].sum()),
            saving=saving,
            name=computed.name,
            instead=computed.instead,
            lines=tuple(one.place.line for one, _ in others),
            function=computed.function,
        )

    def title(self, match: OutOfPlace) -> str:
        """Say what is there at once."""
        return f"are `{match.name}` and what is computed of it, to be `{match.name}` again"

    def advice(self, match: OutOfPlace, case: Case) -> Iterator[Advice]:
        """Compute in its own memory."""
        why = (
            f"{format_bytes(match.nbytes)} hold the old values, results on the way and the new "
            "ones, and nothing keeps the old: methods that end in `_` compute in their memory."
        )
        if not match.instead:
            why += f" First compute what else is read of `{match.name}`."
        if match.lines:
            lines = ", ".join(map(str, match.lines))
            why += f" Lines that do the same: {lines}."
        if match.function:
            why += f" Then `{match.function}` changes what it is handed."
        yield Advice("in_place", why, case.site, typed=match.instead)


def _computed_at(frames: Sequence[Frame]) -> _Computation | None:
    """The statement of the program that runs, where it computes a name from itself.

    Or where it returns to such a statement what it computes: ``data = scaled(data)``.
    """
    place = place_of(frames[0]) if frames else None
    if place is None:
        return None
    if not isinstance(place.statement, ast.Return):
        return _computed(place)
    function, value = place.function, place.statement.value
    caller = place_of(frames[1]) if len(frames) > 1 else None
    if function is None or value is None or caller is None:
        return None
    bound = {ast.unparse(one) for node in ast.walk(function) for one in bound_names(node)}
    for name in set(parameters(function)) - bound:
        instead = _in_place(value, name)
        if instead is not None:
            target = _target_handed(caller, function, name)
            return _Computation(place, target, instead, function.name) if target else None
    return None


def _target_handed(
    caller: Place, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> str:
    """What a statement binds to the call of a function that it hands it to; empty for others."""
    statement = caller.statement
    call = statement.value if isinstance(statement, ast.Assign) else None
    if not isinstance(call, ast.Call) or called_name(call) != function.name:
        return ""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    if names[:1] in (["self"], ["cls"]) and isinstance(call.func, ast.Attribute):
        names = names[1:]
    by_place = dict(zip(names, call.args, strict=False))
    given = keyword(call, name) or by_place.get(name)
    target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    return target if given is not None and ast.unparse(given) == target else ""


def _computed(place: Place) -> _Computation | None:
    """The name that a statement computes from itself, and how that is done in place."""
    statement = place.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    name = ast.unparse(statement.targets[0])
    instead = _in_place(statement.value, name)
    return _Computation(place, name, instead) if instead is not None else None


def _siblings(computed: _Computation) -> Iterator[_Computation]:
    """Other statements of the same block that compute the same name from itself."""
    place = computed.place
    inside = place.around[-1] if place.around else place.program.tree
    for field in ("body", "orelse", "finalbody"):
        block = getattr(inside, field, [])
        if not isinstance(block, list) or place.statement not in block:
            continue
        for statement in block:
            at = place.program.place(statement) if statement is not place.statement else None
            other = _computed(at) if at is not None else None
            if other is not None and other.name == computed.name:
                yield other


def _in_place(value: ast.expr, name: str) -> str | None:
    """A value that is computed from a name, in place; empty where that must be read besides.

    None for values that are not.
    """
    steps: list[_Operation] = []
    node = value
    while (operation := _operation(node, name)) is not None:
        steps.append(operation)
        node = operation.of
    if not steps or ast.unparse(node) != name:
        return None
    steps.reverse()
    reads_again = any(_reads(one, name) for step in steps[1:] for one in step.given)
    shows = any(_shows(one, name) for one in steps[0].given)
    calls = "".join(f".{step.method}({step.text})" for step in steps)
    return "" if reads_again or shows else f"{name}{calls}"


def _operation(node: ast.expr, name: str) -> _Operation | None:
    """What an operator, or a method that computes value by value, does; None for others.

    A function of torch is as good as the method: ``torch.sub(x, mean)``.
    """
    if isinstance(node, ast.BinOp) and type(node.op) in _IN_PLACE:
        of, other = node.left, node.right
        if isinstance(node.op, _COMMUTATIVE) and not _reads(of, name):
            of, other = other, of
        return _Operation(of, _IN_PLACE[type(node.op)], (other,), ast.unparse(other))
    function = node.func if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or not isinstance(function, ast.Attribute):
        return None
    if function.attr not in _METHODS:
        return None
    of, given = function.value, list(node.args)
    if isinstance(of, ast.Name) and of.id == _TORCH and given:
        if any(one.arg == "out" for one in node.keywords):
            return None
        of, given = given[0], given[1:]
    text = ", ".join(map(ast.unparse, [*given, *node.keywords]))
    others = (*given, *(one.value for one in node.keywords))
    return _Operation(of, f"{function.attr}_", others, text)


def _reads(value: ast.expr, name: str) -> bool:
    return any(ast.unparse(node) == name for node in ast.walk(value))


def _shows(value: ast.expr, name: str) -> bool:
    """Whether an operand reads a name in any way but by a reduction: it may be a view of it.

    torch refuses to write into memory that an operand shows: ``x.sub_(x[0])``.
    """
    reduced = {
        id(call.func.value)
        for call in calls_in(value, *_REDUCTIONS)
        if isinstance(call.func, ast.Attribute)
    }
    return any(ast.unparse(node) == name and id(node) not in reduced for node in ast.walk(value))


def _own(window: Window, place: Place) -> Bools:
    """Per lifetime: whether a statement made it, without a graph."""
    of_lines = np.array(
        [
            frame.filename == place.program.filename and frame.line in place.lines
            for frame in window.owners.sites.frames
        ]
    )
    own: Bools = of_lines[window.site] & (window.lives.alloc >= 0) & ~window.has_owner
    own &= (window.phase == Phase.OTHER) & (window.category != Category.ACTIVATION)
    return own


def _replacement(window: Window, own: Bools, size: int) -> _Replacement | None:
    """What a statement makes of one size, where that replaces what goes as soon as it is there."""
    result = _result(window, own, size)
    old = _replaced(window, own, size, result) if result >= 0 else -1
    if old < 0:
        return None
    temporaries = np.setdiff1d(np.flatnonzero(own & (window.lives.requested == size)), [result])
    return _Replacement(size, result, old, temporaries)


def _cuts(window: Window, one: _Replacement) -> tuple[Cuts, Cuts]:
    """Nothing that is made on the way, and old values that end where the new ones begin."""
    begins = np.array([window.lives.alloc[one.result]])
    return window.whole(one.temporaries), window.ended_at(np.array([one.old]), begins)


def _result(window: Window, own: Bools, size: int) -> int:
    """What the statement leaves at the end: it is there longer than all else of its size."""
    lives = window.lives
    rows = np.flatnonzero(own & (lives.requested == size))
    return int(rows[np.argmax(lives.free[rows])]) if len(rows) else -1


def _replaced(window: Window, own: Bools, size: int, result: int) -> int:
    """What the name had before: it goes as soon as the result is there. -1 where it stays."""
    lives = window.lives
    alloc = int(lives.alloc[result])
    following = np.sort(lives.alloc[lives.alloc > alloc])[:_MOST_AFTER]
    until = int(following[-1]) if len(following) else window.events
    before = ~own & (lives.alloc < alloc) & (lives.requested == size)
    gone = np.flatnonzero(before & (lives.free > alloc) & (lives.free <= until))
    return int(gone[-1]) if len(gone) == 1 else -1


RULE = OutOfPlaceRule()
