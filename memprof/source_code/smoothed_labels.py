"""Labels that a function smooths by a table of a value for each class, for a loss that sums it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from memprof.source_code.idioms import without_casts
from memprof.source_code.program import Place, assigned, bound_names, called_name, calls_in
from memprof.source_code.values import values_of

__all__ = ["SmoothedLabels", "smoothed_labels"]

_FILLED = frozenset(("full", "full_like", "new_full", "new_zeros", "zeros", "zeros_like"))
"""What makes a table of one value, into which `scatter_` writes another for each row."""
_WRITING = frozenset(("scatter", "scatter_"))
_LOG_PROBABILITIES = "log_softmax"
_SMOOTHING = (ast.Mult, ast.Add, ast.Sub, ast.Div)


@dataclass(frozen=True, slots=True, eq=False)
class SmoothedLabels:
    """The statements that make the table, and the one that multiplies it with log-probabilities."""

    making: tuple[ast.stmt, ...]
    reading: ast.stmt


def smoothed_labels(place: Place) -> SmoothedLabels | None:
    """``wanted = one_hot(y) * (1 - e) + e / n; (wanted * x.log_softmax(-1)).sum(-1)``.

    Also by ``torch.full(…).scatter_(1, y, 1 - e)``. None where the function around ``place`` does
    no such thing, or reads the table at another place as well.
    """
    making: dict[int, ast.stmt] = {}
    tables: set[str] = set()
    filled: set[str] = set()
    is_smoothed = False
    statements = sorted(_simple_statements(place), key=lambda one: one.lineno)
    for statement in statements:
        names = {one.id for one in bound_names(statement) if isinstance(one, ast.Name)}
        value = _value(statement)
        inner = without_casts(value)
        if names and _is_table(inner, filled):
            tables |= names
            is_smoothed |= inner is not None and called_name(inner) in _WRITING
        elif names and _is_filled(inner):
            filled |= names
        elif names and _smooths(inner, tables):
            tables |= names
            is_smoothed |= isinstance(inner, ast.BinOp)
        elif not (isinstance(statement, ast.Expr) and _writes_into(inner, filled)):
            continue
        else:
            tables |= filled & _names(inner)
            is_smoothed = True
        making[id(statement)] = statement
    if not is_smoothed or not tables:
        return None
    reading = [one for one in statements if id(one) not in making and tables & _names(one)]
    if len(reading) != 1 or not _weighs_log_probabilities(place, reading[0], tables):
        return None
    return SmoothedLabels(tuple(making.values()), reading[0])


def _simple_statements(place: Place) -> list[ast.stmt]:
    nodes = (node for node in ast.walk(place.scope) if isinstance(node, ast.stmt))
    return [node for node in nodes if isinstance(node, (ast.Assign, ast.Expr, ast.Return))]


def _value(statement: ast.stmt) -> ast.expr | None:
    pairs = list(assigned(statement))
    if len(pairs) == 1:
        return pairs[0][1]
    return statement.value if isinstance(statement, ast.Expr) else None


def _is_table(value: ast.expr | None, filled: set[str]) -> bool:
    if not isinstance(value, ast.Call):
        return False
    receiver = without_casts(value.func.value) if isinstance(value.func, ast.Attribute) else None
    if called_name(value) in _WRITING:
        return _is_filled(receiver) or (isinstance(receiver, ast.Name) and receiver.id in filled)
    return called_name(value) == "one_hot"


def _is_filled(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and called_name(value) in _FILLED


def _smooths(value: ast.expr | None, tables: set[str]) -> bool:
    """Whether a value is a table, or what numbers make of one."""
    value = without_casts(value)
    if isinstance(value, ast.BinOp) and isinstance(value.op, _SMOOTHING):
        return _smooths(value.left, tables) != _smooths(value.right, tables)
    return (isinstance(value, ast.Name) and value.id in tables) or _is_table(value, set())


def _writes_into(value: ast.expr | None, filled: set[str]) -> bool:
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    receiver = value.func.value
    return called_name(value) in _WRITING and bool(_names(receiver) & filled)


def _weighs_log_probabilities(place: Place, statement: ast.stmt, tables: set[str]) -> bool:
    """Whether ``(table * log_p).sum(…)`` is what a statement does with a table."""
    for total in calls_in(statement, "sum"):
        receiver = total.func.value if isinstance(total.func, ast.Attribute) else None
        for summed in (receiver, *total.args[:1]):
            product = summed.operand if isinstance(summed, ast.UnaryOp) else summed
            if not isinstance(product, ast.BinOp) or not isinstance(product.op, ast.Mult):
                continue
            sides = [_without_sign(one) for one in (product.left, product.right)]
            weights = [one for one in sides if isinstance(one, ast.Name) and one.id in tables]
            others = [one for one in sides if not any(one is weight for weight in weights)]
            if len(weights) == 1 and _is_log_probability(place, others[0]):
                return True
    return False


def _without_sign(value: ast.expr) -> ast.expr:
    return value.operand if isinstance(value, ast.UnaryOp) else value


def _is_log_probability(place: Place, value: ast.expr) -> bool:
    values = list(values_of(place, value.id)) if isinstance(value, ast.Name) else [value]
    return bool(values) and all(
        isinstance(one, ast.Call) and called_name(one) == _LOG_PROBABILITIES for one in values
    )


def _names(node: ast.AST | None) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} if node else set()
