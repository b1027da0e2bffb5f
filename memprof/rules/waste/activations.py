"""activations: what modules save for the backward pass makes much of the peak."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import NO_FIGURE, Case
from memprof.rules.forward_passes import block_names, checkpointed, forward_passes
from memprof.rules.rule import EVERY_OTHER, Advice, Match, WasteRule
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE", "activations_of_blocks"]

_LEAST_BLOCKS = 4
"""Checkpointing keeps one block's activations at a time: of fewer blocks little goes."""
_LEAST_SHARE = 0.3
"""Of the peak: every training has activations, and to compute them twice takes time."""


@dataclass(frozen=True, slots=True, eq=False)
class ActivationsOfLine(Match):
    """Activations of several blocks of a model, or of several passes through it."""

    blocks: int = 0
    """0 where they are of passes."""
    passes: int = 0

    @property
    def parts(self) -> str:
        """What they are of: ``4 blocks``."""
        return f"{self.passes} passes" if self.passes else f"{self.blocks} blocks"


class Activations(WasteRule[ActivationsOfLine]):
    """No mistake as such: memory that checkpointing trades for time."""

    name = "activations"
    summary = "activations of many blocks make much of the peak"
    fixes = ("checkpoint", "mixed_precision", "micro_batches")
    needed = True
    yields_to = EVERY_OTHER

    def matches(self, window: Window) -> Iterator[ActivationsOfLine]:
        """Activations at the peak, by passes where a loop runs several, else by blocks."""
        passes = forward_passes(window)
        if passes is not None:
            yield ActivationsOfLine(
                row=passes.row,
                rows=passes.rows,
                nbytes=int(window.lives.size[passes.rows].sum()),
                saving=checkpointed(window, passes.beginning),
                tentative=True,  # the passes may be what the program is about
                passes=passes.number,
            )
        else:
            yield from activations_of_blocks(window)

    def title(self, match: ActivationsOfLine) -> str:
        """Say what they are of."""
        what = f"are activations of {match.parts}"
        if match.passes:
            return f"{what} through the same module before one backward pass"
        return f"{what}, kept for the backward pass"

    def advice(self, match: ActivationsOfLine, case: Case) -> Iterator[Advice]:
        """Recompute them, else make them smaller."""
        nbytes = format_bytes(match.nbytes)
        one = "one pass's" if match.passes else "one block's"
        why = (
            f"{nbytes} of activations of {match.parts} wait for the backward pass; recomputing "
            f"them keeps {one} at a time."
        )
        yield Advice("checkpoint", why, case.site)
        # What was replayed is checkpointing: these have no figures of their own.
        half = f"In bfloat16 the {nbytes} of activations take about half."
        yield Advice("mixed_precision", half, case.site, saving=NO_FIGURE)
        less = "Smaller batches, whose gradients are added up, need less at once."
        yield Advice("micro_batches", less, case.site, saving=NO_FIGURE)


def activations_of_blocks(window: Window) -> Iterator[ActivationsOfLine]:
    """Activations of several blocks of a model, where they make much of the peak."""
    if window.peak.event < 0:
        return
    mask = window.at_peak & (window.category == Category.ACTIVATION) & (window.module > 0)
    nbytes = window.bytes_of(mask)
    if window.share(nbytes) < _LEAST_SHARE:
        return
    names = block_names(window)
    inside = {names[module] for module in np.unique(window.module[mask])}
    blocks = {name for name in inside if "." in name} or inside  # a root around blocks is none
    if len(blocks) < _LEAST_BLOCKS:
        return
    yield ActivationsOfLine(
        row=window.main_site(mask),
        rows=np.flatnonzero(mask),
        nbytes=nbytes,
        saving=checkpointed(window),
        blocks=len(blocks),
    )


RULE = Activations()
