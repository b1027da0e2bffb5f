"""Which parts of a function do not run for a call: what the arguments that it gives decide."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from memprof.source_code.program import FUNCTIONS

__all__ = ["left_out", "never_run"]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def never_run(function: ast.AST, call: ast.Call, *, is_method: bool) -> set[ast.AST]:
    """The statements and expressions of ``function`` that ``call`` does not reach.

    ``if targets is None:`` is decided where the call gives no ``targets``, whose default is None,
    and nothing assigns it. What a call hands over by ``*`` or ``**`` decides nothing.
    """
    if not isinstance(function, FUNCTIONS):
        return set()
    values = left_out(function, call, is_method=is_method)
    dead: set[ast.AST] = set()
    if values:
        _look(function.body, values, dead)
    return dead


def left_out(function: Function, call: ast.Call, *, is_method: bool) -> dict[str, object]:
    """The constants that parameters have by their defaults in a call, by name.

    None of parameters that the function binds anew.
    """
    if any(isinstance(one, ast.Starred) for one in call.args):
        return {}
    if any(keyword.arg is None for keyword in call.keywords):
        return {}
    spec = function.args
    by_position = [one.arg for one in (*spec.posonlyargs, *spec.args)]
    given = set(by_position[: len(call.args) + is_method])
    given |= {str(keyword.arg) for keyword in call.keywords}
    given |= {one.id for one in _stored(function)}
    defaults = dict(zip(reversed(by_position), reversed(spec.defaults), strict=False))
    by_name = zip((one.arg for one in spec.kwonlyargs), spec.kw_defaults, strict=True)
    return {
        name: default.value
        for name, default in (*defaults.items(), *by_name)
        if isinstance(default, ast.Constant) and name not in given
    }


def _stored(function: Function) -> Iterator[ast.Name]:
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node


def _look(body: Sequence[ast.stmt], values: Mapping[str, object], dead: set[ast.AST]) -> bool:
    """Add what of a block does not run; whether nothing after it runs either."""
    for at, statement in enumerate(body):
        if _ends(statement, values, dead):
            dead.update(body[at + 1 :])
            return True
    return False


def _ends(statement: ast.stmt, values: Mapping[str, object], dead: set[ast.AST]) -> bool:
    if isinstance(statement, FUNCTIONS):
        return False
    if isinstance(statement, ast.If):
        is_true = _decided(statement.test, values)
        if is_true is None:
            ends = _look(statement.body, values, dead)
            return _look(statement.orelse, values, dead) and ends and bool(statement.orelse)
        dead.update(statement.orelse if is_true else statement.body)
        return _look(statement.body if is_true else statement.orelse, values, dead)
    blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    ended = [_look(block, values, dead) for block in blocks]
    blocks_below = [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
    for one in blocks_below:
        _look(one.body, values, dead)
    if not any(blocks):
        for node in ast.walk(statement):
            if isinstance(node, ast.IfExp):
                is_true = _decided(node.test, values)
                if is_true is not None:
                    dead.add(node.orelse if is_true else node.body)
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        return ended[0]
    return isinstance(statement, (ast.Return, ast.Raise))


def _decided(test: ast.expr, values: Mapping[str, object]) -> bool | None:
    """Whether a condition holds; None where what is known does not tell."""
    if isinstance(test, ast.Name):
        return bool(values[test.id]) if test.id in values else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _decided(test.operand, values)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [_decided(one, values) for one in test.values]
        ends_with = isinstance(test.op, ast.Or)
        if ends_with in parts:
            return ends_with
        return None if None in parts else not ends_with
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test.left, test.ops[0], test.comparators[0], values)
    return None


def _compared(
    left: ast.expr, operation: ast.cmpop, right: ast.expr, values: Mapping[str, object]
) -> bool | None:
    if not (isinstance(left, ast.Name) and left.id in values and isinstance(right, ast.Constant)):
        return None
    value, other = values[left.id], right.value
    if isinstance(operation, (ast.Eq, ast.NotEq)):
        return (value == other) is isinstance(operation, ast.Eq)
    if isinstance(operation, (ast.Is, ast.IsNot)):
        is_same = type(value) is type(other) and value == other  # ``False`` is not ``0``
        return is_same is isinstance(operation, ast.Is)
    return None
