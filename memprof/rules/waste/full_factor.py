"""full-factor: a decomposition makes a square factor, of which the first columns are read."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isqrt

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import made_by_its_statement
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, bound_names, called_name, place_of
from memprof.source_code.scopes import qualified_name, reads_of
from memprof.trace import SURVIVOR_AGE
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak, in full factors."""
_OF_SHAPE = frozenset(("device", "dtype", "ndim", "shape", "size"))
_LEAST_TIMES = 2
"""The full factor over the thin one: a matrix that is nearly square has little to save."""


_FACTORS = {"svd": ("U", "S", "Vh", "V"), "qr": ("Q", "R")}
"""The attributes of what the functions return."""


@dataclass(frozen=True, slots=True, eq=False)
class _Decomposition:
    """A call that completes its factors, and what a program reads of them."""

    function: str
    thin: str
    """The argument that asks for thin factors."""
    right: int
    """The index of the right factor that has an entry for each singular value."""
    reads: tuple[tuple[str, ast.expr, list[ast.AST]], ...]
    """Each read of a factor, or (empty) of all at once, with the nodes around it."""

    def is_cut(self, factor: int) -> bool:
        """Whether each read of the left factor (0) takes its first columns, or of the other (1)."""
        names: tuple[str, ...]
        if factor == 0:
            names, entry = ("U", "Q"), -1
        else:
            names, entry = ("R", *_FACTORS["svd"][2:]), self.right
        reads = [(load, around) for name, load, around in self.reads if name in (*names, "")]
        return all(_is_cut(load, around, entry) for load, around in reads)


@dataclass(frozen=True, slots=True, eq=False)
class FullFactorMatch(Match):
    """What completes the factor, and the argument by which it does not."""

    function: str = "svd"
    thin: str = "full_matrices=False"


class FullFactor(WasteRule[FullFactorMatch]):
    """`u, s, vh = torch.linalg.svd(tall)`: `u` is square, and `u[:, :rank]` is what is used."""

    name = "full-factor"
    summary = "a decomposition makes a square factor, of which the first columns are read"
    fixes = ("thin_factors",)

    def matches(self, window: Window) -> Iterator[FullFactorMatch]:
        """Large tensors of the peak, where a thin factor would do."""
        if window.peak.event < 0:
            return
        # A view of a full factor may well be what a model is given.
        mask = window.at_peak & ~window.has_owner
        mask &= window.freed_in - window.made_in <= SURVIVOR_AGE
        for site in window.large_sites(mask, _LEAST_SHARE):
            row = window.largest(mask & (window.site == site))
            place = place_of(window.frame_of(row))
            if place is not None and made_by_its_statement(window, row):
                yield from self._match_at(window, row, place)

    def _match_at(self, window: Window, row: int, place: Place) -> Iterator[FullFactorMatch]:
        """The tensor, where it is a full factor of which the first columns are read."""
        decomposition = _decomposition(place)
        if decomposition is None:
            return
        of_qr = decomposition.function == "qr"
        full, thin = _with_thin(window, row, of_qr=of_qr)
        if not len(full):
            return
        completed = (0, 1) if of_qr else _completed(window, full, thin)
        if not all(map(decomposition.is_cut, completed)):
            return
        there = full[window.at_peak[full]]
        lives = window.lives
        # Instead of a full one there is a thin one for as long.
        cuts = Cuts(
            np.concatenate([full, thin]),
            np.concatenate([lives.alloc[full], lives.free[full]]),
            np.concatenate([lives.free[full], lives.alloc[full]]),
        )
        yield FullFactorMatch(
            row=row,
            rows=there,
            nbytes=int(lives.size[there].sum()),
            saving=window.replayed(cuts),
            function=decomposition.function,
            thin=decomposition.thin,
        )

    def title(self, match: FullFactorMatch) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are."""
        return "are a square factor of a decomposition, of which the first columns are read"

    def advice(self, match: FullFactorMatch, case: Case) -> Iterator[Advice]:
        """Ask for thin factors."""
        why = (
            f"`{match.function}` completes a factor of {format_bytes(match.nbytes)} to a square "
            f"matrix: `{match.thin}` makes the columns alone that belong to "
            f"{'columns of the matrix' if match.function == 'qr' else 'singular values'}."
        )
        yield Advice("thin_factors", why, case.site, typed=match.thin)


def _decomposition(place: Place) -> _Decomposition | None:
    """The full decomposition that a statement binds; None where it is not that."""
    statement = place.statement
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    value, names = statement.value, bound_names(statement)
    call = value.value if isinstance(value, (ast.Attribute, ast.Subscript)) else value
    thin = _argument_of_thin(place, call) if isinstance(call, ast.Call) else ""
    if not thin or not all(isinstance(one, ast.Name) for one in names):
        return None
    function = called_name(call)
    variables = [one.id for one in names if isinstance(one, ast.Name)]
    if call is not value:
        factor = _factor_read(function, value)
        factors = [factor] if factor else []
    elif len(variables) == 1:
        factors = []
    else:
        factors = [*_FACTORS[function][: len(variables)]]
    if len(factors) != len(variables) and (factors or call is not value):
        return None
    right = -1 if thin == "some=True" and function == "svd" else 0  # `V` is not transposed
    pairs = zip(factors, variables, strict=True) if factors else [("", variables[0])]
    return _Decomposition(function, thin, right, tuple(_reads(place, function, pairs)))


def _argument_of_thin(place: Place, call: ast.Call) -> str:
    """The argument that makes the factors of a call thin; empty where it is no such, or has it."""
    name = called_name(call)
    of_torch = qualified_name(place, call.func)
    is_linalg = of_torch == f"torch.linalg.{name}"
    if name not in _FACTORS or not (of_torch in ("", f"torch.{name}") or is_linalg):
        return ""
    given = [*call.args[1 if of_torch else 0 :]][:1]
    if name == "svd" and is_linalg:
        given += [one] if (one := keyword(call, "full_matrices")) else []
        return "full_matrices=False" if all(_is(one, value=True) for one in given) else ""
    if is_linalg:
        given += [one] if (one := keyword(call, "mode")) else []
        is_full = bool(given) and all(_is(one, value="complete") for one in given)
        return 'mode="reduced"' if is_full else ""
    given += [one] if (one := keyword(call, "some")) else []
    return "some=True" if given and all(_is(one, value=False) for one in given) else ""


def _is(node: ast.expr, *, value: object) -> bool:
    return (
        isinstance(node, ast.Constant) and type(node.value) is type(value) and node.value == value
    )


def _reads(
    place: Place, function: str, pairs: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, ast.expr, list[ast.AST]]]:
    """Each read of a factor: of its variable, or of a part of the one that has them all."""
    for factor, variable in pairs:
        for load, around in reads_of(place.scope, variable):
            if factor:
                yield factor, load, around
                continue
            part = around[-1]
            name = _factor_read(function, part) if isinstance(part, ast.expr) else ""
            if name and isinstance(part, ast.expr):
                yield name, part, around[:-1]
            else:
                yield "", load, around


def _factor_read(function: str, part: ast.expr) -> str:
    """Which factor an expression takes of all of them: ``factors.U``, ``factors[0]``."""
    names = _FACTORS[function]
    if isinstance(part, ast.Attribute):
        return part.attr if part.attr in names else ""
    index = part.slice if isinstance(part, ast.Subscript) else None
    if not isinstance(index, ast.Constant) or type(index.value) is not int:
        return ""
    return names[index.value] if 0 <= index.value < len(names) else ""


def _completed(window: Window, full: Ints, thin: Ints) -> tuple[int, ...]:
    """Which of the two factors are the completed ones: a call makes both, with values between.

    The other one is square as it is: a thin one is no smaller.
    """
    lives = window.lives
    made = np.flatnonzero((lives.stack == lives.stack[full[0]]) & (lives.alloc >= 0))
    sizes = lives.requested[made[np.argsort(lives.alloc[made], kind="stable")]]
    large, small = int(lives.requested[full[0]]), int(lives.requested[thin[0]])
    is_between = sizes[1:-1] <= np.minimum(sizes[:-2], sizes[2:])
    apart = list(zip(sizes[:-2][is_between].tolist(), sizes[2:][is_between].tolist(), strict=True))
    other = small**2 // large
    is_left, is_right = (large, other) in apart, (other, large) in apart
    if is_left is is_right:
        return (0, 1)
    return (0,) if is_left else (1,)


def _is_cut(load: ast.expr, around: list[ast.AST], entry: int) -> bool:
    """Whether a read of a factor takes its first columns, or rows: ``u[:, :rank]``."""
    parent = around[-1]
    if isinstance(parent, ast.Attribute) and parent.attr in _OF_SHAPE:
        return True
    if isinstance(parent, ast.Attribute):
        call = around[-2] if len(around) > 1 else None
        return isinstance(call, ast.Call) and call.func is parent and _narrows(call, entry)
    if not isinstance(parent, ast.Subscript) or parent.value is not load:
        return False
    index = parent.slice
    entries = index.elts if isinstance(index, ast.Tuple) else [index]
    if entry and not isinstance(index, ast.Tuple):
        return False
    of_all = isinstance(entries[0], ast.Constant) and entries[0].value is Ellipsis
    if of_all and not entry:
        return len(entries) > len(("...", "rows")) and _is_of_first(entries[-2])
    return _is_of_first(entries[entry])


def _narrows(call: ast.Call, entry: int) -> bool:
    """Whether a call takes the first columns (-1) or rows (0): ``u.narrow(1, 0, rank)``."""
    if called_name(call) != "narrow":
        return False
    given = dict(zip(("dim", "start", "length"), call.args, strict=False))
    given |= {one.arg: one.value for one in call.keywords if one.arg is not None}
    if set(given) != {"dim", "start", "length"} or not _is(given["start"], value=0):
        return False
    return ast.unparse(given["dim"]) in (("1", "-1") if entry else ("0", "-2"))


def _is_of_first(entry: ast.expr) -> bool:
    """Whether an entry of a subscript takes one place, or some from the start on."""
    if isinstance(entry, ast.Slice):
        return entry.upper is not None and not isinstance(entry.upper, ast.UnaryOp)
    return isinstance(entry, ast.Constant) and type(entry.value) is int


def _with_thin(window: Window, row: int, *, of_qr: bool) -> tuple[Ints, Ints]:
    """The full factors in every step, and for each a lifetime that takes what a thin one does.

    Both factors of an `svd` are square, so a thin one takes the square root of the product of their
    sizes. So does the matrix that is decomposed, and its copy. The other factor of a `qr` is as
    large as the matrix.
    """
    lives = window.lives
    same = np.flatnonzero((lives.stack == lives.stack[row]) & (lives.alloc >= 0))
    size = int(lives.requested[row])
    others = set(lives.requested[same].tolist())
    roots = {isqrt(size * other) for other in others if isqrt(size * other) ** 2 == size * other}
    sizes = others if of_qr else roots.intersection(lives.requested.tolist())
    thin = max((one for one in sizes if one * _LEAST_TIMES <= size), default=-1)
    as_large = np.flatnonzero(lives.requested == thin)
    full = same[lives.requested[same] == size]
    return (full, np.repeat(as_large[:1], len(full))) if len(as_large) else (full[:0], full[:0])


RULE = FullFactor()
