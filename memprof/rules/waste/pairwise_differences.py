"""pairwise-differences: all differences of two sets of points are made for their distances."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from memprof.rules.case import Case
from memprof.rules.large_tensor import LargeTensor, large_tensor
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import (
    Place,
    arguments,
    called_name,
    loaded_names,
    place_of,
)
from memprof.source_code.values import last_binding, values_of
from memprof.trace import Phase
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_SUMS = frozenset(("mean", "norm", "vector_norm", "sum"))
"""What is left of the differences of two points is one number."""
_POWERS = frozenset(("abs", "pow", "sqrt", "square"))
"""What may be done with them before that."""
_ROOTS = frozenset(("abs", "norm", "pow", "square", "vector_norm"))
"""Without one of these a sum of differences is no distance."""
_SAME_PAIRS = frozenset(("contiguous", "expand", "expand_as", "repeat"))
"""What gives the turned operand the shape of all pairs, which it would have all the same."""
_OF_ROWS = frozenset(("0", "1", ":, None", ":, None, :", "None", "None, :", "None, :, :"))
"""How two tables of rows are turned: the differences have three dimensions."""
_SHAPED = ("reshape", "view")
"""Methods that are given a shape."""
_MOST_SHOWN = 4
"""Dimensions of a shape that is read as a turn."""
_OF_BATCHES = {"1", "2"}
"""How a batch of them is, by `unsqueeze`: they have four."""
_POINTS = frozenset(("0", "1"))
"""Dimensions of two sets of points, of three dimensions in all."""
_SUBTRACTING = frozenset(("sub", "subtract"))
"""Methods of tensors, and functions of torch."""
_OPERANDS = 2
_MOST_DIMENSIONS = 4096
_KEPT = 2
"""Times one value for each pair: what `cdist` saves for its gradient, and that of the distances."""


_SCALINGS = frozenset(("div", "mul", "multiply", "true_divide"))
_SCALES = (ast.Div, ast.Mult)
"""What may weigh the dimensions of the differences: the points' as well."""


@dataclass(frozen=True, slots=True, eq=False)
class Differences(Match):
    """What is done with them before they are summed up."""

    scale: str = ""
    """What each dimension is divided by or multiplied with, as it is written."""
    weights: str = ""
    """One number for each pair by which they are weighed and added up, as it is written."""


class PairwiseDifferences(WasteRule[Differences]):
    """``((a[:, None] - b[None]) ** 2).sum(-1)``: n · m · d values, of which n · m are left."""

    name = "pairwise-differences"
    summary = "all differences of two sets of points are made for their distances"
    fixes = ("cdist", "chunk")

    def matches(self, window: Window) -> Iterator[Differences]:
        """The large tensor of the peak: such differences, that nothing but a distance reads."""
        large = large_tensor(window)
        if large is None or large.place is None or window.phase[large.row] == Phase.BACKWARD:
            return
        pairs = _bytes_of_pairs(window, large.row)
        row, use = _subtracted_at(window, large) if pairs else (large.row, None)
        if use is None:
            return
        of_size = large.in_every_step & (window.made_in >= 0)
        without = window.replayed(window.whole(of_size.nonzero()[0]))
        learns = window.learns_after(int(window.lives.alloc[large.row]))
        yield Differences(
            row=row,
            rows=large.there,
            nbytes=large.nbytes,
            saving=without.keeping((_KEPT if learns else 1) * pairs),
            scale=" ".join(dict.fromkeys(use.scales)),
            weights=use.weights[0] if use.weights else "",
        )

    def title(self, match: Differences) -> str:
        """Say what they are for."""
        used = "distances and weighted sums" if match.weights else "distances"
        return f"are differences of all pairs of points, of which only {used} are used"

    def advice(self, match: Differences, case: Case) -> Iterator[Advice]:
        """Have the distances computed without them, or in parts."""
        used = "distances and weighted sums" if match.weights else "distances"
        why = (
            f"Only the {used} are used of {format_bytes(match.nbytes)} of differences: "
            "`torch.cdist` computes them without (`.square()` for their squares, `p=1` for sums; "
            "a mean is one of these through the number of dimensions)."
        )
        if match.scale:
            why += f" Scale the points first (`{match.scale}`), each set by itself."
        if match.weights:
            why += (
                f" Their sums, each weighed by `{match.weights}` (w) of its pair, are those of the "
                "points: of `a - b` over all b it is `w.sum(1, keepdim=True) * a - w @ b`."
            )
        yield Advice("cdist", why, case.site)
        yield Advice("chunk", "Or work through the points in parts.", case.site)


def _bytes_of_pairs(window: Window, row: int) -> int:
    """Bytes of one value for each pair: of a tensor made of it that is a part as large; else 0."""
    lives = window.lives
    whole = int(lives.requested[row])
    later = (lives.alloc > lives.alloc[row]) & (window.made_in == window.made_in[row])
    later &= window.phase != Phase.BACKWARD
    parts = lives.requested[later]
    parts = parts[(parts > 0) & (2 * parts <= whole) & (_MOST_DIMENSIONS * parts >= whole)]
    return int(parts[whole % parts == 0].max(initial=0))


def _subtracted_at(window: Window, large: LargeTensor) -> tuple[int, _Way | None]:
    """The row of the differences, and what becomes of them.

    Where both sets were repeated for all pairs, those copies are as large and came before.
    """
    rows = {window.frame_of(row): row for row in (*large.there[::-1].tolist(), large.row)}
    for frame, row in sorted(rows.items(), key=lambda one: one[1] != large.row):
        place = place_of(frame)
        use = _use_of(place) if place is not None else None
        if use is not None:
            return row, use
    return large.row, None


def _use_of(place: Place) -> _Way | None:
    """What becomes of what a statement subtracts, which it has turned two ways.

    None where that is not for a sum of powers, and for weighted sums of the pairs perhaps.
    """
    differences = [
        (node, operands, turns)
        for node in ast.walk(place.statement)
        if (operands := _subtracted(node)) and (turns := _turns(place, *operands))
    ]
    if len(differences) != 1:
        return None
    difference, operands, (ours, theirs) = differences[0]
    pair = {ours, theirs}
    last = {"-1"} | ({"2"} if pair <= _OF_ROWS else {"3"} if _is_of_batches(pair) else set())
    names = {one.id for operand in operands for one in ast.walk(operand) if _is_name(one)}
    parents = {
        child: node for node in ast.walk(place.scope) for child in ast.iter_child_nodes(node)
    }
    way = _Way(place, parents, frozenset(last), names)
    sums = way.sums_of(difference)
    return way if len(sums - way.weighted) == 1 and None not in sums else None


def _is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _subtracted(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """``a`` and ``b`` of ``a - b``, ``a.sub(b)`` or ``torch.sub(a, b)``; None of others."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return node.left, node.right
    if not isinstance(node, ast.Call) or called_name(node) not in _SUBTRACTING or node.keywords:
        return None
    if len(node.args) == 1 and isinstance(node.func, ast.Attribute):
        return node.func.value, node.args[0]
    return (node.args[0], node.args[1]) if len(node.args) == _OPERANDS else None


def _turns(place: Place, left: ast.expr, right: ast.expr) -> tuple[str, str] | None:
    """How ``a[:, None] - b[None]`` turns its operands, if each its own way: all pairs meet."""
    ours, theirs = _turn(place, left), _turn(place, right)
    return (ours, theirs) if ours and theirs and ours != theirs else None


def _is_of_batches(pair: set[str]) -> bool:
    """Whether both operands are turned to four dimensions."""
    return pair == _OF_BATCHES or all(one.count(",") == _MOST_SHOWN - 1 for one in pair)


def _turn(place: Place, operand: ast.expr) -> str:
    """How an operand is given one more dimension, as a name as well; empty where it is not.

    As an index has it, or `unsqueeze`: a shape with a 1 in it reads as an index with a None there.
    """
    if isinstance(operand, ast.Name):
        operand = _value_of(place, operand) or operand
    while isinstance(operand, ast.Call) and called_name(operand) in _SAME_PAIRS:
        if not isinstance(operand.func, ast.Attribute):
            return ""
        operand = operand.func.value
    if isinstance(operand, ast.Subscript):
        added = [n for n in ast.walk(operand.slice) if isinstance(n, ast.Constant)]
        parts = operand.slice.elts if isinstance(operand.slice, ast.Tuple) else [operand.slice]
        return _written(parts) if any(n.value is None for n in added) else ""
    if isinstance(operand, ast.Call) and called_name(operand) == "unsqueeze":
        given = [*operand.args, *(one.value for one in operand.keywords if one.arg == "dim")]
        return ast.unparse(given[-1]) if given else ""
    if isinstance(operand, ast.Call) and called_name(operand) in _SHAPED:
        ones = [ast.unparse(one) == "1" for one in operand.args]
        if sum(ones) == 1 and _OPERANDS < len(ones) <= _MOST_SHOWN:
            return ", ".join("None" if one else ":" for one in ones)
    return ""


def _written(parts: list[ast.expr]) -> str:
    """An index as it is written; a tuple of its own would have parentheses in some versions."""
    return ", ".join(ast.unparse(one) for one in parts)


def _value_of(place: Place, name: ast.Name) -> ast.expr | None:
    """What a name was last bound to, ``x = x.unsqueeze(2)`` of a parameter included."""
    values = list(values_of(place, name.id))
    if len(values) == 1:
        return values[0]
    binding = last_binding(place, name)
    statement = binding.statement if binding is not None else None
    return statement.value if isinstance(statement, ast.Assign) else None


@dataclass(slots=True, eq=False)
class _Way:
    """What differences go through, from their statement on."""

    place: Place
    parents: dict[ast.AST, ast.AST]
    last: frozenset[str]
    """The ways to write the dimension that a sum has to be along."""
    names: set[str]
    """Of the points, and of what is computed of their differences: none of these is a scale."""
    scales: list[str] = field(default_factory=list)
    """What weighs the dimensions."""
    weights: list[str] = field(default_factory=list)
    """What weighs the pairs, …"""
    weighted: set[ast.AST | None] = field(default_factory=set)
    """… and the sums of these over one of the sets."""
    followed: set[ast.AST] = field(default_factory=set)
    """Statements that bind them to a name."""

    def sums_of(self, use: ast.AST, *, has_root: bool = False) -> set[ast.AST | None]:
        """The sums that a use goes into, with nothing but powers before; None for anything else."""
        node = use
        while (above := self.parents.get(node)) is not None:
            if isinstance(above, ast.Assign) and above.value is node:
                return self._sums_of_name(above, has_root=has_root)
            if isinstance(above, ast.BinOp):
                of_pairs = self._sum_of_pairs(above, node) if not has_root else None
                if of_pairs is not None:
                    return {of_pairs}
                if not self._is_weight_or_power(above, node):
                    return {None}
                has_root = has_root or not self._scaled_by(above, node)
            elif isinstance(above, ast.Call):
                name = called_name(above)
                has_root = has_root or name in _ROOTS
                if name in _SUMS:
                    return {above if has_root and _is_along(above, self.last) else None}
                if name not in _POWERS and not self._is_scaling(above):
                    return {None}
            elif not isinstance(above, ast.Attribute):
                return {None}
            node = above
        return {None}

    def _sums_of_name(self, statement: ast.Assign, *, has_root: bool) -> set[ast.AST | None]:
        if statement in self.followed:
            return set()
        target = statement.targets[0]
        if len(statement.targets) != 1 or not _is_name(target):
            return {None}
        self.followed.add(statement)
        self.names.add(target.id)
        uses = (
            node
            for node in ast.walk(self.place.scope)
            if _is_name(node) and node.id == target.id and isinstance(node.ctx, ast.Load)
        )
        sums = [self.sums_of(use, has_root=has_root) for use in uses]
        return set().union(*sums) if sums else {None}

    def _sum_of_pairs(self, above: ast.BinOp, node: ast.AST) -> ast.AST | None:
        """The sum of ``(w.unsqueeze(-1) * differences).sum(1)``, which is noted then."""
        weights = _of_each_pair(above.right if node is above.left else above.left)
        method = self.parents.get(above)
        call = self.parents.get(method) if isinstance(method, ast.Attribute) else None
        is_product = isinstance(above.op, ast.Mult) and "2" in self.last
        if not is_product or not isinstance(call, ast.Call) or called_name(call) != "sum":
            return None
        if weights is None or not _is_along(call, _POINTS):
            return None
        self.weights.append(ast.unparse(weights))
        self.weighted.add(call)
        return call

    def _is_weight_or_power(self, above: ast.BinOp, node: ast.AST) -> bool:
        """Whether it is a power of the differences, or weighs them with what is none of them."""
        if isinstance(above.op, ast.Pow):
            return node is above.left
        other = above.right if node is above.left else above.left
        if isinstance(above.op, ast.Mult) and ast.dump(other) == ast.dump(node):
            return True
        scale = self._scaled_by(above, node)
        if scale:
            self.scales.append(scale)
        return bool(scale)

    def _scaled_by(self, above: ast.BinOp, node: ast.AST) -> str:
        """A weight of each dimension as it is written, with its sign; empty where it is none."""
        other = above.right if node is above.left else above.left
        is_divided = isinstance(above.op, ast.Div)
        if not isinstance(above.op, _SCALES) or (is_divided and node is not above.left):
            return ""
        if not self._is_scale(other) or ast.dump(other) == ast.dump(node):
            return ""
        return f"{'/' if is_divided else '*'} {ast.unparse(other)}"

    def _is_scaling(self, call: ast.Call) -> bool:
        """Whether a method weighs the differences, which is noted then."""
        if called_name(call) not in _SCALINGS or len(call.args) != 1 or call.keywords:
            return False
        if not self._is_scale(call.args[0]):
            return False
        sign = "*" if called_name(call).startswith("mul") else "/"
        self.scales.append(f"{sign} {ast.unparse(call.args[0])}")
        return True

    def _is_scale(self, value: ast.expr) -> bool:
        """Whether a value is of the dimensions alone: none of a pair or of the points."""
        nodes = list(ast.walk(value))
        is_turned = any(isinstance(one, ast.Subscript) for one in nodes)
        names = {one.id for one in nodes if _is_name(one)}
        if not names or is_turned:
            return False
        values = [one for name in names for one in values_of(self.place, name) if one is not None]
        names = names.union(*map(loaded_names, values))
        return not names & (self.names - {"self", "torch"})


def _of_each_pair(value: ast.expr) -> ast.expr | None:
    """``w`` of ``w.unsqueeze(-1)`` or ``w[..., None]``: one number for all dimensions of a pair."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        is_last = [*map(ast.unparse, arguments(value))] in (["-1"], ["2"])
        return value.func.value if called_name(value) == "unsqueeze" and is_last else None
    index = value.slice if isinstance(value, ast.Subscript) else None
    entries = index.elts if isinstance(index, ast.Tuple) else []
    is_last = bool(entries) and isinstance(entries[-1], ast.Constant) and entries[-1].value is None
    return value.value if isinstance(value, ast.Subscript) and is_last else None


def _is_along(call: ast.Call, last: frozenset[str]) -> bool:
    """Whether a sum is one along a dimension that is written so."""
    given = [*call.args, *(one.value for one in call.keywords if one.arg in ("dim", "axis"))]
    return any(ast.unparse(one).strip("()[],") in last for one in given)


RULE = PairwiseDifferences()
