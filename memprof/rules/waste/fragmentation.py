"""fragmentation: much of the reserved bytes lies in holes that no request fitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.allocator_settings import advice_on_settings
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.same_memory import Overlap
from memprof.trace import Action
from memprof.units import format_bytes
from memprof.views.peak_without import Saving
from memprof.views.window import Window

__all__ = ["RULE", "Holes"]

_LEAST_UNUSED = 0.2
"""Of the reserved bytes: segments are rounded up, and every allocator has some slack."""
_LEAST_UNUSED_BYTES = 256 << 20
"""Less is the slack of a few segments of 20 MiB, on whatever device."""
_LEAST_IN_VAIN = 0.1
"""Of the unused bytes: so much was taken from the driver although as much lay unused."""
_MANY_SIZES = 8
"""Sizes that one line asks for: fewer (a batch and its rest, a few buckets) leave few holes."""


@dataclass(frozen=True, slots=True, eq=False)
class Holes(Match):
    """Reserved bytes between blocks in use, and who asks for so many sizes."""

    reserved: int = 0
    """The highest that was reserved."""
    sizes: int = 0
    """Different sizes that the line with most bytes at the peak asked for."""


class Fragmentation(WasteRule[Holes]):
    """Free blocks that are too small for what comes: segments are taken beside them."""

    name = "fragmentation"
    summary = "reserved bytes lie unused between blocks in use"
    fixes = ("expandable_segments", "max_split_size", "static_shapes")
    kind = Kind.FRAGMENTATION
    yields_beyond = ("growing-fragmentation", "oom-fragmentation")
    overlap = Overlap.DEVICE  # a device has one reserve, whatever lines asked for it

    def matches(self, window: Window) -> Iterator[Holes]:
        """Segments taken while as many bytes were reserved and in no tensor."""
        line = window.line
        if window.trace.modelled or not line.reserved.any():
            return  # a modelled allocator's holes are not the device's
        entry = int(line.reserved.argmax())
        reserved = int(line.reserved[entry])
        unused = reserved - int(line.allocated[entry])
        if unused < max(_LEAST_UNUSED * reserved, _LEAST_UNUSED_BYTES):
            return
        # What a step frees and takes again is cache, not fragmentation: count from the peak in use.
        unused = reserved - int(line.allocated.max())
        if unused < _LEAST_UNUSED * reserved:
            return
        if _taken_in_vain(window) < _LEAST_IN_VAIN * unused:
            return  # the cache of an earlier time, not holes
        mask = window.at_peak & ~window.has_owner
        row = window.main_site(mask) if mask.any() else window.largest(window.at_peak)
        yield Holes(
            row=row,
            rows=np.flatnonzero(window.at_peak),
            nbytes=unused,
            saving=Saving(reserved, int(line.allocated.max())),
            reserved=reserved,
            sizes=_sizes_of(window, row),
        )

    def title(self, match: Holes) -> str:
        """Say of how much."""
        return f"of {format_bytes(match.reserved)} reserved lie between blocks in use"

    def advice(self, match: Holes, case: Case) -> Iterator[Advice]:
        """Change the allocator's settings, or ask for fewer sizes."""
        settings = list(advice_on_settings(case))
        yield from (one for one in settings if one.fix == "expandable_segments")
        if match.sizes >= _MANY_SIZES:
            yield Advice(
                "static_shapes",
                f"{format_bytes(match.nbytes)} are reserved but unallocated: this line asked for "
                f"{match.sizes} different sizes; pad to a few.",
                case.site,
            )
        yield from (one for one in settings if one.fix != "expandable_segments")


def _taken_in_vain(window: Window) -> int:
    """Bytes taken from the driver while as much was reserved and not in use."""
    line, events = window.line, window.trace.events
    grows = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    rows = np.flatnonzero(grows)
    unused = line.reserved[rows] - line.allocated[rows]  # entry i is what stood before event i
    size = events.size[rows]
    return int(size[unused >= size].sum())


def _sizes_of(window: Window, row: int) -> int:
    """How many different sizes the line of a lifetime asked for."""
    alike = window.site == window.site[row]
    return len(np.unique(window.lives.requested[alike]))


RULE = Fragmentation()
