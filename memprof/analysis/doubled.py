"""Bytes that are there twice: as parts and joined, in two optimizers, in double precision."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from memprof.analysis.suspicion import Pattern, Suspicion
from memprof.source_code.idioms import enlarged_copy
from memprof.source_code.program import calls_in, place_of
from memprof.source_code.verbs import JOINING
from memprof.trace import Category
from memprof.views.peak_without import Cuts, Saving
from memprof.views.window import Bools, Ints, Window

__all__ = ["doubled"]

_LEAST_JOINED = 0.1
"""Share of the peak that the joined tensor has."""
_FEWEST_PARTS = 3
_LEAST_COMMON = 0.9
_LEAST_STATE = 64
"""Bytes; a count of steps is less."""
_OPTIMIZER_FILE = re.compile(r"/torch/optim/\w+\.py$")
_MODULE_FILE = "/torch/nn/modules/module.py"
_LEAST_DOUBLE = 0.9


def doubled(window: Window) -> Iterator[Suspicion]:
    """What one copy, or half the width, would do for."""
    if window.peak.event < 0:
        return
    yield from _joined(window)
    yield from _second_states(window)
    yield from _double_precision(window)


def _joined(window: Window) -> Iterator[Suspicion]:
    """A tensor at the peak that a line joined from parts that are there as well."""
    lives = window.lives
    large = window.at_peak & ~window.owned & (lives.alloc >= 0)
    large &= lives.size >= _LEAST_JOINED * window.peak.bytes
    for row in np.flatnonzero(large)[::-1].tolist():
        if not _joins(window, row):
            continue
        parts = _parts(window, row)
        at_peak = parts[window.at_peak[parts]]
        if len(at_peak) < _FEWEST_PARTS:
            continue
        joined, every = _all_joined(window, row)
        dropped = window.replayed(window.ended(every, lives.alloc[joined] + 1))
        filled = window.replayed(_filled(window, joined, every))
        drop = bool(dropped.bytes >= 0.8 * filled.bytes)
        yield Suspicion(
            Pattern.JOINED,
            row,
            at_peak,
            0.6 if drop else 0.45,
            f"are {len(at_peak)} parts, there beside the tensor that is joined from them",
            int(lives.size[at_peak].sum()),
            max(dropped, filled, key=lambda saving: saving.bytes),
            {"drop": drop},
        )
        return


def _joins(window: Window, row: int) -> bool:
    place = place_of(window.frame_of(row))
    if place is None or enlarged_copy(place.statement):
        return False
    return bool(calls_in(place.statement, *JOINING))


def _parts(window: Window, row: int) -> Ints:
    """Tensors of one line, there when ``row`` was made, that are together as large as it is."""
    lives = window.lives
    before = ~window.owned & (lives.alloc < lives.alloc[row]) & (lives.free > lives.alloc[row])
    wanted = int(lives.requested[row])
    for site in np.unique(window.site[before]):
        rows = np.flatnonzero(before & (window.site == site))
        if len(rows) >= _FEWEST_PARTS and int(lives.requested[rows].sum()) == wanted:
            return rows
        alike: Ints = rows[lives.requested[rows] * _times(lives.requested[rows]) == wanted]
        if len(alike) >= _FEWEST_PARTS:  # of several sets, those of one size, as of one weight
            return alike
    return np.zeros(0, dtype=np.int64)


def _times(sizes: Ints) -> Ints:
    """How often each size is there."""
    _, place, times = np.unique(sizes, return_inverse=True, return_counts=True)
    often: Ints = times[place.reshape(-1)]
    return often


def _all_joined(window: Window, row: int) -> tuple[Ints, Ints]:
    """Every part that the same stack joins, and beside it the row of what it is joined into."""
    same = np.flatnonzero(window.lives.stack == window.lives.stack[row])
    found = [(joined, _parts(window, joined)) for joined in same.tolist()]
    joined = [np.full(len(parts), one, dtype=np.int64) for one, parts in found]
    return np.concatenate(joined), np.concatenate([parts for _, parts in found])


def _filled(window: Window, joined: Ints, parts: Ints) -> Cuts:
    """No parts, but what they are joined into from the first of them on."""
    lives = window.lives
    results = np.unique(joined)
    first = np.array([lives.alloc[parts[joined == one]].min() for one in results], dtype=np.int64)
    whole = window.whole(parts)
    return Cuts(
        np.concatenate([whole.rows, results]),
        np.concatenate([whole.start, lives.alloc[results]]),
        np.concatenate([whole.end, first]),
    )


def _second_states(window: Window) -> Iterator[Suspicion]:
    """State of an optimizer for parameters of which another one has made state later."""
    frames = window.trace.tables.frames
    torch_s = [bool(_OPTIMIZER_FILE.search(f.filename.replace("\\", "/"))) for f in frames]
    stacks = np.array([any(torch_s[i] for i in s) for s in window.trace.tables.stacks])
    state = (window.category == Category.OPTIMIZER_STATE) & window.at_peak
    state &= stacks[window.lives.stack] & (window.lives.requested > _LEAST_STATE)
    steps = np.unique(window.made_in[state]).tolist()
    for number, step in enumerate(steps):
        older = state & (window.made_in == step)
        newer = state & np.isin(window.made_in, steps[number + 1 :])
        keys = set(_keys(window, newer))
        twice = np.array([key in keys for key in _keys(window, older)], dtype=bool)
        rows = np.flatnonzero(older)
        replaced = 2 * window.bytes_of(older) < window.bytes_of(newer)  # it is on its way out
        if not twice.any() or twice.mean() < _LEAST_COMMON or replaced:
            continue
        yield Suspicion(
            Pattern.SECOND_STATES,
            window.main_site(older),
            rows,
            0.55,
            "are state of one optimizer for parameters that a later one has state for as well",
            window.bytes_of(older),
            window.replayed(window.ended(rows, np.full(len(rows), _first_made(window, newer)))),
        )
        return


def _first_made(window: Window, rows: Bools) -> int:
    return int(window.lives.alloc[rows].min())


def _keys(window: Window, rows: Bools) -> list[tuple[int, int]]:
    """Module and bytes of each row: of its parameter, as a state has its parameter's size."""
    return list(
        zip(window.module[rows].tolist(), window.lives.requested[rows].tolist(), strict=True)
    )


def _double_precision(window: Window) -> Iterator[Suspicion]:
    """A model that ``.double()`` has converted: all that is computed with it is twice as wide."""
    frames = window.trace.tables.frames
    casts = [f.name.rpartition(".")[2] == "double" and
             f.filename.replace("\\", "/").endswith(_MODULE_FILE) for f in frames]  # fmt: skip
    stacks = np.array([any(casts[i] for i in s) for s in window.trace.tables.stacks])
    parameters = window.at_peak & (window.category == Category.PARAMETER)
    cast = parameters & stacks[window.lives.stack]
    if not cast.any() or window.bytes_of(cast) < _LEAST_DOUBLE * window.bytes_of(parameters):
        return
    peak = window.peak.bytes
    yield Suspicion(
        Pattern.DOUBLE_PRECISION,
        window.main_site(cast),
        np.flatnonzero(window.at_peak),
        0.55,
        "are in double precision",
        peak,
        Saving(peak, peak - peak // 2),
    )
