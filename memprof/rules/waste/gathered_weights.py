"""gathered-weights: a matrix is copied for each row that is multiplied by it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor, made_by_its_statement
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.call_sites import handed_over
from memprof.source_code.program import Place, called_name, own_calls
from memprof.source_code.scopes import parameters, reads_of
from memprof.source_code.values import values_of
from memprof.trace import Phase
from memprof.units import format_bytes
from memprof.views.stacks import made_at_lines, made_by_lines
from memprof.views.window import Window

__all__ = ["RULE"]

_PAIR = 2
_DEEPEST = 3
"""Calls that hand a factor on, one to the next."""
_WIDENING = frozenset(("reshape", "unflatten", "unsqueeze", "view"))
"""What gives a tensor one more dimension."""
_LOOKUP = "embedding"
"""The function of torch that looks rows up in a table."""
_PRODUCTS = frozenset(("baddbmm", "bmm", "einsum", "matmul"))
_LEAST_COPIES = 4
"""Times as many bytes as what is gathered from: with fewer, the rows hardly repeat."""
_LEAST_RATIO = 4
"""Times as large as what the product returns: else the copies are not what it costs."""


@dataclass(frozen=True, slots=True, eq=False)
class _Gather:
    """What a statement gathers, as it is written."""

    source: ast.expr
    """What the matrices are taken from."""
    index: ast.expr
    lines: tuple[int, ...]
    """Of the products that read the copies."""
    factor: str = ""
    """What all rows are multiplied by, behind them; empty where each has another one."""


@dataclass(frozen=True, slots=True, eq=False)
class Copies(Match):
    """Matrices that were copied."""

    source: str = ""
    index: str = ""
    times: int = 0
    """So many times as large as what they were taken from."""
    factor: str = ""
    """What all of them are multiplied by, and not each by its own row."""


class GatheredWeights(WasteRule[Copies]):
    """`torch.bmm(x.unsqueeze(1), weight[kind])`: a matrix for each row, and its gradient."""

    name = "gathered-weights"
    summary = "a matrix is copied for each row that is multiplied by it"
    fixes = ("transform_nodes", "multiply_by_kind", "chunk")

    def matches(self, window: Window) -> Iterator[Copies]:
        """The large tensor of the peak: gathered by an index, for nothing but a product."""
        large = large_tensor(window)
        if large is None or large.place is None or window.phase[large.row] == Phase.BACKWARD:
            return
        is_lookup = _is_lookup(window, large.row)
        if not is_lookup and not made_by_its_statement(window, large.row):
            return
        gather = _gather(large.place, is_lookup=is_lookup)
        if gather is None:
            return
        size = int(window.lives.requested[large.row])
        source = _bytes_of_source(window, large.row, large.place, gather.source)
        product = _bytes_of_products(window, large.row, gather.lines)
        if not source or size < _LEAST_COPIES * source or size < _LEAST_RATIO * product:
            return
        rows = np.flatnonzero(large.in_every_step & (window.made_in >= 0))
        yield Copies(
            row=large.row,
            rows=large.there,
            nbytes=large.nbytes,
            saving=window.replayed(window.whole(rows)),
            source=ast.unparse(gather.source),
            index=ast.unparse(gather.index),
            times=size // source,
            factor=gather.factor,
        )

    def title(self, match: Copies) -> str:
        """Say of what they are copies."""
        if match.factor:
            rows = f"are rows of `{match.source}`, each gathered some {match.times:,} times"
            return f"{rows} to be multiplied by `{match.factor}`"
        return f"are copies of `{match.source}`, one matrix for each row that is multiplied by it"

    def advice(self, match: Copies, case: Case) -> Iterator[Advice]:
        """Multiply the rows of one kind together; or before they are gathered, all by the same."""
        if match.factor:
            why = (
                f"{format_bytes(match.nbytes)} are multiplied by `{match.factor}`, which makes the "
                f"same of a row each time that it was gathered: multiply `{match.source}` by it "
                "once, and gather what that makes."
            )
            typed = f"({match.source} @ {match.factor})[{match.index}]"
            yield Advice("transform_nodes", why, case.site, typed=typed)
            yield Advice("chunk", "Or work through the rows in parts.", case.site)
            return
        why = (
            f"The copies, with their gradients {format_bytes(match.nbytes)}, are {match.times:,} "
            f"times as large as `{match.source}`: multiply all rows of one `{match.index}` "
            "together, by its one matrix."
        )
        yield Advice("multiply_by_kind", why, case.site)
        yield Advice("chunk", "Or work through the rows in parts.", case.site)


def _is_lookup(window: Window, row: int) -> bool:
    """Whether an embedding made it: rows of its table, here those of matrices."""
    line = window.frame_of(row)
    inside = takewhile(lambda frame: frame != line, window.stack(row))
    return any(frame.name == _LOOKUP for frame in inside)


def _gather(place: Place, *, is_lookup: bool) -> _Gather | None:
    """What a statement gathers, if only products read it: under its name, or in place."""
    statement = place.statement
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        parts = _parts_of_gather(statement.value, is_lookup=is_lookup)
        target = statement.targets[0]
        if parts is not None and isinstance(target, ast.Name):
            products = list(_products(place, target.id))
            factors = {_factor(place, product, read) for product, read in products}
            lines = tuple(read.lineno for _, read in products)
            factor = factors.pop() if len(factors) == 1 else ""
            return _Gather(*parts, lines, factor) if lines else None
    for call in own_calls(statement, *_PRODUCTS):
        for argument in call.args:
            parts = _parts_of_gather(argument, is_lookup=is_lookup)
            if parts is not None:
                return _Gather(*parts, (place.line,), _factor(place, call, argument))
    return None


def _factor(place: Place, product: ast.Call | ast.BinOp, gathered: ast.expr) -> str:
    """What a product multiplies all that was gathered by: ``weights`` of ``rows @ weights``.

    Empty where it comes first, or was given a dimension for the rows: then each has its own.
    """
    if isinstance(product, ast.BinOp):
        left, right = product.left, product.right
    elif called_name(product) == "matmul" and len(product.args) == _PAIR:
        left, right = product.args
    else:
        return ""
    if left is not gathered or not isinstance(right, (ast.Attribute, ast.Name)):
        return ""
    return "" if _is_widened(place, right) else ast.unparse(right)


def _is_widened(place: Place, value: ast.expr, depth: int = _DEEPEST) -> bool:
    """Whether what a name is bound to, or a call hands over, was given one more dimension."""
    if isinstance(value, ast.Attribute):
        bound = [*values_of(place, ast.unparse(value))]
    elif not isinstance(value, ast.Name):
        bound = [value]
    elif place.function is not None and value.id in parameters(place.function):
        handed = handed_over(place, value, (place.program,))
        return handed is not None and depth > 0 and _is_widened(*handed, depth - 1)
    else:
        bound = [*values_of(place, value.id)]
    return any(
        called_name(node) in _WIDENING or (isinstance(node, ast.Constant) and node.value is None)
        for one in bound
        if one is not None
        for node in ast.walk(one)
    )


def _parts_of_gather(value: ast.expr, *, is_lookup: bool) -> tuple[ast.expr, ast.expr] | None:
    """``weight`` and ``kind`` of ``weight[kind]`` or ``weight.index_select(0, kind)``.

    Of an embedding that is looked up in, too: ``self.matrices(kind).view(-1, n, n)``.
    """
    while is_lookup and isinstance(value, ast.Call) and called_name(value) in _WIDENING:
        if not isinstance(value.func, ast.Attribute):
            break
        value = value.func.value
    if is_lookup and isinstance(value, ast.Call):
        if called_name(value) == _LOOKUP and len(value.args) == _PAIR:
            return value.args[1], value.args[0]
        if len(value.args) == 1 and not value.keywords:
            table = ast.Attribute(value=value.func, attr="weight", ctx=ast.Load())
            return table, value.args[0]
    if isinstance(value, ast.Subscript) and isinstance(value.slice, (ast.Name, ast.Attribute)):
        return value.value, value.slice
    if not isinstance(value, ast.Call) or called_name(value) != "index_select":
        return None
    given = [*value.args, *(keyword.value for keyword in value.keywords)]
    if isinstance(value.func, ast.Attribute) and ast.unparse(value.func.value) != "torch":
        given.insert(0, value.func.value)
    return (given[0], given[2]) if len(given) > 2 and ast.unparse(given[1]) == "0" else None


def _products(place: Place, name: str) -> Iterator[tuple[ast.Call | ast.BinOp, ast.expr]]:
    """The products that are all that reads a variable, with the reads; none with other use."""
    products: list[tuple[ast.Call | ast.BinOp, ast.expr]] = []
    for read, around in reads_of(place.scope, name):
        above = around[-1]
        by_call = isinstance(above, ast.Call) and called_name(above) in _PRODUCTS
        by_sign = isinstance(above, ast.BinOp) and isinstance(above.op, ast.MatMult)
        if not by_call and not by_sign:
            return
        products.append((above, read))  # type: ignore[arg-type]
    yield from products


def _bytes_of_source(window: Window, row: int, place: Place, source: ast.expr) -> int:
    """Bytes of what is gathered from, or more; 0 where that is not known.

    Of an attribute it is not known which tensor it is: the largest of a model, or of those that
    were there before the step, will do.
    """
    lives = window.lives
    there = (lives.alloc < lives.alloc[row]) & (lives.free > lives.alloc[row])
    if isinstance(source, ast.Attribute):
        there &= window.has_owner | (window.made_in < window.made_in[row])
        return int(lives.requested[there].max(initial=0))
    values = list(values_of(place, source.id)) if isinstance(source, ast.Name) else []
    if len(values) != 1 or values[0] is None:
        return 0
    span = range(values[0].lineno, (values[0].end_lineno or values[0].lineno) + 1)
    made = np.flatnonzero(there & made_by_lines(window, place.program.filename, span))
    if not len(made):
        return 0
    # The last is what the name stands for: a product may have taken a workspace there as well.
    return int(lives.requested[made[lives.alloc[made].argmax()]])


def _bytes_of_products(window: Window, row: int, lines: tuple[int, ...]) -> int:
    """Bytes of the largest result of the products that read what a row holds."""
    lives = window.lives
    filename = window.frame_of(row).filename
    later = (lives.alloc > lives.alloc[row]) & (window.phase != Phase.BACKWARD)
    later &= (window.made_in == window.made_in[row]) & made_at_lines(window, filename, lines)
    later &= lives.requested != lives.requested[row]  # copies once more, of the same line
    return int(lives.requested[later].max(initial=0))


RULE = GatheredWeights()
