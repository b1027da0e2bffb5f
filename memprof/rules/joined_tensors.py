"""Tensors that a line of the program joined from parts, and those parts."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.source_code.idioms import enlarged_copy, keyword
from memprof.source_code.program import Place, bound_names, called_name, own_calls, place_of
from memprof.source_code.values import values_of
from memprof.source_code.verbs import JOINING
from memprof.views.window import Ints, Window

__all__ = ["FEWEST_PARTS", "all_joined", "is_joined_again", "joined_at_peak", "parts_of"]

_LEAST_SHARE = 0.1
"""Of the peak, that the joined tensor has: a smaller one is not what makes it."""
FEWEST_PARTS = 3
"""Two operands of a sum are as large as its result now and then; a list of parts is longer."""
_MOST_BESIDE = 2
"""Tensors of a part's size that are none: what the last part was made of may be there still."""


def joined_at_peak(window: Window) -> Iterator[int]:
    """The rows of large tensors at the peak that a line joined, the last made first."""
    if window.peak.event < 0:
        return
    lives = window.lives
    large = window.at_peak & ~window.has_owner
    large &= lives.size >= _LEAST_SHARE * window.peak.bytes
    yield from (row for row in np.flatnonzero(large)[::-1].tolist() if _is_joined(window, row))


def _is_joined(window: Window, row: int) -> bool:
    """Whether the line that made a tensor joins others to it."""
    place = place_of(window.frame_of(row))
    if place is None:
        return False
    return bool(own_calls(place.statement, *JOINING)) and not is_joined_again(window, row)


def is_joined_again(window: Window, row: int) -> bool:
    """Whether the line that made a tensor joins the last few of a queue, or adds to a tensor."""
    place = place_of(window.frame_of(row))
    if place is None:
        return True
    joins = own_calls(place.statement, *JOINING)
    is_of_queue = any(_is_of_last_few(place, one) for one in joins)
    return is_of_queue or bool(enlarged_copy(place.statement))


def _is_of_last_few(place: Place, join: ast.Call) -> bool:
    """Whether a call joins what a queue of a largest length holds, which is joined again later.

    ``torch.stack(tuple(self.recent))`` with ``self.recent = deque(maxlen=12)``.
    """
    nodes = [node for argument in join.args for node in ast.walk(argument)]
    names = [ast.unparse(one) for one in nodes if isinstance(one, (ast.Name, ast.Attribute))]
    return any(
        isinstance(value, ast.Call)
        and called_name(value) == "deque"
        and (keyword(value, "maxlen") is not None or len(value.args) > 1)
        for name in names
        for value in _values_of(place, name)
    )


def _values_of(place: Place, name: str) -> list[ast.expr | None]:
    """What a name is bound to in its function, else anywhere in the file."""
    own = list(values_of(place, name))
    if own:
        return own
    nodes = (node for node in place.program.nodes if isinstance(node, ast.Assign))
    return [one.value for one in nodes if name in map(ast.unparse, bound_names(one))]


def parts_of(window: Window, row: int) -> Ints:
    """Tensors that were there when ``row`` was made, and are together as large as it is.

    Of one line, else all of one size. Of what was there before the window the order is not known.
    """
    lives = window.lives
    made = lives.alloc[row]
    earlier = (lives.alloc < made) | (lives.alloc < 0)
    before = ~window.has_owner & earlier & (lives.free > made)
    before[row] = False
    whole_size = int(lives.requested[row])
    for site in np.unique(window.site[before]):
        rows = np.flatnonzero(before & (window.site == site))
        if len(rows) >= FEWEST_PARTS and int(lives.requested[rows].sum()) == whole_size:
            return rows
        alike: Ints = rows[lives.requested[rows] * _times(lives.requested[rows]) == whole_size]
        if len(alike) >= FEWEST_PARTS:  # of several sets, those of one size, as of one weight
            return alike
    rows = np.flatnonzero(before)
    sizes = lives.requested[rows]
    of_lines: Ints = rows[sizes * _times(sizes) == whole_size]
    if len(of_lines) >= FEWEST_PARTS:
        return of_lines
    for size in np.unique(sizes[sizes * FEWEST_PARTS <= whole_size]).tolist():
        of_size: Ints = rows[sizes == size]
        number, rest = divmod(whole_size, size) if size else (0, 1)
        if not rest and number <= len(of_size) <= number + _MOST_BESIDE:
            return of_size[:number]
    return of_lines[:0]


def _times(sizes: Ints) -> Ints:
    """How often each size is there."""
    _, place, times = np.unique(sizes, return_inverse=True, return_counts=True)
    often: Ints = times[place.reshape(-1)]
    return often


def all_joined(window: Window, row: int) -> tuple[Ints, Ints]:
    """Every part that the same stack joins, and beside it the row of what it is joined into."""
    same = np.flatnonzero(window.lives.stack == window.lives.stack[row])
    joins = [(result_rows, parts_of(window, result_rows)) for result_rows in same.tolist()]
    result_rows = [np.full(len(parts), one, dtype=np.int64) for one, parts in joins]
    return np.concatenate(result_rows), np.concatenate([parts for _, parts in joins])
