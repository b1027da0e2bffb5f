"""Whether whole rows are sorted for nothing but the ranks of a few of their values."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from memprof.source_code.idioms import keyword
from memprof.source_code.program import (
    Place,
    bound_names,
    called_name,
    own_calls,
)
from memprof.source_code.scopes import nodes_around, reads_of_binding

__all__ = ["Ranking", "ranking"]

_SORTS = ("argsort", "sort")
_TAKING = frozenset(("gather", "take_along_dim"))
_MOST_NAMES = 4
"""That are followed, one bound to what is made of the next."""
_TORCH = "torch"
_DESCENDING_AT = 1
"""Where a method takes it, behind the dimension; a function takes the tensor first."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """What is sorted for its ranks."""

    places: tuple[Place, ...]
    """The statements that sort."""
    values: ast.expr
    """What is sorted: ``scores``."""
    taken: ast.Call | None = None
    """``ranks.gather(1, target)``, where that is the only read, of the order's order."""
    is_descending: bool | None = False
    """None where it is chosen as the program runs."""


@dataclass(slots=True)
class _Uses:
    """What becomes of an order, as far as it was followed."""

    places: list[Place]
    takings: list[ast.Call]
    is_other: bool = False
    """Something else is done with it as well."""
    is_compared: bool = False


def ranking(place: Place) -> Ranking | None:
    """What a statement sorts only to know ranks; None where its order is for anything else.

    By the order's own order, of which some are taken: ``scores.argsort(1).argsort(1)``. Or by where
    in an order a number stands: ``(order == target).nonzero()``.
    """
    sorts = own_calls(place.statement, *_SORTS)
    inner = [call for call in sorts if not any(_is_order(one) for one in _subjects(call))]
    if len(inner) != 1:
        return None
    values = _subject(inner[0])
    uses = _Uses([place], [])
    _follow(place, inner[0], called_name(inner[0]) == "argsort", 1, uses, _MOST_NAMES)
    if values is None or uses.is_other or not (uses.is_compared or uses.takings):
        return None
    return Ranking(
        tuple(uses.places),
        values,
        uses.takings[0] if len(uses.takings) == 1 and not uses.is_compared else None,
        _is_descending(inner[0]),
    )


def _subjects(call: ast.Call) -> list[ast.expr]:
    subject = _subject(call)
    return [subject] if subject is not None else []


def _subject(call: ast.Call) -> ast.expr | None:
    """What a method is called on, or torch's function is given first."""
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    if receiver is not None and not (isinstance(receiver, ast.Name) and receiver.id == _TORCH):
        return receiver
    return next(iter(call.args), None)


def _is_order(value: ast.expr) -> bool:
    """Whether an expression is the order that a sort returns."""
    if isinstance(value, ast.Subscript):
        return called_name(value.value) == "sort" and _is_second(value)
    if isinstance(value, ast.Attribute):
        return called_name(value.value) == "sort" and value.attr == "indices"
    return called_name(value) == "argsort"


def _is_second(item: ast.Subscript) -> bool:
    return isinstance(item.slice, ast.Constant) and item.slice.value == 1


def _follow(
    place: Place, value: ast.expr, is_order: bool, times: int, uses: _Uses, names: int
) -> None:
    """Go from what a sort returns to what reads it.

    Args:
        place: the statement that the value stands in.
        value: an expression of it.
        is_order: whether it is an order already, and not values and order together.
        times: how often it was sorted.
        uses: what has been found so far, which grows.
        names: how many more names may be followed.
    """
    around = nodes_around(place.statement, value)
    parent = around[-1]
    outer = around[-2] if len(around) > 1 else parent
    call = outer if isinstance(parent, ast.Attribute) and _calls(outer, parent) else None
    if isinstance(parent, ast.Call) and value in parent.args[:1]:
        call = parent
    if not is_order and isinstance(parent, (ast.Subscript, ast.Attribute)) and _is_order(parent):
        _follow(place, parent, True, times, uses, names)
    elif isinstance(call, ast.Call) and is_order:
        _follow_call(place, call, times, uses, names)
    elif isinstance(parent, ast.Compare) and is_order:
        is_equal = all(isinstance(one, ast.Eq) for one in parent.ops)
        uses.is_compared |= is_equal
        uses.is_other |= not is_equal
    elif isinstance(parent, ast.Subscript) and parent.value is value and is_order:
        _follow_item(place, parent, times, uses)
    elif isinstance(parent, ast.Assign) and parent.value is value and names:
        _follow_names(place, is_order, times, uses, names - 1)
    else:
        uses.is_other = True


def _calls(call: ast.AST, function: ast.expr) -> bool:
    return isinstance(call, ast.Call) and call.func is function


def _follow_call(place: Place, call: ast.Call, times: int, uses: _Uses, names: int) -> None:
    name = called_name(call)
    if name == "argsort" and times == 1:
        if place not in uses.places:
            uses.places.append(place)
        _follow(place, call, True, times + 1, uses, names)
    elif name in _TAKING and times > 1:
        uses.takings.append(call)
    elif name == "eq":
        uses.is_compared = True
    else:
        uses.is_other = True


def _follow_item(place: Place, item: ast.Subscript, times: int, uses: _Uses) -> None:
    """One rank for each row (``ranks[rows, target]``), or a row of an order, which is compared.

    The first few of an order, ``order[:, :10]``, are no rank: `torch.topk` takes them.
    """
    if times > 1:
        is_of_both = isinstance(item.slice, ast.Tuple) and not any(
            isinstance(one, ast.Slice) for one in item.slice.elts
        )
        uses.is_other |= not is_of_both
        uses.is_compared |= is_of_both
        return
    parent = nodes_around(place.statement, item)[-1]
    entries = item.slice.elts if isinstance(item.slice, ast.Tuple) else [item.slice]
    is_whole = all(one.lower is one.upper is None for one in entries if isinstance(one, ast.Slice))
    is_equal = isinstance(parent, ast.Compare) and all(isinstance(o, ast.Eq) for o in parent.ops)
    if is_whole and is_equal:
        uses.is_compared = True
    else:
        uses.is_other = True


def _follow_names(place: Place, is_order: bool, times: int, uses: _Uses, names: int) -> None:
    """Go on at the reads of what a statement binds: of ``values, order = x.sort()`` the second."""
    targets = bound_names(place.statement)
    if not is_order:
        if len(targets) != len(("values", "order")):
            uses.is_other = True
            return
        first = targets[0]
        uses.is_other |= not isinstance(first, ast.Name) or bool(_reads(place, first.id))
        targets = targets[1:]
    if len(targets) != 1 or not isinstance(targets[0], ast.Name):
        uses.is_other = True
        return
    reads = _reads(place, targets[0].id)
    uses.is_other |= not reads
    for at, read in reads:
        _follow(at, read, True, times, uses, names)


def _reads(place: Place, name: str) -> list[tuple[Place, ast.Name]]:
    """The reads of a variable that a statement binds, each with its own statement."""
    reads = reads_of_binding(place.scope, name, place.line)
    with_places = [(place.program.place(read), read) for read, _ in reads]
    return [(at, read) for at, read in with_places if at is not None]


def _is_descending(call: ast.Call) -> bool | None:
    """Whether a sort begins with the largest; None where that is no constant."""
    given = keyword(call, "descending")
    is_function = call.args[:1] == _subjects(call)
    at = _DESCENDING_AT + int(is_function)
    if given is None and len(call.args) > at:
        given = call.args[at]
    if given is None:
        return False
    return bool(given.value) if isinstance(given, ast.Constant) else None
