"""joined: parts are still there beside the tensor that was joined from them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import NO_FIGURE, Case
from memprof.rules.joined_tensors import FEWEST_PARTS, all_joined, joined_at_peak, parts_of
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import own_calls, place_of
from memprof.source_code.verbs import JOINING
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_AS_GOOD = 0.8
"""Of what a result that is filled part by part saves: so much must dropping the parts save to be
what is advised. It needs less of a change."""
_MOST_AFTER = 4
"""Allocations between the join and the end of the parts: further results that are joined."""


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
    yields_to = ("reduced-later",)
    names_holders = True

    def matches(self, window: Window) -> Iterator[PartsAndResult]:
        """A tensor at the peak that a line joined from parts that are there as well."""
        lives = window.lives
        for row in joined_at_peak(window):
            parts = parts_of(window, row)
            at_peak = parts[window.at_peak[parts]]
            if len(at_peak) < FEWEST_PARTS:
                continue
            results, every = all_joined(window, row)
            dropped = window.replayed(window.ended_at(every, lives.alloc[results] + 1))
            in_place_saving = window.replayed(_cuts_when_filled(window, results, every))
            # Before the window both were there at once: to drop the parts comes too late for that.
            is_earlier = lives.alloc[row] < 0
            drop = not is_earlier and dropped.bytes >= _LEAST_AS_GOOD * in_place_saving.bytes
            best = max(in_place_saving, dropped, key=lambda saving: saving.bytes)
            stay = bool(window.stays[at_peak].all())
            yield PartsAndResult(
                row=row,
                rows=at_peak,
                nbytes=int(lives.size[at_peak].sum()),
                saving=in_place_saving if is_earlier else best,
                # The parts may be needed at once with the result.
                tentative=_are_written_out(window, row)
                or not (drop or (is_earlier and stay) or _end_with_join(window, row, parts)),
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


def _are_written_out(window: Window, row: int) -> bool:
    """Whether the join names its parts, ``torch.cat([up, skip], 1)``: no list has them."""
    place = place_of(window.frame_of(row))
    calls = own_calls(place.statement, *JOINING) if place is not None else []
    lists = [one.args[0] for one in calls if one.args]
    return bool(lists) and all(
        isinstance(one, (ast.List, ast.Tuple))
        and not any(isinstance(part, ast.Starred) for part in one.elts)
        for one in lists
    )


def _end_with_join(window: Window, row: int, parts: Ints) -> bool:
    """Whether the highest peak of all is a join after which nothing is done with the parts.

    A function may join a few lists of other things before it returns.
    """
    lives = window.lives
    joined = int(lives.alloc[row])
    ends = int(lives.free[parts].max())
    after = (lives.alloc > joined) & (lives.alloc < ends)
    ends_soon = joined >= 0 and ends < window.events and int(after.sum()) <= _MOST_AFTER
    return window.of_setup and ends_soon


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
