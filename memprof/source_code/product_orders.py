"""Products of matrices that are only factors of other products, and the same in another order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from memprof.source_code.einsums import Einsum, einsum_of, multiplied_last
from memprof.source_code.idioms import keyword
from memprof.source_code.program import (
    Place,
    assigned,
    called_name,
    loaded_names,
    nodes_of,
)
from memprof.source_code.scopes import nodes_around, reads_of
from memprof.source_code.values import values_of

__all__ = ["OtherOrder", "other_order"]

_PRODUCTS = frozenset(("bmm", "matmul", "mm", "mv"))
_LINEAR = "linear"
_SUM = "sum"
_SCALES = frozenset(("len", "numel", "sqrt"))
"""Calls that return a number."""
_SIZE, _SHAPE = "size", "shape"
_TURNED = frozenset(("T", "mT"))
_PROPERTY = "property"
_DEEPEST = 2
"""Methods that return a product, one of them that of another."""
_MOST_NAMES = 4
"""Names that a number has one after the other, until it is given up."""


class _Use(Enum):
    """What a product is multiplied as."""

    LEFT = auto()
    RIGHT = auto()
    OPERAND = auto()
    """Of an `einsum` that is not `@` of its operands."""
    WEIGHT = auto()
    """Of `F.linear`, which turns it."""
    SUMMED = auto()
    """Along a dimension: a product with ones."""


@dataclass(frozen=True, slots=True, eq=False)
class OtherOrder:
    """A product, and in which order the same comes of three factors."""

    product: str
    instead: str
    is_summed: bool
    """Sums along a dimension are read of it as well."""


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    """What reads a product."""

    value: ast.expr
    """The product, as it is written there."""
    use: _Use | None
    """None where it is for something else."""
    other: ast.expr | None = None
    """What it is multiplied with."""
    scale: str = ""
    """Numbers by which it is multiplied or divided until then: `` / len(k)``."""
    whole: Einsum | None = None
    """The `einsum` that multiplies it."""


def other_order(place: Place) -> OtherOrder | None:
    """The product that a statement makes, if it is only multiplied again: the same in other order.

    On the spot, by one name, or by a property or method of a class that returns it.
    """
    for node in ast.walk(place.statement):
        if not isinstance(node, ast.expr) or not _is_product(node):
            continue
        readers = list(_readers(place, node, node, 0))
        products = [one for one in readers if one.use is not _Use.SUMMED]
        if len(products) != 1 or any(one.use is None for one in readers):
            continue
        instead = _reordered(node, products[0])
        if instead:
            is_summed = len(readers) > len(products)
            return OtherOrder(ast.unparse(node), instead + products[0].scale, is_summed)
    return None


def _is_product(node: ast.AST) -> bool:
    whole = einsum_of(node)
    return _factors(node) is not None or (whole is not None and whole.is_product)


def _factors(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Both sides of a product of matrices; None where no ``@`` of two expressions is the same."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    whole = einsum_of(node)
    if whole is not None:
        return whole.factors
    if not isinstance(node, ast.Call) or called_name(node) not in _PRODUCTS:
        return None
    if len(node.args) == 1 and isinstance(node.func, ast.Attribute):
        return node.func.value, node.args[0]
    return (node.args[0], node.args[1]) if len(node.args) > 1 else None


def _readers(
    place: Place, value: ast.expr, product: ast.expr, depth: int, scale: str = ""
) -> Iterator[_Reader]:
    """What reads an expression of a statement, on the spot or by the one name that it binds."""
    statement = place.statement
    whole, around, more = _scaled(place, value, nodes_around(statement, value))
    scale += more
    if isinstance(statement, ast.Return) and statement.value is whole:
        yield from _readers_of_result(place, product, depth, scale)
        return
    if not (isinstance(statement, ast.Assign) and statement.value is whole):
        yield _reader(whole, around, scale)
        return
    names = [one.id for one in statement.targets if isinstance(one, ast.Name)]
    if len(names) != 1 or len(list(values_of(place, names[0]))) != 1:
        return
    for load, nodes in reads_of(place.scope, names[0]):
        read, beyond, more = _scaled(place, load, nodes)
        if isinstance(beyond[-1], ast.Return):
            yield from _readers_of_result(place, product, depth, scale + more)
        else:
            yield _reader(read, beyond, scale + more)


def _readers_of_result(
    place: Place, product: ast.expr, depth: int, scale: str
) -> Iterator[_Reader]:
    """What reads in its class what a method or a property returns, of attributes alone.

    So the factors have the same names there. Nothing where the method returns anything else.
    """
    function, class_ = place.function, place.class_
    if function is None or class_ is None or depth >= _DEEPEST:
        return
    whole = einsum_of(product)
    factors = whole.operands if whole is not None else _factors(product) or ()
    returns = [node for node in nodes_of(function) if isinstance(node, ast.Return)]
    if len(returns) != 1 or any(loaded_names(one) != {"self"} for one in factors):
        return
    decorators = set(map(ast.unparse, function.decorator_list))
    if decorators - {_PROPERTY}:
        return
    for node in nodes_of(class_):
        result = node if decorators else getattr(node, "func", None)
        if not isinstance(result, ast.Attribute) or result.attr != function.name:
            continue
        at = place.program.place(node)
        if ast.unparse(result.value) == "self" and at is not None and at.function is not function:
            assert isinstance(node, ast.expr)
            yield from _readers(at, node, product, depth + 1, scale)


def _scaled(
    place: Place, value: ast.expr, around: list[ast.AST]
) -> tuple[ast.expr, list[ast.AST], str]:
    """A value with the numbers that it is multiplied with or divided by, and what is around.

    And these numbers, as they would stand behind it: `` / len(k)``.
    """
    around, scale = list(around), ""
    while around and isinstance(around[-1], ast.BinOp):
        parent = around[-1]
        is_left = parent.left is value
        number = parent.right if is_left else parent.left
        divides = isinstance(parent.op, ast.Div) and is_left
        if not (divides or isinstance(parent.op, ast.Mult)) or not _is_number(place, number):
            break
        scale += f" {'/' if divides else '*'} {_factor(number)}"
        value = parent
        around.pop()
    return value, around, scale


def _is_number(place: Place, value: ast.expr, depth: int = 0) -> bool:
    """Whether an expression is a number by what it says, or by what its name is bound to."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, (int, float))
    if isinstance(value, ast.UnaryOp):
        return _is_number(place, value.operand, depth)
    if isinstance(value, ast.BinOp):
        is_power = isinstance(value.op, ast.Pow) and _is_number(place, value.right, depth)
        return is_power or all(_is_number(place, one, depth) for one in (value.left, value.right))
    if isinstance(value, ast.Subscript):
        return isinstance(value.value, ast.Attribute) and value.value.attr == _SHAPE
    if isinstance(value, (ast.Name, ast.Attribute)) and depth < _MOST_NAMES:
        return _is_bound_to_number(place, value, depth + 1)
    if not isinstance(value, ast.Call):
        return False
    return called_name(value) in _SCALES or (called_name(value) == _SIZE and bool(value.args))


def _is_bound_to_number(place: Place, name: ast.Name | ast.Attribute, depth: int) -> bool:
    """Whether an attribute of the class, or a parameter by its default, is a number."""
    if isinstance(name, ast.Name):
        default = _defaults(place.function).get(name.id)
        named = list(values_of(place, name.id)) if default is None else [default]
        return bool(named) and all(
            one is not None and _is_number(place, one, depth) for one in named
        )
    if place.class_ is None or ast.unparse(name.value) != "self":
        return False
    values = [
        (place.program.place(node), value)
        for node in nodes_of(place.class_)
        for target, value in assigned(node)
        if ast.unparse(target) == ast.unparse(name)
    ]
    return bool(values) and all(
        at is not None and value is not None and _is_number(at, value, depth)
        for at, value in values
    )


def _defaults(function: ast.FunctionDef | ast.AsyncFunctionDef | None) -> dict[str, ast.expr]:
    """What parameters of a function are where it is not given them."""
    if function is None:
        return {}
    spec = function.args
    names = [one.arg for one in (*spec.posonlyargs, *spec.args)]
    by_name = dict(zip(names[::-1], spec.defaults[::-1], strict=False))
    own = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    return by_name | {one.arg: default for one, default in own if default is not None}


def _reader(value: ast.expr, around: list[ast.AST], scale: str) -> _Reader:
    """What an expression is for what is around it, and what it is multiplied with."""
    parent = around[-1] if around else None
    whole = einsum_of(parent) if parent is not None else None
    if whole is not None:
        return _reader_by_einsum(value, whole, scale)
    factors = _factors(parent) if parent is not None else None
    turned, beyond = _turned_on_the_way(value, around)
    if turned is not value:
        outer = _reader(turned, beyond, scale)
        is_right = outer.use is _Use.RIGHT and outer.whole is None
        return _Reader(value, _Use.WEIGHT if is_right else None, outer.other, scale)
    if isinstance(parent, ast.Attribute) and len(around) > 1:
        call = around[-2]
        if parent.attr == _SUM and isinstance(call, ast.Call) and call.func is parent:
            use = _Use.SUMMED if call.args or call.keywords else None
            return _Reader(value, use, scale=scale)
        factors = _factors(call) if isinstance(call, ast.Call) and call.func is parent else None
    if factors is not None:
        left, right = factors
        if left is value:
            return _Reader(value, _Use.LEFT, right, scale)
        if right is value:
            return _Reader(value, _Use.RIGHT, left, scale)
        return _Reader(value, None)
    is_linear = isinstance(parent, ast.Call) and called_name(parent) == _LINEAR
    given = parent.args if isinstance(parent, ast.Call) and is_linear else []
    if len(given) > 1 and given[1] is value:
        assert isinstance(parent, ast.Call)
        return _Reader(value, _Use.WEIGHT, given[0], scale + _bias(parent))
    return _Reader(value, None)


def _turned_on_the_way(value: ast.expr, around: list[ast.AST]) -> tuple[ast.expr, list[ast.AST]]:
    """``value.T`` or ``value.t()`` where that is around a value, and what is around it then."""
    parent = around[-1] if around else None
    if isinstance(parent, ast.Attribute) and parent.attr in _TURNED:
        return parent, around[:-1]
    if isinstance(parent, ast.Attribute) and parent.attr == "t" and len(around) > 1:
        call = around[-2]
        return (call, around[:-2]) if isinstance(call, ast.Call) else (value, around)
    return value, around


def _bias(call: ast.Call) -> str:
    """What a call of `F.linear` adds, as it would stand behind a product: `` + self.bias``."""
    bias = keyword(call, "bias") or next(iter(call.args[2:]), None)
    is_none = bias is None or (isinstance(bias, ast.Constant) and bias.value is None)
    return f" + {_factor(bias)}" if bias is not None and not is_none else ""


def _reader_by_einsum(value: ast.expr, whole: Einsum, scale: str) -> _Reader:
    if not whole.is_product:
        return _Reader(value, None)
    at = 0 if whole.operands[0] is value else 1
    other = whole.operands[1 - at]
    left, right = whole.factors or (None, None)
    use = _Use.LEFT if left is value else _Use.RIGHT if right is value else _Use.OPERAND
    turned = (left if use is _Use.RIGHT else right) if use is not _Use.OPERAND else None
    return _Reader(value, use, turned if turned is not None else other, scale, whole)


def _reordered(product: ast.expr, reader: _Reader) -> str:
    """``a @ (b @ c)``, ``(c @ a) @ b`` or ``(x @ b.mT) @ a.mT``; the same by `einsum`.

    Empty where that cannot be written so.
    """
    first, factors = einsum_of(product), _factors(product)
    if factors is None or reader.use is _Use.OPERAND:
        if first is None or reader.whole is None or reader.other is None:
            return ""
        return multiplied_last(first, reader.whole, reader.value)
    if reader.other is None:
        return ""
    a, b = factors
    ours, theirs, third = (_factor(one) for one in (a, b, reader.other))
    if reader.use is _Use.LEFT:
        return f"{ours} @ ({theirs} @ {third})"
    if reader.use is _Use.RIGHT:
        return f"({third} @ {ours}) @ {theirs}"
    return f"({third} @ {_turned(b)}) @ {_turned(a)}"


def _factor(value: ast.expr) -> str:
    text = ast.unparse(value)
    plain = (ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.Subscript)
    is_plain = isinstance(value, plain)
    return text if is_plain else f"({text})"


def _turned(value: ast.expr) -> str:
    if isinstance(value, ast.Attribute) and value.attr in _TURNED:
        return _factor(value.value)
    return f"{_factor(value)}.mT"
