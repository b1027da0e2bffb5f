"""Where a program searches through all that a container has, by products with each of its items."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.source_code.idioms import growing
from memprof.source_code.program import Place, calls_in

__all__ = ["searching_lines"]

_PRODUCTS = ("bmm", "cdist", "cosine_similarity", "einsum", "matmul", "mm")


def searching_lines(place: Place) -> frozenset[int]:
    """Lines of the file that multiply with every item of the container that a statement fills.

    None of a loop that a match ends: that looks for an answer that is kept, as a cache does.
    ``for keys in self.shards: scores = queries @ keys.T``. Of an attribute of ``self`` anywhere in
    its class, of a variable in its own function. Empty where there are none.
    """
    filling = growing(place)
    if filling is None:
        return frozenset()
    name = filling.container
    classes = [node for node in place.around if isinstance(node, ast.ClassDef)]
    if name.isidentifier():
        scope: ast.AST = place.scope
    elif name.startswith("self.") and classes:
        scope = classes[-1]
    else:
        return frozenset()
    lines: set[int] = set()
    for targets, iterated, body in _loops(scope):
        is_read = any(ast.unparse(node) == name for node in ast.walk(iterated))
        names = {node.id for node in ast.walk(targets) if isinstance(node, ast.Name)}
        if is_read:
            lines.update(line for part in body for line in _products_with(part, names))
    return frozenset(lines)


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


def _products_with(node: ast.AST, names: set[str]) -> Iterator[int]:
    """Lines of products of matrices that have one of some variables as a factor."""
    products: list[ast.BinOp | ast.Call] = [
        one
        for one in ast.walk(node)
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.MatMult)
    ]
    products += calls_in(node, *_PRODUCTS)
    for product in products:
        read = {one.id for one in ast.walk(product) if isinstance(one, ast.Name)}
        if read & names:
            yield from range(product.lineno, (product.end_lineno or product.lineno) + 1)
