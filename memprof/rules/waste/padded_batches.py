"""padded-batches: sequences are padded to a fixed length that none of them comes near."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from memprof.records import PaddedBatches
from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import arguments_named
from memprof.source_code.program import Place, Program
from memprof.trace import SURVIVOR_AGE, Category, Frame, Phase
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_LEAST_EMPTY = 0.25
"""Of the places, in the call that left the fewest empty."""
_FEWEST_CALLS = 4
"""Batches: fewer may all be short by chance."""
_WIDTHS = (1, 4, 8)
"""Bytes of a value of a mask, or of an index."""
_LEAST_SHARE = 0.2
"""Of the peak, in tensors with a value or more for each place."""
_STRIDES = (1, 2, 4)
"""By which a first layer may take several places together."""
_FEWEST_VALUES = 1024
"""Of a batch: many sizes are multiples of less."""
_PADDING, _TO_FIXED_LENGTH = "padding", "max_length"
"""What a tokenizer of transformers is given to pad all to one length."""


@dataclass(frozen=True, slots=True, eq=False)
class Padded(Match):
    """The lengths."""

    batches: PaddedBatches | None = None
    frame: Frame | None = None
    """The line of the program that makes the batches; None where the model's caller has to do."""


class PaddedBatchesRule(WasteRule[Padded]):
    """`tokenizer(texts, padding="max_length", max_length=512)` of sentences of forty words."""

    name = "padded-batches"
    summary = "batches are padded to a fixed length, and no sequence comes near it"
    fixes = ("pad_to_longest",)

    def matches(self, window: Window) -> Iterator[Padded]:
        """What is computed in a model for each place, where its masks say that many are empty."""
        batches = window.padded
        if batches is None or batches.calls < _FEWEST_CALLS or len(window.steps) < FEWEST_STEPS:
            return
        if batches.longest > (1 - _LEAST_EMPTY) * batches.places:
            return
        rows = np.flatnonzero(_has_places(window, batches) & (window.made_in >= 0))
        there = rows[window.at_peak[rows]]
        nbytes = int(window.lives.size[there].sum())
        if window.share(nbytes) < _LEAST_SHARE:
            return
        mask = np.zeros(len(window.lives), dtype=bool)
        mask[there] = True
        yield Padded(
            row=window.main_site(mask),
            rows=there,
            nbytes=nbytes,
            saving=window.replayed(window.whole(rows)),
            batches=batches,
            frame=_making_frame(window, batches),
        )

    def title(self, match: Padded) -> str:
        """Say how long the sequences are made, and how long they are."""
        batches = match.batches
        assert batches is not None
        return (
            f"are computed for sequences padded to {batches.places:,} places, of which none uses "
            f"more than {batches.longest:,}"
        )

    def advice(self, match: Padded, case: Case) -> Iterator[Advice]:
        """Pad each batch to its own longest sequence."""
        batches = match.batches
        assert batches is not None
        why = (
            f"No sequence of {batches.calls:,} batches uses more than {batches.longest:,} of its "
            f"{batches.places:,} places: pad each batch to its longest sequence (`padding=True`, "
            "or a collator that does it: `DataCollatorWithPadding`, `pad_sequence`)."
        )
        remains = batches.longest / batches.places
        settings = list(_fixed_lengths(case.programs))
        if len(settings) == 1:
            yield Advice("pad_to_longest", why, *settings[0], remains=remains)
            return
        frame = match.frame
        place = case.place_at(frame.filename, frame.line) if frame is not None else None
        yield Advice("pad_to_longest", why, place or case.site, remains=remains)


def _fixed_lengths(programs: Iterable[Program]) -> Iterator[tuple[Place, int]]:
    """The statements that have a tokenizer pad all to one length, each with the line of that."""
    for place, value in arguments_named(programs, _PADDING):
        if isinstance(value, ast.Constant) and value.value == _TO_FIXED_LENGTH:
            yield place, value.lineno


def _making_frame(window: Window, batches: PaddedBatches) -> Frame | None:
    """The line that makes most of what is as large as a batch, before a model is called with it."""
    values = batches.sequences * batches.places
    of_size = np.isin(window.lives.requested, [values * width for width in _WIDTHS])
    outside = (window.module == 0) & (window.phase != Phase.BACKWARD) & (window.made_in >= 0)
    given = (window.category == Category.INPUT) & (window.lives.requested % values == 0)
    mask = given & outside
    if not mask.any():
        mask = of_size & outside & ~window.has_owner
    frame = window.frame_of(window.main_site(mask)) if mask.any() else None
    is_own = frame is not None and frame_kind(frame.filename) is FrameKind.USER
    return frame if is_own else None


def _has_places(window: Window, batches: PaddedBatches) -> Bools:
    """Per lifetime: whether a model made it or was given it, with values for each place.

    Of full batches: so is the peak.
    """
    in_model = (window.module > 0) | (window.phase == Phase.BACKWARD)
    in_model |= window.category == Category.INPUT
    brief = window.freed_in - window.made_in < SURVIVOR_AGE
    divides = np.zeros(len(window.lives), dtype=bool)
    for stride in _STRIDES:
        values = batches.sequences * batches.places // stride
        if batches.places % stride == 0 and values >= _FEWEST_VALUES:
            divides |= window.lives.requested % values == 0
    has_places: Bools = in_model & brief & divides & ~window.has_owner
    return has_places


RULE = PaddedBatchesRule()
