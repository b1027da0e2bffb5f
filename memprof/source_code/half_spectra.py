"""Fourier transforms of which the statements of a function read one half."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.source_code.call_sites import calls_of
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, bound_names, called_name, calls_in
from memprof.source_code.scopes import nodes_around, qualified_name, reads_of_binding
from memprof.source_code.values import values_of

__all__ = ["HalfSpectrum", "half_spectrum"]

_TRANSFORM = "torch.fft.fft"
_LAST = "-1"
_HALF = 2
_OF_NARROW = 3
"""Arguments of a tensor's `narrow`."""
_DEEPEST = 4
"""Names that are bound one after the other, before a half is taken."""
_OF_SHAPE = frozenset(("device", "dtype", "ndim", "numel", "shape", "size"))
_PARTS = frozenset(("imag", "real"))
_BY_VALUE = frozenset(
    (
        *("abs", "add", "angle", "clamp", "clamp_min", "conj", "div", "exp", "float", "log"),
        *("log10", "log1p", "log2", "mul", "pow", "sqrt", "square", "sub"),
    )
)
"""Methods of tensors, and functions of torch, that compute a value for each value."""


@dataclass(frozen=True, slots=True, eq=False)
class HalfSpectrum:
    """What is read of a transform."""

    text: str
    """As it is written: ``power[:, :n // 2 + 1]``."""
    lines: frozenset[int]
    """Of the statements that compute with all of it, the transform's own among them."""


def half_spectrum(place: Place) -> HalfSpectrum | None:
    """The first half of a dimension, where a statement transforms and no more is read of it.

    That is of what is computed of the transform value by value, also where functions of the file
    return it. None where anything else is read.
    """
    calls = [
        (call, dimension)
        for call in calls_in(place.statement, "fft")
        if (dimension := _dimension(place, call)) is not None
    ]
    if len(calls) != 1:
        return None
    (call, dimension), *_ = calls
    lines = {place.line}
    search = _Search(dimension, lines)
    halves = list(search.halves(place, call, nodes_around(place.statement, call)))
    texts = [ast.unparse(one) for one in halves if one is not None]
    if not texts or len(texts) < len(halves):
        return None
    return HalfSpectrum(texts[0], frozenset(lines))


def _dimension(place: Place, call: ast.Call) -> int | None:
    """Along which dimension a call of torch's transform goes; None for other calls, and others."""
    along = keyword(call, "dim") or (call.args[2] if len(call.args) > _HALF else None)
    text = ast.unparse(along) if along is not None else _LAST
    is_known = text.lstrip("-").isdigit() and (text == _LAST or not text.startswith("-"))
    return int(text) if is_known and qualified_name(place, call.func) == _TRANSFORM else None


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """For the reads of a transform."""

    dimension: int
    """That it goes along: the last, -1, or one that is counted from the first."""
    lines: set[int]
    """Of statements that compute with all of it."""

    def halves(
        self, place: Place, value: ast.expr, around: list[ast.AST], depth: int = 0
    ) -> Iterator[ast.expr | None]:
        """The expressions that take one half of a value, or of what is computed of it by value.

        None for each read of another kind.
        """
        waiting = [*around]
        while waiting and (outer := _computed(value, waiting)) is not None:
            value = outer
        parent = waiting[-1] if waiting else None
        if isinstance(parent, ast.Subscript) and parent.value is value:
            yield parent if self._is_half(place, parent.slice) else None
            return
        if isinstance(parent, ast.Attribute) and parent.attr == "narrow" and len(waiting) > 1:
            yield self._narrowed(place, waiting[-2])
            return
        where = place.program.place(parent) if isinstance(parent, ast.stmt) else None
        if where is None or depth == _DEEPEST:
            yield None
            return
        self.lines.add(where.line)
        if isinstance(parent, ast.Return):
            calls = calls_of(where)
            for at, call in calls:
                self.lines.add(at.line)
                yield from self.halves(at, call, nodes_around(at.statement, call), depth + 1)
            if not calls:
                yield None
            return
        names = [one.id for one in bound_names(where.statement) if isinstance(one, ast.Name)]
        if not isinstance(parent, ast.Assign) or parent.value is not value or len(names) != 1:
            yield None
            return
        yield from self._of_variable(where, names[0], depth)

    def _of_variable(self, where: Place, name: str, depth: int) -> Iterator[ast.expr | None]:
        """The same of the reads of what a statement binds."""
        for load, parents in reads_of_binding(where.scope, name, where.line):
            is_earlier = load.lineno <= (where.statement.end_lineno or where.line)
            is_of_shape = isinstance(parents[-1], ast.Attribute) and parents[-1].attr in _OF_SHAPE
            if is_of_shape or (is_earlier and where.loop is None):
                continue
            at = max(at for at, node in enumerate(parents) if isinstance(node, ast.stmt))
            yield from self.halves(where, load, parents[at:], depth + 1)

    def _narrowed(self, place: Place, call: ast.AST) -> ast.expr | None:
        """``power.narrow(-1, 0, n // 2 + 1)``; None for another part."""
        if not isinstance(call, ast.Call) or call.keywords or len(call.args) != _OF_NARROW:
            return None
        dimension, start, length = call.args
        is_own = ast.unparse(dimension) == str(self.dimension) and ast.unparse(start) == "0"
        return call if is_own and _are_halves(place, length, with_one=False) else None

    def _is_half(self, place: Place, index: ast.expr) -> bool:
        """Whether a subscript takes all of the other dimensions, and one half of the transform's.

        Of a single stretch the dimension is not known, but what is one longer than a half.
        """
        entries = index.elts if isinstance(index, ast.Tuple) else [index]
        if self.dimension >= len(entries):
            return False
        own = entries[self.dimension]
        others = [one for one in entries if one is not own]
        is_counted = self.dimension < 0 or not any(map(_is_ellipsis, entries))
        if not is_counted or not all(map(_is_whole, others)) or not isinstance(own, ast.Slice):
            return False
        is_first = own.lower is None or ast.unparse(own.lower) == "0"
        if not is_first or own.step is not None or own.upper is None:
            return False
        is_known = bool(others) or self.dimension == 0
        return _are_halves(place, own.upper, with_one=not is_known)


def _computed(value: ast.expr, waiting: list[ast.AST]) -> ast.expr | None:
    """What the innermost of the nodes around a value computes by value; takes these off them."""
    parent = waiting[-1]
    if isinstance(parent, (ast.BinOp, ast.UnaryOp)):
        if isinstance(parent.op, ast.MatMult):
            return None
        waiting.pop()
        return parent
    if isinstance(parent, ast.Attribute) and parent.attr in _PARTS:
        waiting.pop()
        return parent
    call = waiting[-2] if isinstance(parent, ast.Attribute) and len(waiting) > 1 else parent
    if not isinstance(call, ast.Call) or called_name(call).rstrip("_") not in _BY_VALUE:
        return None
    if call.func is not parent and not any(one is value for one in call.args):
        return None
    del waiting[-(1 + (call is not parent)) :]
    return call


def _are_halves(place: Place, end: ast.expr, *, with_one: bool) -> bool:
    """Whether what a stretch ends with is one half, or a name of such."""
    ends: list[ast.expr | None] = [end]
    if isinstance(end, (ast.Name, ast.Attribute)):
        ends = list(values_of(place, ast.unparse(end)))
    return bool(ends) and all(_is_of_half(one, with_one=with_one) for one in ends)


def _is_of_half(value: ast.expr | None, *, with_one: bool) -> bool:
    """Whether an expression is ``n // 2``, or ``n // 2 + 1``; ``with_one``: the second only."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        is_one = isinstance(value.right, ast.Constant) and value.right.value == 1
        return is_one and _is_of_half(value.left, with_one=False)
    if with_one or not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.FloorDiv):
        return False
    return isinstance(value.right, ast.Constant) and value.right.value == _HALF


def _is_whole(entry: ast.expr) -> bool:
    """Whether an entry of a subscript is ``:`` or ``...``."""
    if isinstance(entry, ast.Slice):
        return entry.lower is entry.upper is entry.step is None
    return _is_ellipsis(entry)


def _is_ellipsis(entry: ast.expr) -> bool:
    return isinstance(entry, ast.Constant) and entry.value is ...
