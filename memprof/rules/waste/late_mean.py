"""late-mean: a linear layer is applied to each position, of whose results the mean is taken."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import keyword
from memprof.source_code.program import (
    Place,
    arguments,
    assigned,
    bound_names,
    called_name,
    calls_in,
    place_of,
)
from memprof.source_code.reductions import summed_indices
from memprof.source_code.scopes import nodes_around, reads_of
from memprof.source_code.values import values_of
from memprof.trace import Category, Phase
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_AVERAGES = ("mean",)
_POSITIONS = frozenset(("1", "-2", "(1,)", "[1]"))
"""The dimension of positions, as it is written: the last one is that of features."""
_FEATURES = frozenset(("2", "-1", "(2,)", "[2]"))
"""The same where positions and features have changed places."""
_SWAPS = ("1, 2", "2, 1", "-1, -2", "-2, -1")
_OF_SHAPE = ("device", "dtype", "shape", "size")
_METHOD_CALL = 2
"""Nodes around a value of which a method is called: the attribute, and the call."""
_CASTS = frozenset(("bool", "double", "float", "half", "to", "type", "type_as"))
_BOUNDS = frozenset(("clamp", "clamp_min"))
"""Methods by which no quotient is by 0."""
_LINEAR = "Linear"
_FLOAT = 4
"""Bytes of a value in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """A mean of what a layer makes, and the same in the other order."""

    written: str
    instead: str
    lines: frozenset[int]
    """Of the layer's call, and of the mean."""
    is_of_rows: bool = False
    """Counted from the last one, the dimension is that of rows, whatever there is before it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Mean:
    """A mean over positions, as it is written."""

    written: ast.expr
    weighted: ast.BinOp | None = None
    """What it is the sum of, where the results are multiplied by weights: by a mask."""


@dataclass(frozen=True, slots=True, eq=False)
class LateMean(Match):
    """The call, and the same in the other order."""

    written: str = ""
    instead: str = ""
    place: Place | None = None
    """The statement of both."""


class LateMeanRule(WasteRule[LateMean]):
    """`self.project(frames).mean(dim=1)`: the mean of a linear layer is that of what goes in."""

    name = "late-mean"
    summary = "a linear layer is applied to each position, of whose results the mean is taken"
    fixes = ("mean_first",)
    yields_to = ("merged-adapters",)

    def matches(self, window: Window) -> Iterator[LateMean]:
        """The large tensor of the peak, made by such a statement or in its backward pass."""
        large = large_tensor(window)
        if large is None:
            return
        for row in [*large.there.tolist(), large.row]:
            of_backward = window.phase[row] == Phase.BACKWARD
            site = int((window.origin_site if of_backward else window.site)[row])
            place = place_of(window.owners.sites.frames[site])
            order = _order(place) if place is not None else None
            if place is None or order is None:
                continue
            sites = [
                at
                for at, frame in enumerate(window.owners.sites.frames)
                if frame.filename == place.program.filename and frame.line in order.lines
            ]
            if not order.is_of_rows and not _has_positions(window, large.row, sites):
                continue
            of_lines = np.isin(window.origin_site, sites) | np.isin(window.site, sites)
            # The gradient of what the layer makes is its own.
            of_layer = window.module == window.module[large.row]
            of_lines |= of_layer & (window.phase == Phase.BACKWARD)
            alike = large.in_every_step & of_lines
            there = np.flatnonzero(alike & window.at_peak)
            if not len(there):
                continue
            forward = np.flatnonzero(alike & (window.phase != Phase.BACKWARD))
            yield LateMean(
                row=int(forward[0]) if len(forward) else row,
                rows=there,
                nbytes=int(window.lives.size[there].sum()),
                saving=window.replayed(window.whole(np.flatnonzero(alike))),
                written=order.written,
                instead=order.instead,
                place=place,
            )
            return

    def title(self, match: LateMean) -> str:
        """Say what they are."""
        return f"are what a linear layer makes of each position, of which `{match.written}` is read"

    def advice(self, match: LateMean, case: Case) -> Iterator[Advice]:
        """Take the mean of what goes in."""
        why = (
            f"The mean of a linear layer's results is its result for the mean: `{match.instead}` "
            f"makes one row where {format_bytes(match.nbytes)} hold one for each position."
        )
        yield Advice("mean_first", why, match.place or case.site, typed=match.instead)


def _has_positions(window: Window, row: int, sites: Sequence[int]) -> bool:
    """Whether what the layer makes has more than rows and features, by the bytes of its mean.

    The bias tells how wide a row is. Of a matrix a mean along dimension 1 is one number for each
    row; of what has positions it is whole rows.
    """
    lives = window.lives
    size = int(lives.requested[row])
    of_layer = (window.category == Category.PARAMETER) & (window.module == window.module[row])
    width = int(lives.requested[of_layer].min(initial=size))
    made = np.isin(window.site, sites) & (window.phase != Phase.BACKWARD) & (lives.requested < size)
    sizes = np.unique(lives.requested[made]).tolist()
    numbers = size // width * _FLOAT
    return width < size and numbers not in sizes and any(one % width == 0 for one in sizes)


def _order(place: Place) -> _Order | None:
    """The mean of a linear layer's result in a statement, and the layer's result of a mean.

    The mean may be taken by a later statement, of a variable that nothing else reads.
    """
    for call in calls_in(place.statement, *_AVERAGES):
        layer = call.func.value if isinstance(call.func, ast.Attribute) else None
        along = keyword(call, "dim") or next(iter(call.args), None)
        if along is None or ast.unparse(along) not in _POSITIONS:
            continue
        if not isinstance(layer, ast.Call) or len(layer.args) != 1 or layer.keywords:
            continue
        if not _is_linear(place, layer.func):
            continue
        given, rest = ast.unparse(layer.args[0]), ast.unparse(call)[len(ast.unparse(layer)) :]
        instead = f"{ast.unparse(layer.func)}({given}{rest})"
        lines = frozenset(place.lines)
        return _Order(ast.unparse(call), instead, lines, ast.unparse(along) == "-2")
    for call in calls_in(place.statement):
        if len(call.args) == 1 and not call.keywords and _is_linear(place, call.func):
            mean, lines = _mean_of(place, call)
            weighted = mean.weighted if mean is not None else None
            if weighted is not None and not _is_of_positions(place, weighted.right):
                continue
            if mean is not None:
                instead = f"{ast.unparse(call.func)}({_averaged(call.args[0], mean)})"
                written = mean.written
                along = keyword(written, "dim") if isinstance(written, ast.Call) else None
                is_of_rows = along is not None and ast.unparse(along) == "-2"
                return _Order(ast.unparse(written), instead, lines, is_of_rows)
    return None


def _averaged(value: ast.expr, mean: _Mean) -> str:
    """The same mean of what goes into the layer."""
    is_name = isinstance(value, (ast.Name, ast.Attribute, ast.Call))
    given = ast.unparse(value) if is_name else f"({ast.unparse(value)})"
    if mean.weighted is None:
        return f"{given}.mean(1)"
    weights = f"{given} * {ast.unparse(mean.weighted.right)}"
    return ast.unparse(mean.written).replace(ast.unparse(mean.weighted), weights)


def _is_of_positions(place: Place, weights: ast.expr) -> bool:
    """Whether weights are the same for all features: ``mask.unsqueeze(-1)``, ``mask[..., None]``.

    Or a variable for that.
    """
    if isinstance(weights, ast.Name):
        values = [
            value
            for node in ast.walk(place.scope)
            for target, value in assigned(node)
            if ast.unparse(target) == weights.id
        ]
        return bool(values) and all(
            value is not None and not isinstance(value, ast.Name) and _is_of_positions(place, value)
            for value in values
        )
    if isinstance(weights, ast.Call):
        is_last = [*map(ast.unparse, arguments(weights))] in (["-1"], ["2"])
        if called_name(weights) == "unsqueeze":
            return is_last
        inner = weights.func.value if isinstance(weights.func, ast.Attribute) else None
        is_cast = called_name(weights) in _CASTS and inner is not None
        return is_cast and inner is not None and _is_of_positions(place, inner)
    index = weights.slice if isinstance(weights, ast.Subscript) else None
    entries = index.elts if isinstance(index, ast.Tuple) else []
    return bool(entries) and isinstance(entries[-1], ast.Constant) and entries[-1].value is None


def _mean_of(place: Place, call: ast.Call) -> tuple[_Mean | None, frozenset[int]]:
    """The mean that is all that is read of what a call makes, and the lines of both."""
    lines = frozenset(place.lines)
    statement = place.statement
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return _mean_around(call, nodes_around(statement, call)), lines
    target = statement.targets[0]
    if len(statement.targets) != 1 or not isinstance(target, ast.Name) or place.loop is not None:
        return None, lines
    reads = [
        (load, around)
        for load, around in _reads(place, target.id)
        if not (isinstance(around[-1], ast.Attribute) and around[-1].attr in _OF_SHAPE)
    ]
    at = place.program.place(reads[0][0]) if len(reads) == 1 else None
    if at is None or at.line <= place.line:
        return None, lines
    return _mean_around(*reads[0]), lines | frozenset(at.lines)


def _reads(place: Place, name: str) -> list[tuple[ast.Name, list[ast.AST]]]:
    """Where what a statement binds is read: up to the statement of its block that binds it anew.

    All reads of the name where that is not known.
    """
    inside = place.around[-1] if place.around else place.program.tree
    fields = (getattr(inside, field, None) for field in ("body", "orelse", "finalbody"))
    blocks = (one for one in fields if isinstance(one, list) and place.statement in one)
    block: list[ast.stmt] = next(blocks, [])
    reads: list[tuple[ast.Name, list[ast.AST]]] = []
    for statement in block[block.index(place.statement) + 1 :] if block else ():
        reads += reads_of(statement, name)
        if name in map(ast.unparse, bound_names(statement)):
            return reads
        if any(name in map(ast.unparse, bound_names(node)) for node in ast.walk(statement)):
            break
    return [*reads_of(place.scope, name)]


def _mean_around(value: ast.expr, around: Sequence[ast.AST]) -> _Mean | None:
    """The mean over positions that is taken of a value, also with its dimensions swapped."""
    waiting, is_swapped = [*around], False
    weighted: ast.BinOp | None = None
    while waiting:
        parent = waiting[-1]
        is_product = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult)
        if isinstance(parent, ast.BinOp) and is_product and parent.left is value and not weighted:
            value = weighted = parent
            waiting.pop()
            continue
        if isinstance(parent, ast.Attribute) and parent.attr == "mT":
            value, is_swapped = parent, not is_swapped
            waiting.pop()
            continue
        call = waiting[-_METHOD_CALL] if isinstance(parent, ast.Attribute) else parent
        if not isinstance(call, ast.Call):
            return None
        is_method = call.func is parent
        given = call.args if is_method else [one for one in call.args if one is not value]
        if is_method and called_name(call) in ("swapaxes", "transpose"):
            if ", ".join(map(ast.unparse, given)) not in _SWAPS:
                return None
            value, is_swapped = call, not is_swapped
            waiting = waiting[:-_METHOD_CALL]
            continue
        outside = waiting[-_METHOD_CALL - 1 if is_method else -_METHOD_CALL :][:1]
        if weighted is None:
            mean = _mean(call, given, outside, is_swapped=is_swapped)
            return _Mean(mean) if mean is not None else None
        return None if is_swapped else _weighted_mean(call, given, outside, weighted)
    return None


def _weighted_mean(
    call: ast.Call, given: Sequence[ast.expr], outside: Sequence[ast.AST], weighted: ast.BinOp
) -> _Mean | None:
    """The quotient of a sum over positions by that of the weights, of which that is the mean.

    ``(rows * mask).sum(1) / mask.sum(1).clamp(min=1)``.
    """
    along = keyword(call, "dim") or next(iter(given), None)
    quotient = outside[0] if outside else None
    if called_name(call) != "sum" or along is None or ast.unparse(along) not in _POSITIONS:
        return None
    if not isinstance(quotient, ast.BinOp) or not isinstance(quotient.op, ast.Div):
        return None
    divisor = quotient.right
    if isinstance(divisor, ast.BinOp) and isinstance(divisor.op, ast.Add):
        divisor = divisor.left  # what keeps it from 0
    while isinstance(divisor, ast.Call) and called_name(divisor) in _BOUNDS:
        function = divisor.func
        if not isinstance(function, ast.Attribute):
            return None
        divisor = function.value
    weights = ast.unparse(weighted.right)
    is_of_weights = isinstance(divisor, ast.Call) and called_name(divisor) == "sum"
    texts = (f"{weights}.sum({ast.unparse(along)}", f"{weights}.sum(dim={ast.unparse(along)}")
    if quotient.left is not call or not is_of_weights:
        return None
    return _Mean(quotient, weighted) if ast.unparse(divisor).startswith(texts) else None


def _mean(
    call: ast.Call, given: Sequence[ast.expr], outside: Sequence[ast.AST], *, is_swapped: bool
) -> ast.expr | None:
    """The expression of a mean over positions, where a call takes it or a quotient of its sum."""
    name = called_name(call)
    if name == "adaptive_avg_pool1d":
        return call if is_swapped and [*map(ast.unparse, given)] == ["1"] else None
    along = keyword(call, "dim") or next(iter(given), None)
    positions = _FEATURES if is_swapped else _POSITIONS
    if along is not None and name in ("mean", "sum") and ast.unparse(along) not in positions:
        return None
    if name == "mean":
        return call if along is not None else None
    is_sum = (name == "sum" and along is not None) or summed_indices(call) == (-2 + is_swapped,)
    quotient = outside[0] if outside else None
    if not is_sum or not isinstance(quotient, ast.BinOp) or not isinstance(quotient.op, ast.Div):
        return None
    return quotient if quotient.left is call and _is_length(quotient.right) else None


def _is_length(value: ast.expr) -> bool:
    """Whether a divisor is the number of positions: ``x.size(1)``, ``x.shape[1]``."""
    return ast.unparse(value).endswith((".size(1)", ".size(-2)", ".shape[1]", ".shape[-2]"))


def _is_linear(place: Place, layer: ast.expr) -> bool:
    """Whether all that the name of a layer is bound to in the file are linear layers.

    Or the entry of a `ModuleDict` is one.
    """
    if isinstance(layer, ast.Subscript) and isinstance(layer.value, (ast.Name, ast.Attribute)):
        tables = list(values_of(place, ast.unparse(layer.value)))
        entries = [_entry(one, layer.slice) for one in tables]
        return _are_linear(entries)
    if not isinstance(layer, (ast.Name, ast.Attribute)):
        return False
    return _are_linear(list(values_of(place, ast.unparse(layer))))


def _are_linear(made: Sequence[ast.expr | None]) -> bool:
    return bool(made) and all(one is not None and called_name(one) == _LINEAR for one in made)


def _entry(table: ast.expr | None, key: ast.expr) -> ast.expr | None:
    """What a ``ModuleDict({…})`` has for a key that is written out; None for what is unknown."""
    given = table.args[0] if isinstance(table, ast.Call) and table.args else None
    if not isinstance(given, ast.Dict):
        return None
    wanted = key.value if isinstance(key, ast.Constant) else None
    pairs = zip(given.keys, given.values, strict=True)
    return next((v for k, v in pairs if isinstance(k, ast.Constant) and k.value == wanted), None)


RULE = LateMeanRule()
