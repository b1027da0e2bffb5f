"""Matrices of edges that scores of all pairs of nodes are compared with by a loss."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.dataflow import Flow, FlowOf
from memprof.source_code.factors import Factor, matrices_of_pairs
from memprof.source_code.idioms import keyword
from memprof.source_code.program import FUNCTIONS, Place, Program, called_name
from memprof.source_code.scopes import Scopes, enclosing_function, parameters, syntax_of

__all__ = ["EdgeLabels", "edge_labels_of"]

_LOSSES = frozenset(("binary_cross_entropy", "binary_cross_entropy_with_logits"))
_LOSS_MODULES = frozenset(("BCELoss", "BCEWithLogitsLoss"))
_PRODUCTS = frozenset(("bmm", "matmul", "mm"))
_TRANSPOSING = frozenset(("T", "mT", "t", "transpose"))
_PAIR = 2
_CALLED = ("__call__", "forward")
"""Methods that run where an object is called: by no name that leads to them."""
_DECODER = "forward_all"
"""Of PyG's `InnerProductDecoder`: the scores of all pairs."""


@dataclass(frozen=True, slots=True)
class EdgeLabels:
    """One loss over all pairs of nodes."""

    labels: Factor
    """The matrix of edges."""
    scores: Flow
    """What comes of the products of all pairs, the scores among it."""
    loss: ast.Call
    products: tuple[ast.expr, ...]
    """The expressions that multiply all nodes by all."""

    def multiplies(self, place: Place | None) -> bool:
        """Whether a statement multiplies all nodes by all."""
        within = {id(node) for node in ast.walk(place.statement)} if place is not None else set()
        return any(id(one) in within for one in self.products)

    def is_of(self, place: Place) -> bool:
        """Whether a statement has the loss, one of the products, or what comes of either matrix."""
        if self.multiplies(place) or any(node is self.loss for node in ast.walk(place.statement)):
            return True
        scopes = tuple(node for node in place.around if isinstance(node, FUNCTIONS))
        value = getattr(place.statement, "value", None)
        is_scores = isinstance(value, ast.expr) and self.scores.carries(value, scopes)
        return is_scores or self.labels.is_made_by(place)


def edge_labels_of(programs: Sequence[Program]) -> Iterator[EdgeLabels]:
    """The losses of a program that compare the scores of all pairs with a matrix of edges."""
    source = syntax_of(tuple(sorted(programs, key=lambda program: program.filename)))
    products = [
        node for node, _ in source.nodes if isinstance(node, ast.expr) and _is_of_all_pairs(node)
    ]
    if not products:
        return
    made = _losses_made(programs)
    losses = [
        (node, scopes)
        for node, scopes in source.nodes
        if isinstance(node, ast.Call) and _is_loss(node, made)
    ]
    if not losses:
        return
    scores = FlowOf(source, through=True, origins=frozenset(map(id, products))).follow()
    for labels in matrices_of_pairs(programs):
        for call, scopes in losses:
            score, label = _argument(call, "input", 0), _argument(call, "target", 1)
            if not labels.carries(label, scopes):
                continue
            if scores.carries(score, scopes) or _is_given(score, scopes):
                yield EdgeLabels(labels, scores, call, tuple(products))


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    named = keyword(call, name)
    return named if named is not None else next(iter(call.args[position:]), None)


def _is_given(node: ast.expr | None, scopes: Scopes) -> bool:
    """Whether it is what the function is called with, as an object that is called may be."""
    function = enclosing_function(scopes)
    return (
        isinstance(node, ast.Name)
        and function is not None
        and function.name in _CALLED
        and node.id in parameters(function)
    )


def _is_of_all_pairs(node: ast.expr) -> bool:
    """``z @ z.t()``, ``torch.mm(z, z.T)``, ``z.matmul(z.transpose(0, 1))``, ``F.linear(z, z)``.

    And ``torch.einsum("id,jd->ij", z, z)``.
    """
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return _is_transpose_of(node.right, node.left)
    if not isinstance(node, ast.Call):
        return False
    name = called_name(node)
    if name == _DECODER:
        return True
    if name == "linear":
        return len(node.args) == _PAIR and _are_alike(*node.args)
    if name == "einsum":
        return _is_einsum_of_all_pairs(node)
    if name not in _PRODUCTS:
        return False
    factors = node.args
    receiver = _receiver(node)
    if len(factors) == 1 and receiver is not None:
        factors = [receiver, *factors]
    return len(factors) > 1 and _is_transpose_of(factors[1], factors[0])


def _is_einsum_of_all_pairs(call: ast.Call) -> bool:
    equation, *operands = call.args or [call]
    if not isinstance(equation, ast.Constant) or len(operands) != _PAIR:
        return False
    given, _, result = str(equation.value).replace(" ", "").partition("->")
    first, _, second = given.partition(",")
    of_both = set(first) & set(second)
    own = [[letter for letter in one if letter not in of_both] for one in (first, second)]
    return _are_alike(*operands) and all(own) and result == "".join(own[0] + own[1])


def _are_alike(one: ast.expr, other: ast.expr) -> bool:
    return ast.dump(one) == ast.dump(other)


def _is_transpose_of(node: ast.expr, other: ast.expr) -> bool:
    inner: ast.expr | None = None
    if isinstance(node, ast.Attribute) and node.attr in _TRANSPOSING:
        inner = node.value
    elif isinstance(node, ast.Call) and called_name(node) in _TRANSPOSING:
        inner = _receiver(node)
        if inner is None or (isinstance(inner, ast.Name) and inner.id == "torch"):
            inner = node.args[0] if node.args else None
    return inner is not None and _are_alike(inner, other)


def _losses_made(programs: Sequence[Program]) -> frozenset[str]:
    """The last names that a program gives to the modules: ``self.criterion = nn.BCELoss()``."""
    return frozenset(
        getattr(target, "attr", getattr(target, "id", ""))
        for program in programs
        for node in program.nodes
        if isinstance(node, ast.Assign) and called_name(node.value) in _LOSS_MODULES
        for target in node.targets
    )


def _is_loss(call: ast.Call, made: frozenset[str]) -> bool:
    """A call of the function, or of an object that the program makes of the module."""
    if called_name(call) in _LOSSES | made:
        return True
    return isinstance(call.func, ast.Call) and called_name(call.func) in _LOSS_MODULES


def _receiver(call: ast.Call) -> ast.expr | None:
    return call.func.value if isinstance(call.func, ast.Attribute) else None
