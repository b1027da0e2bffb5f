"""few-values-read: a large result is computed whole, and operators pick few of its values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.results_read import handed_outside
from memprof.rules.rule import EVERY_OTHER, Advice, Match, WasteRule
from memprof.source_code.program import calls_in, place_of
from memprof.source_code.verbs import FACTORIES
from memprof.trace import Frame, Phase
from memprof.units import format_bytes, format_percent
from memprof.views.peak_without import Cuts
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.12
"""Of the peak, that goes with the values that nothing reads."""
_MOST_READ = 1 / 3
"""Of the values: to pick two thirds of them is no mistake."""
_LONGEST = 1
"""Steps after the one that made it: of what stays longer other steps read other values."""


@dataclass(frozen=True, slots=True, eq=False)
class FewValues(Match):
    """A result of which little is read."""

    part: float = 0.0
    """Of its values, that operators read."""
    reader: Frame | None = None
    """The program's line that reads them."""


class FewValuesRead(WasteRule[FewValues]):
    """All pairs of products are multiplied, and the scores of some pairs are looked up."""

    name = "few-values-read"
    summary = "a large result is computed whole, and few of its values are read"
    fixes = ("narrow_first",)
    yields_to = EVERY_OTHER

    def matches(self, window: Window) -> Iterator[FewValues]:
        """Each stack whose results are picked from, with what is as large for their sake."""
        lives = window.lives
        picked = (window.part_read > 0) & (window.part_read <= _MOST_READ) & ~window.has_owner
        picked &= window.freed_in - window.made_in <= _LONGEST
        picked &= window.phase != Phase.BACKWARD
        for stack in np.unique(lives.stack[picked]).tolist():
            match = _match(window, np.flatnonzero(picked & (lives.stack == stack)))
            if match is not None:
                yield match

    def title(self, match: FewValues) -> str:
        """Say how much is read."""
        part = format_percent(match.part, 1)
        return f"are there for a result of whose values {part} are read"

    def advice(self, match: FewValues, case: Case) -> Iterator[Advice]:  # noqa: ARG002
        """Compute those that are read."""
        where = f" in line {match.reader.line}" if match.reader is not None else ""
        part = format_percent(match.part, 1)
        yield Advice(
            "narrow_first",
            f"Of the result's values {part} are read{where}: pick first from what it is computed "
            f"of, and compute these alone. Of {format_bytes(match.nbytes)} as much is left.",
        )


def _match(window: Window, results: Ints) -> FewValues | None:
    """The results of one stack, and what is at the peak because they are computed."""
    lives = window.lives
    row = int(results[lives.size[results].argmax()])
    if _is_data(window, row) or not _is_habit(window, results):
        return None
    reader = _reader(window, row)
    related = _related(window, row, reader)
    there = np.flatnonzero(related & window.at_peak)
    nbytes = int(lives.size[there].sum())
    if window.share(nbytes) < _LEAST_SHARE:
        return None
    part = float(window.part_read[results].max())
    every = np.flatnonzero(related)
    cuts = Cuts(
        every, lives.alloc[every], lives.free[every], (lives.size[every] * (1 - part)).astype(int)
    )
    saving = window.replayed(cuts)
    if window.share(saving.bytes) < _LEAST_SHARE:
        return None
    return FewValues(
        row=row,
        rows=every,
        nbytes=nbytes,
        saving=saving,
        tentative=handed_outside(window.user_frames(window.stack(row)), reader),
        part=part,
        reader=reader,
    )


def _is_habit(window: Window, results: Ints) -> bool:
    """Whether as little is read in every step that the stack makes one, as far as is known.

    What it makes on the way to it is read whole.
    """
    lives = window.lives
    alike = (lives.stack == lives.stack[results[0]]) & (lives.free < window.events)
    alike &= lives.size >= lives.size[results].min()
    return set(window.made_in[alike].tolist()) <= set(window.made_in[results].tolist())


def _is_data(window: Window, row: int) -> bool:
    """Whether the statement that made a tensor makes data, or room for some."""
    frames = window.user_frames(window.stack(row))
    place = place_of(frames[0]) if frames else None
    return place is None or any(True for _ in calls_in(place.statement, *FACTORIES))


def _reader(window: Window, row: int) -> Frame | None:
    """The program's line from which an operator was called that read a tensor last."""
    event = int(window.unread_from[row]) - 1
    frames = window.user_frames(window.trace.stack(int(window.trace.events.stack[event])))
    return frames[0] if frames else None


def _related(window: Window, row: int, reader: Frame | None) -> Bools:
    """What the line of a result makes, and gradients as large of it and of the line that reads it.

    What is picked is smaller, and stays.
    """
    lives, site = window.lives, int(window.site[row])
    frames = window.owners.sites.frames
    sites = [site, *(at for at, frame in enumerate(frames) if frame == reader)]
    size = int(lives.requested[row])
    is_made_there = (window.site == site) & (window.phase != Phase.BACKWARD)
    is_gradient = np.isin(window.origin_site, sites) & (lives.requested >= size)
    related: Bools = (is_made_there | is_gradient) & (lives.alloc >= 0) & ~window.has_owner
    return related


RULE = FewValuesRead()
