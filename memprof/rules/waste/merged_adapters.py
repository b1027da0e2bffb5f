"""merged-adapters: a layer adds the product of two small matrices to its weights in each call."""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import (
    Place,
    bound_names,
    called_name,
    calls_in,
    nodes_of,
    place_of,
)
from memprof.source_code.scopes import parameters
from memprof.source_code.torch_modes import is_under_no_grad
from memprof.source_code.values import returned_by, values_of
from memprof.trace import SURVIVOR_AGE, Category, Frame
from memprof.units import format_bytes
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, in merged weights at one line."""
_PRODUCTS = frozenset(("einsum", "matmul", "mm"))
_ADDING = "addmm"
"""Adds a product of two matrices to its first argument."""
_DEEPEST = 4
"""Names and methods that stand for one another, until they are given up."""
_PARAMETRIZE = "/torch/nn/utils/parametrize.py"
"""Calls a module with the weight that another one has."""


@dataclass(frozen=True, slots=True, eq=False)
class MergedWeights(Match):
    """The product, as it is written."""

    product: str = ""


class MergedAdapters(WasteRule[MergedWeights]):
    """`F.linear(x, self.base.weight + self.scale * (self.b @ self.a))`: LoRA by hand."""

    name = "merged-adapters"
    summary = "in each call a layer adds the product of two small matrices to its weights"
    fixes = ("apply_factors",)
    other_operators = True

    def matches(self, window: Window) -> Iterator[MergedWeights]:
        """What is as large as a weight of the same layer, of a line that adds such a product."""
        if window.peak.event < 0:
            return
        lives = window.lives
        brief = ~window.has_owner & (window.freed_in - window.made_in < SURVIVOR_AGE)
        weights = _sizes_of_weights(window)
        as_large = brief & (lives.alloc >= 0) & np.isin(lives.requested, list(weights))
        for site in window.large_sites(as_large & window.at_peak, _LEAST_SHARE):
            place, product = _adding(window, window.largest(as_large & (window.site == site)))
            # Nothing is kept for a backward pass of what a method computes of them under no_grad.
            if place is None or product is None or is_under_no_grad(place):
                continue
            of_site = as_large & (window.site == site)
            there = of_site & window.at_peak
            modules = np.unique(window.module[of_site])
            every = as_large & np.isin(window.module, modules)
            every &= np.isin(lives.requested, np.unique(lives.requested[of_site]))
            yield MergedWeights(
                row=window.largest(there),
                rows=np.flatnonzero(there),
                nbytes=window.bytes_of(there),
                saving=window.replayed(window.whole(np.flatnonzero(every))),
                product=ast.unparse(product),
            )
            return

    def title(self, match: MergedWeights) -> str:
        """Say what was added."""
        return f"are weights to which each call adds `{match.product}`"

    def advice(self, match: MergedWeights, case: Case) -> Iterator[Advice]:
        """Multiply by the factors."""
        why = (
            f"{format_bytes(match.nbytes)} are as large as the weights themselves, kept for the "
            f"backward pass: give the input to the weights and to both factors of "
            f"`{match.product}`, one after the other, and add the results."
        )
        yield Advice("apply_factors", why, case.site)


def _sizes_of_weights(window: Window) -> set[int]:
    """Bytes of each parameter and buffer."""
    of_modules: Bools = np.isin(window.category, (Category.PARAMETER, Category.BUFFER))
    return set(window.lives.requested[of_modules].tolist())


def _adding(window: Window, row: int) -> tuple[Place | None, ast.expr | None]:
    """The statement of a layer that makes a row, and the product that it adds to a weight, if any.

    It may have a function do so, to which it hands the weight and both factors.
    """
    stack = window.stack(row)
    places = [place_of(frame) for frame in window.user_frames(stack)[:2]]
    place = places[0] if places else None
    if place is None:
        return None, None
    if place.class_ is None and place.function is not None:
        calling = places[1] if len(places) > 1 else None
        place = _as_in_caller(place, calling) if calling is not None else None
        return (place, _product(place)) if place is not None else (None, None)
    product = _product(place)
    if product is None and any(_is_parametrization(frame) for frame in stack):
        given = {one for one in parameters(place.scope) if one != "self"}
        product = _product(place, given)
    return place, product


def _is_parametrization(frame: Frame) -> bool:
    return frame.filename.replace("\\", "/").endswith(_PARAMETRIZE)


def _as_in_caller(place: Place, calling: Place) -> Place | None:
    """What a function returns, with what its caller hands it in the place of its parameters."""
    function = place.function
    calls = calls_in(calling.statement, function.name) if function is not None else []
    if function is None or len(calls) != 1 or any(one.arg is None for one in calls[0].keywords):
        return None
    given = dict(zip(parameters(function), calls[0].args, strict=False))
    given |= {one.arg: one.value for one in calls[0].keywords if one.arg is not None}
    statement = _Handed(given).visit(copy.deepcopy(place.statement))
    return Place(calling.program, ast.copy_location(statement, calling.statement), calling.around)


class _Handed(ast.NodeTransformer):
    """Puts what a function is handed in the place of its parameters."""

    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        self._given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return what a name stands for in the caller."""
        is_read = isinstance(node.ctx, ast.Load)
        return self._given.get(node.id, node) if is_read else node


def _product(place: Place, given: Collection[str] = ()) -> ast.expr | None:
    """The product of two matrices of ``self`` that a statement of a layer adds to a weight.

    Which may be one that it is ``given``, as a parametrization is.
    """

    def is_weight(node: ast.expr) -> bool:
        if isinstance(node, ast.Name) and node.id not in given:
            values = [one for one in values_of(place, node.id, place.statement) if one is not None]
            return bool(values) and any(map(_is_of_module, values))
        return _is_of_module(node) or (isinstance(node, ast.Name) and node.id in given)

    if place.class_ is None or place.function is None or place.function.name == "__init__":
        return None
    for node in ast.walk(place.statement):
        if isinstance(node, ast.Call) and called_name(node) == _ADDING and node.args:
            adds_to_weight = is_weight(node.args[0]) and _is_of_self(node)
            return node if adds_to_weight else None
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            continue
        for weight, other in ((node.left, node.right), (node.right, node.left)):
            product = _product_in(place, other) if is_weight(weight) else None
            if product is not None:
                return product
    names = [one for one in bound_names(place.statement) if isinstance(one, ast.Name)]
    own = _product_in(place, getattr(place.statement, "value", None))
    if own is None or len(names) != 1:
        return None
    adds = (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add)
        and any(map(is_weight, (node.left, node.right)))
        and any(isinstance(one, ast.Name) and one.id == names[0].id for one in ast.walk(node))
        for node in nodes_of(place.function)
    )
    return own if any(adds) else None


def _is_of_module(node: ast.expr) -> bool:
    """``self.weight``, or ``self.base.weight``: what a statement makes has the size of one."""
    return isinstance(node, ast.Attribute) and ast.unparse(node).startswith("self.")


def _product_in(place: Place, node: ast.expr | None, depth: int = _DEEPEST) -> ast.expr | None:
    """The product in an expression, in what its one variable stands for, or a method returns.

    Names and methods may stand for one another in turn: no more than ``depth`` are followed.
    """
    if depth < 0:
        return None
    for part in ast.walk(node) if node is not None else ():
        is_product = isinstance(part, ast.BinOp) and isinstance(part.op, ast.MatMult)
        if (is_product or called_name(part) in _PRODUCTS) and _is_of_self(part):
            assert isinstance(part, ast.expr)
            return part
        if isinstance(part, ast.Name):
            values = [one for one in values_of(place, part.id, place.statement) if one is not None]
            inner = _product_in(place, values[0], depth - 1) if len(values) == 1 else None
            if inner is not None:
                return inner
        for at, value in returned_by(place, part):
            is_other = at.function is not place.function
            inner = _product_in(at, value, depth - 1) if is_other else None
            if inner is not None:
                return inner
    return None


def _is_of_self(product: ast.AST) -> bool:
    """Whether both factors are attributes, transposed or not."""
    attributes = {
        ast.unparse(one)
        for one in ast.walk(product)
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name)
    }
    return sum(text.startswith("self.") for text in attributes) >= 2


RULE = MergedAdapters()
