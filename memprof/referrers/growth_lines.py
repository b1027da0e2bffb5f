"""What the job's log says of memory that grows: a line for each holder of a large part of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from memprof.records import Finding, Holder
from memprof.reference_chain import above_graph, way
from memprof.units import format_bytes

__all__ = ["Growth", "GrowthLines"]

_LEAST_SHARE = 0.1
"""Of all that grows on a device; what is less would not help if it were mended."""
_LEAST_RATE = 1 << 10
"""Bytes per step: a MiB in a thousand steps. A loss that is listed takes 512 on a card, and the
log-probabilities of an episode have small graphs until it is over; the verdict tells of either."""
Cause: TypeAlias = tuple[Hashable, ...]
_UNHELD: Cause = ()
"""No holder was found, or none but autograd's graph."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A stack whose tensors surely become more, as it was told to the file."""

    finding: Finding
    per_step: float
    """Bytes."""

    @property
    def holders(self) -> Sequence[Holder]:
        """The first one is what the line names."""
        return self.finding.holders

    @property
    def cause(self) -> Cause:
        """What holds it above the graph that it may hang on: the same of all that a graph saves."""
        for holder in self.holders[:1]:
            if above := above_graph(holder.links):
                return way(above)
            if holder.is_named and not holder.through_graph:
                return way(holder.links)
        return _UNHELD


@dataclass(slots=True)
class GrowthLines:
    """Remembers what was said of each device."""

    _rates: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    """Bytes per step of every stack that surely grows."""
    _said: set[tuple[str, Cause]] = field(default_factory=set)

    def of(self, news: Sequence[Growth]) -> list[tuple[Finding, str]]:
        """The lines for what one look found out, each with the finding that it is about.

        What many lines of a model made, and one list keeps with its graph, is one with the sum.
        """
        by_device: dict[str, list[Growth]] = defaultdict(list)
        for one in news:
            by_device[one.finding.device].append(one)
            self._rates[one.finding.device][one.finding.stack] = one.per_step
        return [line for device, some in by_device.items() for line in self._of(device, some)]

    def covers(self, one: Growth) -> bool:
        """Whether a line was said about what holds it; what comes to little may have one later."""
        return (one.finding.device, one.cause) in self._said

    def _of(self, device: str, news: Sequence[Growth]) -> list[tuple[Finding, str]]:
        by_cause: dict[Cause, list[Growth]] = defaultdict(list)
        for one in sorted(news, key=lambda one: -one.per_step):
            by_cause[one.cause].append(one)
        least = _LEAST_SHARE * sum(self._rates[device].values())
        unheld = by_cause.pop(_UNHELD, [])
        lines = []
        for cause, some in sorted(by_cause.items(), key=lambda item: -_rate(item[1])):
            enough = _rate(some) >= max(least, _LEAST_RATE)
            if (device, cause) not in self._said and enough:
                self._said |= {(device, cause), (device, _UNHELD)}
                lines.append((some[0].finding, _line(some, unheld)))
                unheld = []
        if _rate(unheld) >= _LEAST_RATE and (device, _UNHELD) not in self._said:
            self._said.add((device, _UNHELD))
            lines.append((unheld[0].finding, _line(unheld, [])))
        return lines


def _rate(some: Sequence[Growth]) -> float:
    return sum(one.per_step for one in some)


def _line(some: Sequence[Growth], unheld: Sequence[Growth]) -> str:
    """``unheld`` grow beside what is held, and are told with it."""
    both = [*some, *unheld]
    since = min(int(str(one.finding.details["first_step"])) for one in both)
    count = sum(one.finding.count for one in both)
    line = (
        f"memory grows by {format_bytes(round(_rate(both)))} per step since step {since} "
        f"({count} tensors so far)"
    )
    if not some[0].holders:
        return line
    part = f"{format_bytes(round(_rate(some)))} of it " if unheld else ""
    return f"{line}, {part}held by {some[0].holders[0].description}"
