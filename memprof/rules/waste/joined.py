"""joined: parts are still there beside the tensor that was joined from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import NO_FIGURE, Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import enlarged_copy
from memprof.source_code.program import own_calls, place_of
from memprof.source_code.verbs import JOINING
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, that the joined tensor has: a smaller one is not what makes it."""
_FEWEST_PARTS = 3
"""Two operands of a sum are as large as its result now and then; a list of parts is longer."""
_LEAST_AS_GOOD = 0.8
"""Of what a result that is filled part by part saves: so much must dropping the parts save to be
what is advised. It needs less of a change."""


@dataclass(frozen=True, slots=True, eq=False)
class PartsAndResult(Match):
    """Parts of a tensor, and what it takes to be without them."""

    drop: bool = False
    """The peak comes after the parts were joined: it is enough to drop them then."""


class JoinedParts(WasteRule[PartsAndResult]):
    """`torch.cat(parts)` and `torch.stack(parts)` copy: until the list goes, both are there."""

    name = "joined"
    summary = "parts are there beside the tensor that is joined from them"
    fixes = ("clear_container", "preallocate", "cpu_offload")
    names_holders = True

    def matches(self, window: Window) -> Iterator[PartsAndResult]:
        """A tensor at the peak that a line joined from parts that are there as well."""
        if window.peak.event < 0:
            return
        lives = window.lives
        large = window.at_peak & ~window.has_owner & (lives.alloc >= 0)
        large &= lives.size >= _LEAST_SHARE * window.peak.bytes
        for row in np.flatnonzero(large)[::-1].tolist():
            if not _joins(window, row):
                continue
            parts = _parts(window, row)
            at_peak = parts[window.at_peak[parts]]
            if len(at_peak) < _FEWEST_PARTS:
                continue
            results, every = _all_joined(window, row)
            dropped = window.replayed(window.ended_at(every, lives.alloc[results] + 1))
            in_place_saving = window.replayed(_cuts_when_filled(window, results, every))
            drop = bool(dropped.bytes >= _LEAST_AS_GOOD * in_place_saving.bytes)
            yield PartsAndResult(
                row=row,
                rows=at_peak,
                nbytes=int(lives.size[at_peak].sum()),
                saving=max(dropped, in_place_saving, key=lambda saving: saving.bytes),
                tentative=not drop,  # that much may be needed at once
                drop=drop,
            )
            return

    def title(self, match: PartsAndResult) -> str:
        """Say how many parts there are."""
        return f"are {len(match.rows)} parts, there beside the tensor that is joined from them"

    def advice(self, match: PartsAndResult, case: Case) -> Iterator[Advice]:
        """Drop the parts, or have none: fill the result."""
        nbytes = format_bytes(match.nbytes)
        why = f"The parts ({nbytes}) are there beside the tensor that is joined from them"
        emptied = f"{why}: empty their list when they are joined."
        if match.drop:
            yield Advice("clear_container", emptied, case.site)
        once = f"{why}: allocate the result once and write each part into it."
        yield Advice("preallocate", once, case.site)
        yield Advice("cpu_offload", f"{why}: collect the parts on the host.", case.site)
        if not match.drop:
            yield Advice("clear_container", emptied, case.site, saving=NO_FIGURE)


def _joins(window: Window, row: int) -> bool:
    place = place_of(window.frame_of(row))
    if place is None or enlarged_copy(place.statement):
        return False
    return bool(own_calls(place.statement, *JOINING))


def _parts(window: Window, row: int) -> Ints:
    """Tensors of one line, there when ``row`` was made, that are together as large as it is."""
    lives = window.lives
    before = ~window.has_owner & (lives.alloc < lives.alloc[row]) & (lives.free > lives.alloc[row])
    whole_size = int(lives.requested[row])
    for site in np.unique(window.site[before]):
        rows = np.flatnonzero(before & (window.site == site))
        if len(rows) >= _FEWEST_PARTS and int(lives.requested[rows].sum()) == whole_size:
            return rows
        alike: Ints = rows[lives.requested[rows] * _times(lives.requested[rows]) == whole_size]
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
    joins = [(result_rows, _parts(window, result_rows)) for result_rows in same.tolist()]
    result_rows = [np.full(len(parts), one, dtype=np.int64) for one, parts in joins]
    return np.concatenate(result_rows), np.concatenate([parts for _, parts in joins])


def _cuts_when_filled(window: Window, result_rows: Ints, parts: Ints) -> Cuts:
    """No parts, but what they are joined into from the first of them on."""
    lives = window.lives
    results = np.unique(result_rows)
    first = np.array(
        [lives.alloc[parts[result_rows == one]].min() for one in results], dtype=np.int64
    )
    whole = window.whole(parts)
    return Cuts(
        np.concatenate([whole.rows, results]),
        np.concatenate([whole.start, lives.alloc[results]]),
        np.concatenate([whole.end, first]),
    )


RULE = JoinedParts()
