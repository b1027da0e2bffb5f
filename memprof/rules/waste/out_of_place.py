"""out-of-place: a large tensor is computed anew from itself, and nothing reads the old one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, arguments, calls_in, place_of
from memprof.trace import EMPTY, Category, Phase
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak, that one of the tensors has."""
_LEAST_SAVED = 0.25
"""Of the peak."""
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
        place = place_of(frames[0]) if frames else None
        computed = _computed(place) if place is not None else None
        if place is None or computed is None:
            return
        lives = window.lives
        own = _made_by(window, place) & (lives.alloc >= 0) & ~window.has_owner
        own &= (window.phase == Phase.OTHER) & (window.category != Category.ACTIVATION)
        there = np.flatnonzero(own & window.at_peak)
        if not len(there):
            return
        size = int(lives.requested[there].max())
        there = there[lives.requested[there] == size]
        result = _result(window, own, size)
        old = _replaced(window, own, size, result) if result >= 0 else -1
        if old < 0 or window.share(size) < _LEAST_SHARE:
            return
        temporaries = np.setdiff1d(np.flatnonzero(own & (lives.requested == size)), [result])
        whole = window.whole(temporaries)
        ended = window.ended_at(np.array([old]), np.array([lives.alloc[result]]))
        saving = window.replayed(Cuts.joined(whole, ended))
        if window.share(saving.bytes) < _LEAST_SAVED:
            return
        rows = np.union1d(there, [old])
        yield OutOfPlace(
            row=int(there[-1]),
            rows=rows,
            nbytes=int(lives.size[rows].sum()),
            saving=saving,
            name=computed[0],
            instead=computed[1],
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
        yield Advice("in_place", why, case.site, typed=match.instead)


def _computed(place: Place) -> tuple[str, str] | None:
    """The name that a statement computes from itself, and how that is done in place."""
    statement = place.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    name = ast.unparse(statement.targets[0])
    steps: list[_Operation] = []
    node = statement.value
    while (operation := _operation(node)) is not None:
        steps.append(operation)
        node = operation.of
    if not steps or ast.unparse(node) != name:
        return None
    steps.reverse()
    reads_again = any(_reads(one, name) for step in steps[1:] for one in step.given)
    shows = any(_shows(one, name) for one in steps[0].given)
    calls = "".join(f".{step.method}({step.text})" for step in steps)
    return name, "" if reads_again or shows else f"{name}{calls}"


def _operation(node: ast.expr) -> _Operation | None:
    """What an operator, or a method that computes value by value, does; None for others."""
    if isinstance(node, ast.BinOp) and type(node.op) in _IN_PLACE:
        return _Operation(
            node.left, _IN_PLACE[type(node.op)], (node.right,), ast.unparse(node.right)
        )
    function = node.func if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or not isinstance(function, ast.Attribute):
        return None
    if function.attr not in _METHODS:
        return None
    text = ", ".join(map(ast.unparse, [*node.args, *node.keywords]))
    return _Operation(function.value, f"{function.attr}_", tuple(arguments(node)), text)


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


def _made_by(window: Window, place: Place) -> Bools:
    """Per lifetime: whether a statement made it."""
    own = np.array(
        [
            frame.filename == place.program.filename and frame.line in place.lines
            for frame in window.owners.sites.frames
        ]
    )
    made: Bools = own[window.site]
    return made


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
