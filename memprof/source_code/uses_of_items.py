"""Where a program uses every item of a container: multiplies with each, or calls each."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from memprof.source_code.idioms import growing
from memprof.source_code.program import Place, called_name, calls_in, root_name

__all__ = ["calling_lines", "searching_lines"]

_PRODUCTS = (
    *("bmm", "cdist", "cosine_similarity", "dot", "einsum", "inner", "matmul", "mm", "mv"),
    *("tensordot", "vdot", "vecdot"),
)
_CHOOSING = ("choice", "choices", "islice", "nlargest", "nsmallest", "sample")
"""Functions that give some of a container's items."""

_Uses = Callable[[ast.AST, set[str]], Iterator[ast.AST]]
"""The nodes in a loop's body that use one of its variables."""


def searching_lines(place: Place) -> frozenset[int]:
    """Lines of the file that multiply with every item of the container that a statement fills.

    None of a loop that a match ends: that looks for an answer that is kept, as a cache does.
    ``for keys in self.shards: scores = queries @ keys.T``. Of an attribute of ``self`` anywhere in
    its class, of a variable in its own function, and in functions that are given it. Empty where
    there are none.
    """
    return _lines_of_loops(place, _products_with)


def calling_lines(place: Place) -> frozenset[int]:
    """The same of lines that call every item, as an ensemble of models does: ``member(x)``."""
    return _lines_of_loops(place, _calls_of)


def _lines_of_loops(place: Place, uses: _Uses) -> frozenset[int]:
    filling = growing(place)
    if filling is None:
        return frozenset()
    return frozenset(
        line
        for scope, name in _scopes_of(place, filling.container)
        for targets, iterated, body in _loops(scope)
        if _goes_through(iterated, name)
        for part in body
        for use in uses(part, {n.id for n in ast.walk(targets) if isinstance(n, ast.Name)})
        for line in _lines(use)
    )


def _scopes_of(place: Place, name: str) -> Iterator[tuple[ast.AST, str]]:
    """Where a container is known, and by what name there."""
    classes = [node for node in place.around if isinstance(node, ast.ClassDef)]
    if name.startswith("self.") and classes:
        yield classes[-1], name
    elif name.isidentifier():
        yield place.scope, name
        for call in calls_in(place.scope):
            at = next((n for n, one in enumerate(call.args) if _is_name(one, name)), -1)
            for function in place.program.functions(called_name(call)) if at >= 0 else ():
                parameters = [one.arg for one in function.args.args if one.arg != "self"]
                if at < len(parameters):
                    yield function, parameters[at]


def _goes_through(iterated: ast.expr, name: str) -> bool:
    """Whether a loop goes through all of a container: itself, ``zip(xs, ys)``, ``xs.values()``.

    None of ``xs[-3:]`` and ``random.sample(xs, 2)``: the others may be needed by nobody.
    """
    parts = list(ast.walk(iterated))
    taken = (one.value for one in parts if isinstance(one, ast.Subscript))
    is_part = any(ast.unparse(one) == name for one in taken)
    if is_part or any(called_name(one) in _CHOOSING for one in parts):
        return False
    return any(ast.unparse(one) == name for one in parts)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _lines(node: ast.AST) -> range:
    assert isinstance(node, ast.expr)
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _loops(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, list[ast.AST]]]:
    """Loops and comprehensions: their targets, what they go through, and what they do."""
    for node in ast.walk(scope):
        if isinstance(node, (ast.For, ast.AsyncFor)) and not _ends_early(node):
            yield node.target, node.iter, list(node.body)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            for one in node.generators:
                yield one.target, one.iter, [node.elt]


def _ends_early(loop: ast.For | ast.AsyncFor) -> bool:
    return any(isinstance(one, (ast.Return, ast.Break)) for one in ast.walk(loop))


def _products_with(node: ast.AST, names: set[str]) -> Iterator[ast.AST]:
    """Products of matrices or vectors that have one of some variables as a factor."""
    products: list[ast.BinOp | ast.Call] = [
        one
        for one in ast.walk(node)
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.MatMult)
    ]
    products += calls_in(node, *_PRODUCTS)
    for product in products:
        read = {one.id for one in ast.walk(product) if isinstance(one, ast.Name)}
        if read & names:
            yield product


def _calls_of(node: ast.AST, names: set[str]) -> Iterator[ast.AST]:
    """Calls of one of some variables, of a method of it or of a part."""
    yield from (call for call in calls_in(node) if root_name(call.func) in names)
