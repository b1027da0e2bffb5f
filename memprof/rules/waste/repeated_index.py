"""repeated-index: an index is copied for each value of a row, where it could be shown again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, called_name, calls_in, place_of
from memprof.source_code.scopes import reads_of
from memprof.source_code.values import values_of
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, in the indices of one line."""
_READERS = frozenset(
    (
        *("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce"),
        *("scatter_reduce_", "take_along_dim"),
    )
)
"""Functions whose index has a place for each value, and may be a view."""
_REPEATS = ("repeat", "tile")
_TORCH = "torch"


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedIndex(Match):
    """How it is made."""

    code: str = ""
    """As the program has it."""
    instead: str = ""
    """The same as a view."""


class RepeatedIndexRule(WasteRule[RepeatedIndex]):
    """`torch.gather(x, 1, keep.unsqueeze(-1).repeat(1, 1, D))`: eight bytes for each value."""

    name = "repeated-index"
    summary = "an index is copied for each value of a row"
    fixes = ("expand_index",)

    def matches(self, window: Window) -> Iterator[RepeatedIndex]:
        """The line whose indices make much of the peak, and are repeated for a `gather`."""
        if window.peak.event < 0:
            return
        lives = window.lives
        mine = ~window.has_owner & (lives.alloc >= 0)
        for site in window.large_sites(mine & window.at_peak, _LEAST_SHARE):
            place = place_of(window.owners.sites.frames[site])
            call = _repetition(place) if place is not None else None
            if call is None:
                continue
            # Its values have eight bytes each; what is gathered by them on the same line has four.
            there = mine & window.at_peak & (window.site == site)
            size = int(lives.requested[there].max())
            alike = mine & (window.site == site) & (2 * lives.requested > size)
            there &= 2 * lives.requested > size
            nbytes = window.bytes_of(there)
            if window.share(nbytes) >= _LEAST_SHARE:
                yield RepeatedIndex(
                    row=window.largest(there),
                    rows=np.flatnonzero(there),
                    nbytes=nbytes,
                    saving=window.replayed(window.whole(np.flatnonzero(alike))),
                    code=ast.unparse(call),
                    instead=_as_view(call),
                )
                return

    def title(self, match: RepeatedIndex) -> str:
        """Say what is repeated."""
        return f"are an index that is copied for each value of a row, `{match.code}`"

    def advice(self, match: RepeatedIndex, case: Case) -> Iterator[Advice]:
        """Show it again."""
        why = (
            f"{format_bytes(match.nbytes)} hold the same index again and again, eight bytes for "
            "each value, and the backward pass keeps them: `expand` shows it as often, and takes "
            "no memory."
        )
        yield Advice("expand_index", why, case.site, typed=match.instead)


def _repetition(place: Place) -> ast.Call | None:
    """The call of ``repeat`` by which a statement makes the index of a ``gather``, if one does."""
    for call in calls_in(place.statement, *_REPEATS):
        if _adds_a_dimension(call) and _is_read_as_index(place, call):
            return call
    return None


def _repeated(call: ast.Call) -> tuple[ast.expr | None, list[ast.expr]]:
    """What a call repeats, and how often along each dimension: ``torch.tile(x, (1, 1, n))`` too."""
    if not isinstance(call.func, ast.Attribute):
        return None, []
    value, given = call.func.value, _given(call)
    if isinstance(value, ast.Name) and value.id == _TORCH:
        value, given = (given[0], given[1:]) if given else (value, [])
    if len(given) == 1 and isinstance(given[0], (ast.List, ast.Tuple)):
        given = given[0].elts
    return value, given


def _adds_a_dimension(call: ast.Call) -> bool:
    """Whether it repeats along one dimension only, which was put in just before."""
    value, given = _repeated(call)
    counts = [at for at, one in enumerate(given) if not _is_one(one)]
    if value is None or len(counts) != 1 or any(isinstance(one, ast.Starred) for one in given):
        return False
    return _new_dimension(value, len(given)) == counts[0]


def _new_dimension(value: ast.expr, dimensions: int) -> int:
    """The dimension of length one that an expression puts in; -1 where that is not known."""
    if isinstance(value, ast.Subscript):
        entries = value.slice.elts if isinstance(value.slice, ast.Tuple) else []
        new = [at for at, one in enumerate(entries) if _is_constant(one, None)]
        if len(new) != 1:
            return -1
        from_end = any(_is_constant(one, ...) for one in entries[: new[0]])
        return dimensions - len(entries) + new[0] if from_end else new[0]
    if called_name(value) != "unsqueeze" or not isinstance(value, ast.Call):
        return -1
    given = value.args or [one.value for one in value.keywords if one.arg == "dim"]
    try:
        at = ast.literal_eval(given[0]) if given else None
    except ValueError:
        return -1
    if not isinstance(at, int):
        return -1
    return at if at >= 0 else dimensions + at


def _is_constant(value: ast.expr, wanted: object) -> bool:
    return isinstance(value, ast.Constant) and value.value is wanted


def _is_one(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value == 1


def _is_read_as_index(place: Place, call: ast.Call) -> bool:
    """Whether a ``gather`` alone reads it, on the spot or by its name.

    That may have been the index's own before: `index = index[..., None].repeat(1, 1, n)`.
    """
    readers = calls_in(place.scope, *_READERS)
    if any(call in _given(reader) for reader in readers):
        return True
    statement = place.statement
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    names = [one.id for one in statement.targets if isinstance(one, ast.Name)]
    if len(names) != 1:
        return False
    given = [argument for reader in readers for argument in _given(reader)]
    reads = [load for load, _ in reads_of(place.scope, names[0])]
    if len(list(values_of(place, names[0]))) != 1:
        reads = [load for load in reads if load.lineno > place.lines[-1]]
    return bool(reads) and all(load in given for load in reads)


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(one.value for one in call.keywords)]


def _as_view(call: ast.Call) -> str:
    """``keep.unsqueeze(-1).expand(-1, -1, D)``."""
    value, counts = _repeated(call)
    assert value is not None
    sizes = ["-1" if _is_one(one) else ast.unparse(one) for one in counts]
    return f"{ast.unparse(value)}.expand({', '.join(sizes)})"


RULE = RepeatedIndexRule()
