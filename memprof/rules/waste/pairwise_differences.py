"""pairwise-differences: all differences of two sets of points are made for their distances."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, called_name
from memprof.source_code.values import last_binding, values_of
from memprof.trace import Phase
from memprof.units import format_bytes
from memprof.views.peak_without import Saving
from memprof.views.window import Window

__all__ = ["RULE"]

_SUMS = frozenset(("norm", "vector_norm", "sum"))
"""What is left of the differences of two points is one number."""
_POWERS = frozenset(("abs", "pow", "sqrt", "square"))
"""What may be done with them before that."""
_ROOTS = frozenset(("abs", "norm", "pow", "square", "vector_norm"))
"""Without one of these a sum of differences is no distance."""
_SAME_PAIRS = frozenset(("contiguous", "expand", "expand_as", "repeat"))
"""What gives the turned operand the shape of all pairs, which it would have all the same."""
_OF_ROWS = frozenset(("0", "1", ":, None", ":, None, :", "None", "None, :", "None, :, :"))
"""How two tables of rows are turned: the differences have three dimensions."""
_OF_BATCHES = {"1", "2"}
"""How a batch of them is, by `unsqueeze`: they have four."""
_SUBTRACTING = frozenset(("sub", "subtract"))
"""Methods of tensors, and functions of torch."""
_OPERANDS = 2
_MOST_DIMENSIONS = 4096
_KEPT = 2
"""Times one value for each pair: what `cdist` saves for its gradient, and that of the distances."""


class PairwiseDifferences(WasteRule[Match]):
    """``((a[:, None] - b[None]) ** 2).sum(-1)``: n · m · d values, of which n · m are left."""

    name = "pairwise-differences"
    summary = "all differences of two sets of points are made for their distances"
    fixes = ("cdist", "chunk")

    def matches(self, window: Window) -> Iterator[Match]:
        """The large tensor of the peak: such differences, that nothing but a distance reads."""
        large = large_tensor(window)
        if large is None or large.place is None or window.phase[large.row] == Phase.BACKWARD:
            return
        pairs = _bytes_of_pairs(window, large.row)
        if not pairs or not _is_for_distances(large.place):
            return
        of_size = large.in_every_step & (window.made_in >= 0)
        without = window.replayed(window.whole(of_size.nonzero()[0]))
        learns = window.learns_after(int(window.lives.alloc[large.row]))
        yield Match(
            row=large.row,
            rows=large.there,
            nbytes=large.nbytes,
            saving=_with(without, (_KEPT if learns else 1) * pairs),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are for."""
        return "are differences of all pairs of points, of which only distances are used"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Have the distances computed without them, or in parts."""
        why = (
            f"Only the distances are used of {format_bytes(match.nbytes)} of differences: "
            "`torch.cdist` computes them without (`.square()` for their squares, `p=1` for sums)."
        )
        yield Advice("cdist", why, case.site)
        yield Advice("chunk", "Or work through the points in parts.", case.site)


def _with(saving: Saving, nbytes: int) -> Saving:
    """The same where so much is there in place of what is not."""
    overall = saving.overall
    return Saving(
        saving.before,
        min(saving.before, saving.after + nbytes),
        overall.before,
        min(overall.before, overall.after + nbytes),
    )


def _bytes_of_pairs(window: Window, row: int) -> int:
    """Bytes of one value for each pair: of a tensor made of it that is a part as large; else 0."""
    lives = window.lives
    whole = int(lives.requested[row])
    later = (lives.alloc > lives.alloc[row]) & (window.made_in == window.made_in[row])
    later &= window.phase != Phase.BACKWARD
    parts = lives.requested[later]
    parts = parts[(parts > 0) & (2 * parts <= whole) & (_MOST_DIMENSIONS * parts >= whole)]
    return int(parts[whole % parts == 0].max(initial=0))


def _is_for_distances(place: Place) -> bool:
    """Whether a statement subtracts what it has turned two ways, for a sum of powers alone."""
    differences = [
        (node, turns)
        for node in ast.walk(place.statement)
        if (operands := _subtracted(node)) and (turns := _turns(place, *operands))
    ]
    if len(differences) != 1:
        return False
    difference, (ours, theirs) = differences[0]
    uses: list[ast.AST] = [difference]
    statement = place.statement
    if isinstance(statement, ast.Assign) and statement.value is difference:
        target = statement.targets[0]
        if len(statement.targets) != 1 or not isinstance(target, ast.Name):
            return False
        names = (node for node in ast.walk(place.scope) if isinstance(node, ast.Name))
        uses = [node for node in names if node.id == target.id and isinstance(node.ctx, ast.Load)]
    parents = {
        child: node for node in ast.walk(place.scope) for child in ast.iter_child_nodes(node)
    }
    pair = {ours, theirs}
    last = {"-1"} | ({"2"} if pair <= _OF_ROWS else {"3"} if pair == _OF_BATCHES else set())
    sums = {_distance_of(use, parents, last) for use in uses}
    return len(sums) == 1 and None not in sums


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


def _turn(place: Place, operand: ast.expr) -> str:
    """How an operand is given one more dimension, as a name as well; empty where it is not."""
    if isinstance(operand, ast.Name):
        operand = _value_of(place, operand) or operand
    while isinstance(operand, ast.Call) and called_name(operand) in _SAME_PAIRS:
        if not isinstance(operand.func, ast.Attribute):
            return ""
        operand = operand.func.value
    if isinstance(operand, ast.Subscript):
        added = [n for n in ast.walk(operand.slice) if isinstance(n, ast.Constant)]
        return ast.unparse(operand.slice) if any(n.value is None for n in added) else ""
    if isinstance(operand, ast.Call) and called_name(operand) == "unsqueeze":
        return ast.unparse(operand.args[-1]) if operand.args else ""
    return ""


def _value_of(place: Place, name: ast.Name) -> ast.expr | None:
    """What a name was last bound to, ``x = x.unsqueeze(2)`` of a parameter included."""
    values = list(values_of(place, name.id))
    if len(values) == 1:
        return values[0]
    binding = last_binding(place, name)
    statement = binding.statement if binding is not None else None
    return statement.value if isinstance(statement, ast.Assign) else None


def _distance_of(use: ast.AST, parents: dict[ast.AST, ast.AST], last: set[str]) -> ast.AST | None:
    """The sum that a use of differences goes into, with nothing but powers before; else None.

    ``last`` are the ways to write the dimension that it has to be along.
    """
    node, has_root = use, False
    while (above := parents.get(node)) is not None:
        if isinstance(above, ast.BinOp) and isinstance(above.op, (ast.Pow, ast.Mult)):
            # a product with something else would weigh them
            other = above.right if node is above.left else above.left
            if isinstance(above.op, ast.Mult) and ast.dump(other) != ast.dump(node):
                return None
            has_root = True
        elif isinstance(above, ast.Call):
            name = called_name(above)
            has_root = has_root or name in _ROOTS
            if name in _SUMS:
                return above if has_root and _is_along(above, last) else None
            if name not in _POWERS:
                return None
        elif not isinstance(above, ast.Attribute):
            return None
        node = above
    return None


def _is_along(call: ast.Call, last: set[str]) -> bool:
    """Whether a sum is one along a dimension that is written so."""
    given = [*call.args, *(one.value for one in call.keywords if one.arg in ("dim", "axis"))]
    return any(ast.unparse(one).strip("()[],") in last for one in given)


RULE = PairwiseDifferences()
