"""padded-corpus: all sequences of a data set are padded to its longest before the first is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, calls_in, place_of
from memprof.trace import EMPTY, SURVIVOR_AGE, Frame
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_PADS = "pad_sequence"
_FILE = "/torch/nn/utils/rnn.py"
_LEAST_SHARE = 0.2
"""Of the peak, in one padded tensor."""
_MOST_USED = 0.6
"""Of its bytes, in the sequences: the rest is padding."""
_FEWEST = 16
"""Sequences: fewer are a batch."""


@dataclass(frozen=True, slots=True, eq=False)
class PaddedCorpus(Match):
    """How much of it are sequences."""

    count: int = 0
    used: int = 0
    """Bytes of the sequences."""


class PaddedCorpusRule(WasteRule[PaddedCorpus]):
    """`self.features = pad_sequence(features)` of a whole corpus, whose longest is an outlier."""

    name = "padded-corpus"
    summary = "all sequences of a data set are padded to its longest"
    fixes = ("pad_to_longest",)

    def matches(self, window: Window) -> Iterator[PaddedCorpus]:
        """A padded tensor at the peak that stays, with the sequences that it was made of."""
        lives = window.lives
        lasting = window.freed_in - window.made_in > SURVIVOR_AGE
        there = window.at_peak & ~window.has_owner & lasting & (lives.stack != EMPTY)
        for row in np.flatnonzero(there).tolist():
            if window.share(int(lives.size[row])) < _LEAST_SHARE:
                continue
            place = _padding_place(window, row)
            parts = _sequences(window, row, place) if place is not None else np.array([], np.int64)
            used = int(lives.requested[parts].sum())
            if len(parts) >= _FEWEST and used <= _MOST_USED * lives.requested[row]:
                yield PaddedCorpus(
                    row=row,
                    rows=np.array([row]),
                    nbytes=int(lives.size[row]),
                    saving=window.replayed(window.whole(np.array([row]))),
                    count=len(parts),
                    used=used,
                )

    def title(self, match: PaddedCorpus) -> str:
        """Say how much of it is padding."""
        used = format_bytes(match.used)
        return f"are {match.count:,} sequences padded to the longest of all; they take {used}"

    def advice(self, match: PaddedCorpus, case: Case) -> Iterator[Advice]:
        """Pad the sequences of a batch."""
        why = (
            f"{format_bytes(match.nbytes)} are {format_bytes(match.used)} of sequences and "
            "padding: keep them in a list as long as they are, and pad those of a batch to the "
            "longest among them, in the loader's `collate_fn`."
        )
        yield Advice("pad_to_longest", why, case.site, remains=match.used / match.nbytes)


def _padding_place(window: Window, row: int) -> Place | None:
    """The program's statement that has torch pad sequences to make a tensor."""
    stack = window.stack(row)
    at = next((n for n, frame in enumerate(stack) if _is_padding(frame)), None)
    own = window.user_frames(stack[at + 1 :]) if at is not None else []
    return place_of(own[0]) if own else None


def _is_padding(frame: Frame) -> bool:
    is_torch = frame.filename.replace("\\", "/").endswith(_FILE)
    return is_torch and frame.name.rpartition(".")[2] == _PADS


def _sequences(window: Window, row: int, place: Place) -> Ints:
    """What was there when a tensor was padded, of the lines that fill the list which was given."""
    call = next(iter(calls_in(place.statement, _PADS)), None)
    given = call.args[0] if call is not None and call.args else None
    lines = {place.statement.lineno}
    if isinstance(given, ast.Name):
        fills = [
            one
            for one in calls_in(place.scope, "append")
            if isinstance(one.func, ast.Attribute) and ast.unparse(one.func.value) == given.id
        ]
        lines = {line for one in fills for line in range(one.lineno, (one.end_lineno or 0) + 1)}
    lives, filename = window.lives, place.program.filename
    made = int(lives.alloc[row])
    alive = (lives.alloc < made) & (lives.free > made) & ~window.has_owner & (lives.stack != EMPTY)
    of_lines = {
        stack
        for stack in np.unique(lives.stack[alive]).tolist()
        if any(f.filename == filename and f.line in lines for f in window.trace.stack(stack))
    }
    sequences: Ints = np.flatnonzero(alive & np.isin(lives.stack, list(of_lines)))
    return sequences


RULE = PaddedCorpusRule()
