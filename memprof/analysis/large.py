"""One tensor that makes much of the peak: what it is by the statement that made it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import takewhile

import numpy as np

from memprof.analysis.suspicion import Pattern, Suspicion
from memprof.source_code.idioms import enlarged_copy
from memprof.source_code.program import Place, called_name, calls_in, place_of
from memprof.source_code.scopes import qualified_name
from memprof.source_code.torch_modes import under_autocast
from memprof.source_code.values import values_of
from memprof.source_code.verbs import CONVERTING, REPEATING
from memprof.trace import Category, Phase
from memprof.views.window import Bools, Ints, Window

__all__ = ["large"]

_LARGE = 0.2
_LEAST_ONE = 0.1
_RESIDENT = 2
"""Steps from which on something is kept rather than computed."""
_LEAST_SIDE = 16
_ELEMENTWISE = frozenset(
    ("add", "div", "eq", "isclose", "maximum", "minimum", "mul", "ne", "sub", "where")
)
_AFTERWARDS = (Phase.BACKWARD, Phase.OPTIMIZER)
"""No line of the program combines anything there; its stack may end in one that does, besides."""
_PRODUCTS = ("matmul", "bmm", "baddbmm", "mm", "einsum")
_IN_FLOAT32 = ("softmax", "log_softmax", "cross_entropy")
"""Functions that autocast runs in float32, whatever it is given."""


def large(window: Window) -> Iterator[Suspicion]:
    """The largest tensor that is no part of a model, if it makes much of the peak."""
    if window.peak.event < 0:
        return
    mask = window.at_peak & ~window.owned & (window.category != Category.INPUT)
    mask &= window.freed_in - window.made_in < _RESIDENT
    if not mask.any():
        return
    row = window.largest(mask)
    # Results and gradients of its size came of it; the first of them is where it began.
    # A block may be larger than asked for, where its rest was too small to split off.
    size = window.lives.requested[row]
    alike = ~window.owned & (window.lives.requested == size) & (window.category != Category.INPUT)
    nbytes = window.bytes_of(alike & window.at_peak)
    if window.share(nbytes) < _LARGE or window.share(int(size)) < _LEAST_ONE:
        return
    row = int(np.flatnonzero(alike & (window.made_in == window.made_in[row]))[0])
    pattern, certainty, what = _kind_of_large(window, row, _statement(window, row))
    if pattern is Pattern.BROADCAST:
        rows = np.flatnonzero(alike & (window.made_in >= 0))
    elif pattern is Pattern.REPEATED:
        rows = np.flatnonzero(alike & _repeating(window)[window.site])
    elif pattern is Pattern.LARGEST:
        row, rows = _chain(window, row, alike, nbytes)
    else:
        rows = np.flatnonzero(window.lives.stack == window.lives.stack[row])
    there = np.flatnonzero(alike & window.at_peak)
    if pattern is Pattern.LARGEST and len(there) > 1:
        what = f"are {len(there)} tensors of one size"
    yield Suspicion(
        pattern,
        row,
        there,
        certainty,
        what,
        nbytes,
        window.replayed(window.whole(rows)),
        {"tensors": len(there)},
    )


def _chain(window: Window, row: int, alike: Bools, nbytes: int) -> tuple[int, Ints]:
    """What its stack makes; if the peak does not depend on that, the like of one function.

    A chain of operations, or a pass through several modules, has several of them at any moment.
    """
    rows = np.flatnonzero(window.lives.stack == window.lives.stack[row])
    if 2 * window.replayed(window.whole(rows)).bytes >= nbytes:
        return row, rows
    frames = window.owners.sites.frames
    numbers: dict[tuple[str, str], int] = {}
    of_site = [numbers.setdefault((f.filename, f.name), len(numbers)) for f in frames]
    function = np.array(of_site, dtype=np.int64)[window.site]
    passing = alike & ~(_by_modules(window) & (window.category == Category.ACTIVATION))
    if not (passing & window.at_peak).any():
        return row, rows
    there = passing & window.at_peak
    main = int(np.bincount(function[there], weights=window.lives.size[there]).argmax())
    chain = np.flatnonzero(passing & (function == main) & (window.made_in >= 0))
    of_step = chain[window.made_in[chain] == window.made_in[row]]
    return int(of_step[0]) if len(of_step) else row, chain


def _by_modules(window: Window) -> Bools:
    """True if a module that the user's line calls made it, and no function on the line itself."""
    stacks = np.unique(window.lives.stack)
    made = np.zeros(len(window.trace.tables.stacks), dtype=bool)
    for stack in stacks.tolist():
        made[stack] = _is_made_by_a_module(window, int(np.argmax(window.lives.stack == stack)))
    return made[window.lives.stack]


def _statement(window: Window, row: int) -> Place | None:
    return place_of(window.frame_of(row))


def _kind_of_large(window: Window, row: int, place: Place | None) -> tuple[Pattern, float, str]:
    if place is not None and enlarged_copy(place.statement):
        return Pattern.GROWN_BY_COPY, 0.7, "are copied into a larger tensor again and again"
    side = _outer_product(window, row, place)
    if side:
        return Pattern.BROADCAST, 0.8, f"come of broadcasting {side} values against {side}"
    if place is not None and calls_in(place.statement, *REPEATING):
        return Pattern.REPEATED, 0.5, "come of repeating a smaller tensor"
    narrow = _half_as_large(window, row) and not _is_made_by_a_module(window, row)
    if narrow and place is not None and _widens(window, row, place):
        return Pattern.UPCAST, 0.7, "are a wider copy of a tensor that is there too"
    return Pattern.LARGEST, 0.35, "are one tensor"


def _widens(window: Window, row: int, place: Place) -> bool:
    """True if a statement converts a tensor, or calls what does so under autocast.

    A softmax that is twice as large as some other tensor is else that by chance.
    """
    calls = calls_in(place.statement, *_IN_FLOAT32)
    if calls_in(place.statement, *CONVERTING) or any(
        k.arg == "dtype" for c in calls for k in c.keywords
    ):
        return True
    return bool(calls) and under_autocast(window.stack(row))


def _repeating(window: Window) -> Bools:
    """Per site: whether its statement repeats a tensor."""
    places = [place_of(frame) for frame in window.owners.sites.frames]
    repeats = [p is not None and bool(calls_in(p.statement, *REPEATING)) for p in places]
    return np.array(repeats, dtype=bool)


def _is_made_by_a_module(window: Window, row: int) -> bool:
    """True if a module that the line calls made the tensor, and no function on the line itself."""
    line = window.frame_of(row)
    inside = takewhile(lambda frame: frame != line, window.stack(row))
    return any("_call_impl" in frame.name for frame in inside)


def _outer_product(window: Window, row: int, place: Place | None) -> int:
    """``n`` where the tensor has n × n values and two tensors of n values went in; 0 where not."""
    if place is None or not _combines(place) or window.phase[row] in _AFTERWARDS:
        return 0
    requested = int(window.lives.requested[row])
    before = ~window.owned & (window.lives.alloc < window.lives.alloc[row])
    there = window.lives.requested[before & (window.lives.free > window.lives.alloc[row])]
    for width, operand in ((4, 4), (2, 2), (8, 8), (1, 4), (1, 8)):
        side: int = round((requested / width) ** 0.5)
        fits = side > _LEAST_SIDE and side * side * width == requested
        if fits and int((there == side * operand).sum()) >= 2:
            return side
    return 0


def _combines(place: Place) -> bool:
    """Element by element: ``a - b``, ``a == b``, a loss of two tensors; no matrix product.

    Nor one that is scaled or masked, as ``q @ k.mT / sqrt(d)`` is.
    """
    for node in ast.walk(place.statement):
        if isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.MatMult, ast.FloorDiv)):
            sides = (node.left, node.right)
            scaled = not isinstance(node.op, ast.Sub) and any(map(_is_product, sides))
            if not scaled and not any(isinstance(side, ast.Constant) for side in sides):
                return True
        if isinstance(node, ast.Compare):
            return True
        if isinstance(node, ast.Call) and (
            called_name(node) in _ELEMENTWISE or _is_loss(place, node)
        ):
            return True
    return False


def _is_loss(place: Place, call: ast.Call) -> bool:
    """``F.mse_loss(a, b)``, or a call of what is made by ``nn.MSELoss()`` or its like."""
    if qualified_name(place, call.func).startswith("torch.") and called_name(call).endswith(
        "_loss"
    ):
        return True
    values = values_of(place, ast.unparse(call.func))
    return any(one is not None and called_name(one).endswith("Loss") for one in values)


def _is_product(expression: ast.expr) -> bool:
    """True if a product of matrices is in it, by ``@`` or by a function."""
    at = (isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult) for n in ast.walk(expression))
    return any(at) or bool(calls_in(expression, *_PRODUCTS))


def _half_as_large(window: Window, row: int) -> bool:
    """True if a tensor of half its bytes, made before it, is there at the peak as well."""
    requested = window.lives.requested
    half = window.at_peak & (2 * requested == requested[row])
    half &= window.lives.alloc < window.lives.alloc[row]
    return bool((half & ~window.owned).any())
