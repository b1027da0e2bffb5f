"""discarded-precision: values are kept in float64, and made float32 before they are used."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import made_by_its_statement
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, Program, called_name, calls_in, place_of
from memprof.source_code.verbs import FACTORIES
from memprof.trace import SURVIVOR_AGE, Category
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_OUTSIDE, _PROMOTED, _MEANT = 0, 1, 2
"""Of `records.DoubleResults.origin`: what the program asked for itself is meant."""
_LEAST_SHARE = 0.1
"""Of the peak, that is made in the type of such data."""
_LEAST_TAKEN = 0.05
"""Of the data: so much is converted, where steps take batches out of it. A few numbers that are
made float32 say nothing of it."""
_DOUBLE = frozenset(
    ("DoubleTensor", "complex128", "complex_", "double", "f8", "float64", "set_default_dtype")
)
"""How torch and NumPy call the type."""
_OF_OWN_TYPE = ("new_empty", "new_full", "new_ones", "new_zeros")
"""Methods that make a tensor of the type that theirs has."""
_FROM_NUMPY = "from_numpy"
_TAKING = (_FROM_NUMPY, "as_tensor", "asarray", "tensor")
"""Functions that take NumPy's data with its type."""
_LARGE = 4
"""The line that is told made the first tensor of at least such a part of the largest's bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class DiscardedPrecision(Match):
    """Results in double precision that nobody asked for."""

    promoted: bool = False
    """Data in float32 went in: something in float64 that it was combined with made them so."""
    typed_as: str = ""
    """The program asks for the type of other data here, as written: ``dtype=self.window.dtype``."""
    origin: Place | None = None
    """Where that data is taken from NumPy, if that is known."""


class DiscardedPrecisionRule(WasteRule[DiscardedPrecision]):
    """A table of NumPy's, which is float64, times audio in float32: all that follows is float64."""

    name = "discarded-precision"
    summary = "values are in float64 for a while, and float32 before and after"
    fixes = ("single_precision",)

    def matches(self, window: Window) -> Iterator[DiscardedPrecision]:
        """Results at the peak that are in double precision through NumPy's data alone.

        Only where it is given up: results of float32 are float32 again later, and of data that
        came so as much is converted as is there, or as steps take out of it.
        """
        yield from _typed_as_data(window)
        yield from _made_like_data(window)
        narrowed = sum(one.narrowed_bytes for one in window.doubles)
        if not narrowed or window.peak.event < 0:
            return
        yield from _converted_to_type_of_data(window, narrowed)
        of_promotion, of_data = _rows(window, _PROMOTED), _rows(window, _OUTSIDE)
        there = of_data[window.at_peak[of_data]]
        lasting = window.freed_in[of_data] - window.made_in[of_data] >= SURVIVOR_AGE
        is_taken = ~lasting & ~np.isin(window.made_in[of_data], window.made_in[of_data[lasting]])
        taken_bytes = int(window.lives.size[of_data[is_taken]].sum())
        there_bytes = int(window.lives.size[there].sum())
        is_given_up = there_bytes <= narrowed
        is_given_up |= taken_bytes <= narrowed >= _LEAST_TAKEN * there_bytes
        rows = np.union1d(of_promotion, of_data) if is_given_up else of_promotion
        at_peak = rows[window.at_peak[rows]]
        if not len(at_peak):
            return
        sizes = window.lives.size[at_peak]
        large = at_peak[_LARGE * sizes >= sizes.max()]
        row = int(large[np.argmin(window.lives.alloc[large])])
        yield DiscardedPrecision(
            row=row,
            rows=at_peak,
            nbytes=int(sizes.sum()),
            saving=window.replayed(window.whole(rows), divisor=2),
            promoted=row in of_promotion,
        )

    def title(self, match: DiscardedPrecision) -> str:
        """Say how wide they are."""
        if match.typed_as:
            return "are in double precision, as is the data whose type they are given"
        return "are in double precision, which is given up later"

    def advice(self, match: DiscardedPrecision, case: Case) -> Iterator[Advice]:
        """Convert what is in float64 where it comes from."""
        nbytes = format_bytes(match.nbytes)
        if match.typed_as:
            why = (
                f"`{match.typed_as}` takes the type of data that came in float64, as NumPy's does: "
                f"of {nbytes} half is saved by `.float()` where that data is made."
            )
        elif match.promoted:
            why = (
                "Data in float32 meets some in float64 here, as NumPy's tables are, so the result "
                f"is float64, and float32 again later: of {nbytes} half is saved by `.float()` "
                "where the table is made."
            )
        else:
            why = (
                f"The data came in float64, as NumPy's does, and {nbytes} of it stay so until they "
                "are made float32 to be used: `.float()` when it is loaded takes half."
            )
        yield Advice("single_precision", why, match.origin or case.site)


def _typed_as_data(window: Window) -> Iterator[DiscardedPrecision]:
    """What is made in the type of other data, where NumPy's came in float64 and nobody asked."""
    if window.peak.event < 0 or not any(_OUTSIDE in one.origin for one in window.doubles):
        return
    yield from _typed(window, _rows(window, _MEANT), _type_taken)


def _typed(
    window: Window, rows: Ints, type_of: Callable[[Place | None], str]
) -> Iterator[DiscardedPrecision]:
    """Of each line that made much of some rows: that it takes the type of other data."""
    there = rows[window.at_peak[rows]]
    for site in np.unique(window.site[there]).tolist():
        own = there[window.site[there] == site]
        nbytes = int(window.lives.size[own].sum())
        row = int(own[window.lives.size[own].argmax()])
        typed_as = type_of(place_of(window.frame_of(row)))
        if typed_as and window.share(nbytes) >= _LEAST_SHARE:
            every = rows[window.site[rows] == site]
            saving = window.replayed(window.whole(every), divisor=2)
            yield DiscardedPrecision(row, own, nbytes, saving, typed_as=typed_as)


def _converted_to_type_of_data(window: Window, narrowed: int) -> Iterator[DiscardedPrecision]:
    """What is computed in float64 and made float32 again, where no file of the program asks for it.

    ``scale.to(self.freqs.dtype)``, of frequencies that came of NumPy: a way to ask for double
    precision without its name.
    """
    rows = _rows(window, _MEANT)
    there = rows[window.at_peak[rows]]
    nbytes = int(window.lives.size[there].sum())
    if window.share(nbytes) < _LEAST_SHARE or narrowed < _LEAST_TAKEN * nbytes:
        return
    if any(map(_asks_for_double, window.programs)):
        return
    if not any(calls_in(program.tree, *_TAKING) for program in window.programs):
        return
    taken = {text for program in window.programs for text in _types_of_others(program.tree)}
    large = there[_LARGE * window.lives.size[there] >= window.lives.size[there].max()]
    row = int(large[np.argmin(window.lives.alloc[large])])
    # Of several the type may be one or the other's; and a library may have its own reasons.
    if len(taken) == 1 and made_by_its_statement(window, row):
        saving = window.replayed(window.whole(rows), divisor=2)
        origin = _only_place_of_data(window)
        yield DiscardedPrecision(row, there, nbytes, saving, typed_as=taken.pop(), origin=origin)


def _only_place_of_data(window: Window) -> Place | None:
    """Where the program takes data from NumPy, if it does so at one place."""
    calls = [(one, call) for one in window.programs for call in calls_in(one.tree, _FROM_NUMPY)]
    return calls[0][0].place(calls[0][1]) if len(calls) == 1 else None


def _asks_for_double(program: Program) -> bool:
    """Whether a name, or a text, of a file says double precision."""
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in program.nodes}
    texts = {node.value for node in program.nodes if isinstance(node, ast.Constant)}
    types = {  # Python's `float` is float64
        node.value.id
        for node in program.nodes
        if isinstance(node, ast.keyword)
        and node.arg == "dtype"
        and isinstance(node.value, ast.Name)
    }
    named = _DOUBLE & (names | {one for one in texts if isinstance(one, str)})
    return bool(named or types & {"complex", "float"})


def _types_of_others(tree: ast.AST) -> Iterator[str]:
    """What conversions take a type from, as written: ``x.dtype`` of ``.to(x.dtype)``."""
    for call in calls_in(tree, "to", "type", "type_as"):
        for one in (*call.args, *(other.value for other in call.keywords)):
            if called_name(call) == "type_as":
                yield f"type_as({ast.unparse(one)})"
            elif isinstance(one, ast.Attribute) and one.attr == "dtype":
                yield ast.unparse(one)


def _made_like_data(window: Window) -> Iterator[DiscardedPrecision]:
    """What a method of data in float64 makes room in, for values that come in float32.

    ``canvas = self.window.new_zeros(…)``, and later ``canvas += scores.to(canvas.dtype)``.
    """
    rows = _rows(window, _OUTSIDE)
    if window.peak.event < 0 or not len(rows) or not _models_are_single(window):
        return
    meant = _rows(window, _MEANT).tolist()
    are_converted = (_takes_type_of_data(place_of(window.frame_of(row))) for row in meant)
    if not len(_rows(window, _PROMOTED)) and not any(are_converted):
        return
    yield from _typed(window, rows, _maker)


def _models_are_single(window: Window) -> bool:
    """Whether there are parameters, and no module has made anything in double precision."""
    if not (window.category == Category.PARAMETER).any():
        return False
    doubles = (_rows(window, origin) for origin in (_OUTSIDE, _PROMOTED, _MEANT))
    return not any((window.module[rows] > 0).any() for rows in doubles)


def _maker(place: Place | None) -> str:
    """``x.new_zeros`` of a statement that makes a tensor in the type of another; else empty."""
    for call in calls_in(place.statement, *_OF_OWN_TYPE) if place is not None else ():
        if keyword(call, "dtype") is None:
            return ast.unparse(call.func)
    return ""


def _takes_type_of_data(place: Place | None) -> bool:
    """Whether a statement converts something to another tensor's type: ``x.to(canvas.dtype)``."""
    return place is not None and any(_types_of_others(place.statement))


def _type_taken(place: Place | None) -> str:
    """The argument by which a statement makes a tensor in the type of another one; else empty."""
    for call in calls_in(place.statement, *FACTORIES) if place is not None else ():
        value = keyword(call, "dtype")
        if isinstance(value, ast.Attribute) and value.attr == "dtype":
            return f"dtype={ast.unparse(value)}"
    return ""


def _rows(window: Window, origin: int) -> Ints:
    """The lifetimes of one origin alone, told by their stack and size; none of a model."""
    known: dict[tuple[int, int], set[int]] = {}
    for record in window.doubles:
        columns = (record.stack, record.size, record.origin)
        for stack, size, reason in zip(*columns, strict=True):
            known.setdefault((stack, size), set()).add(reason)
    pairs = np.array([pair for pair, reasons in known.items() if reasons == {origin}], np.int64)
    lives = window.lives
    chosen = np.zeros(len(lives), dtype=bool)
    for stack, size in pairs.reshape(-1, 2).tolist():
        chosen |= (lives.stack == stack) & (lives.requested == size)
    return np.flatnonzero(chosen & ~window.has_owner)


RULE = DiscardedPrecisionRule()
