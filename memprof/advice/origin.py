"""What the program says that a value is made of: where it is sure, and only there."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memprof.advice.source import OPTIMIZERS, is_cut_off, keyword
from memprof.analysis.program import (
    FUNCTIONS,
    Place,
    Program,
    assigned,
    bound_names,
    called_name,
    calls_in,
)

__all__ = ["is_fresh_tensor", "takes_no_gradient", "trains_besides", "values_of"]

_FACTORIES = frozenset(
    (
        *("arange", "as_tensor", "empty", "empty_like", "eye", "from_numpy", "full", "full_like"),
        *("linspace", "ones", "ones_like", "rand", "rand_like", "randint", "randn", "randn_like"),
        *("randperm", "tensor", "zeros", "zeros_like"),
    )
)
"""Functions of torch that return a tensor without a graph."""
_KEEPING = frozenset(
    (
        *("bfloat16", "bool", "clone", "contiguous", "cpu", "cuda", "double", "expand", "flatten"),
        *("float", "half", "int", "long", "permute", "repeat", "reshape", "squeeze", "to"),
        *("transpose", "unsqueeze", "view"),
    )
)
"""Methods of tensors whose result is a tensor of the same numbers."""


def is_fresh_tensor(place: Place, name: str, but: ast.stmt) -> bool:
    """Whether all that a name or attribute is bound to, by other statements than one, is fresh.

    So its value is a tensor, at the beginning at least. Attributes go by their last name.
    """
    values = list(values_of(place, name, but))
    return bool(values) and all(_is_fresh(value) for value in values)


def takes_no_gradient(programs: Sequence[Program], place: Place, call: ast.Call) -> bool:
    """Whether nothing that a call is given has a graph or takes a gradient, as far as is known."""
    if any(_asks_for_gradient(node) for program in programs for node in ast.walk(program.tree)):
        return False
    given = [*call.args, *(one.value for one in call.keywords)]
    return all(_has_no_graph(place, value) for value in given)


def trains_besides(programs: Sequence[Program], place: Place, call: ast.Call) -> bool:
    """Whether every backward pass of the function starts from what another, trained model made.

    That is one whose parameters an optimizer is given; so there is a graph without ``call``'s.
    """
    models = {
        ast.unparse(given.func.value).rpartition(".")[2]
        for program in programs
        for made in calls_in(program.tree, *OPTIMIZERS)
        for given in calls_in(made, "parameters")
        if isinstance(given.func, ast.Attribute)
    }
    models.discard(called_name(call))
    starts = calls_in(place.scope, "backward")
    return bool(starts) and all(models & set(_called(place, start)) for start in starts)


def _called(place: Place, start: ast.expr) -> Iterator[str]:
    """The last names of all that is called for a value, through the names it is made of."""
    waiting: list[ast.AST] = [start]
    seen: set[str] = set()
    while waiting:
        node = waiting.pop()
        yield from map(called_name, calls_in(node))
        read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - seen
        seen |= read
        for name in read:
            waiting += [value for value in values_of(place, name) if value is not None]


def _has_no_graph(place: Place, value: ast.expr) -> bool:
    if isinstance(value, ast.Constant) or _is_fresh(value) or is_cut_off(place, value):
        return True
    if not isinstance(value, ast.Name):
        return False
    values = list(values_of(place, value.id))
    whole = [one for one in values if one is not None]
    batches = len(values) - len(whole)
    if batches != len(list(_batches(place, value.id))):
        return False
    return bool(values) and all(_is_fresh(one) for one in whole)


def _batches(place: Place, name: str) -> Iterator[ast.stmt]:
    """Loops of the function over a ``DataLoader`` that bind a name."""
    for node in ast.walk(place.scope):
        if not isinstance(node, (ast.For, ast.AsyncFor)):
            continue
        if name not in map(ast.unparse, bound_names(node)):
            continue
        iterated = node.iter
        if isinstance(iterated, ast.Call) and called_name(iterated) == "enumerate":
            iterated = iterated.args[0] if iterated.args else iterated
        made = _everywhere(place, ast.unparse(iterated))
        if made and all(called_name(one) == "DataLoader" for one in made):
            yield node


def _everywhere(place: Place, name: str) -> list[ast.expr]:
    """What a name or attribute of that last name is assigned in the whole file."""
    last = name.rpartition(".")[2]
    nodes = [node for node in ast.walk(place.program.tree) if isinstance(node, ast.Assign)]
    return [
        node.value
        for node in nodes
        if any(ast.unparse(one).rpartition(".")[2] == last for one in bound_names(node))
    ]


def values_of(place: Place, name: str, but: ast.stmt | None = None) -> Iterator[ast.expr | None]:
    """What a name is bound to in its function, an attribute in the file; None: not in sight."""
    scope = place.program.tree if "." in name else place.scope
    if isinstance(scope, FUNCTIONS):
        spec = scope.args
        named = (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg)
        yield from (None for one in named if one is not None and one.arg == name)
    for node in ast.walk(scope):
        if node is not but:
            yield from _bound_by(node, name)


def _bound_by(node: ast.AST, name: str) -> Iterator[ast.expr | None]:
    """What a node binds a name to; None where that is not an assignment of its own."""
    last = name.rpartition(".")[2]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (None for one in node.names if (one.asname or one.name) == last)
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        yield from (None for one in node.names if one == last)
    if isinstance(node, (ast.NamedExpr, ast.comprehension)):
        yield from (None for one in ast.walk(node.target) if _is(one, name, last))
    if isinstance(node, ast.Call) and called_name(node) == "register_buffer":
        named = node.args[:1]
        if named and isinstance(named[0], ast.Constant) and named[0].value == last:
            yield from node.args[1:2]
    values = {id(target): value for target, value in assigned(node)}
    for target in bound_names(node):
        if _is(target, name, last):
            value = values.get(id(target)) if isinstance(node, ast.Assign) else None
            apart = isinstance(node, ast.Assign) and target not in node.targets
            yield None if apart and value is getattr(node, "value", None) else value


def _is(target: ast.AST, name: str, last: str) -> bool:
    if "." in name:
        return isinstance(target, ast.Attribute) and target.attr == last
    return isinstance(target, ast.Name) and target.id == name


def _is_fresh(value: ast.expr | None) -> bool:
    """``torch.zeros(…)``, on its way to a device or a shape, too."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    if value.func.attr in _KEEPING:
        return _is_fresh(value.func.value)
    of_torch = ast.unparse(value.func.value) == "torch"
    return of_torch and value.func.attr in _FACTORIES and not _requires(value)


def _requires(call: ast.Call) -> bool:
    asked = keyword(call, "requires_grad")
    unseen = any(one.arg is None for one in call.keywords)
    return unseen or not (asked is None or _is_false(asked))


def _is_false(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def _asks_for_gradient(node: ast.AST) -> bool:
    """``x.requires_grad_()``, ``requires_grad=True``, and reading ``.grad`` oneself."""
    if isinstance(node, ast.Call) and called_name(node) == "requires_grad_":
        return not (node.args and _is_false(node.args[0]))
    if isinstance(node, ast.keyword):
        return node.arg == "requires_grad" and not _is_false(node.value)
    if isinstance(node, ast.Assign):
        asked = [one for one in bound_names(node) if getattr(one, "attr", "") == "requires_grad"]
        return bool(asked) and not _is_false(node.value)
    if isinstance(node, ast.Attribute) and node.attr == "Parameter":
        return True
    if isinstance(node, ast.Attribute):
        return node.attr == "grad" and isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Name) and node.id == "Parameter"
