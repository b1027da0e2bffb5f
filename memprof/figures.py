"""The figures of every device over a run: rows of its steps, its peaks, its line in the footer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from memprof.records import DeviceSummary, StepsRecord
from memprof.sources.protocol import Counters
from memprof.steprows import Span, StepRows
from memprof.trace import NOT_RECORDED

__all__ = ["Figures"]


@dataclass(slots=True)
class _Peak:
    """A device's last figures, and its highest over the run."""

    last: Counters
    allocated: int = NOT_RECORDED
    reserved: int = NOT_RECORDED
    step: int = NOT_RECORDED

    def see(self, counters: Counters, step: int) -> None:
        self.last = counters
        allocated = max(counters.allocated, counters.peak_allocated)
        if allocated > self.allocated:
            self.allocated, self.step = allocated, step
        self.reserved = max(self.reserved, counters.reserved, counters.peak_reserved)


class Figures:
    """What was counted, by device, and how much of it still waits to be written."""

    def __init__(self) -> None:
        self._rows: dict[str, StepRows] = {}
        self._peaks: dict[str, _Peak] = {}

    def count(self, steps: Span, counters: Sequence[Counters], window: int) -> None:
        """The end of a step, or of a few short ones; ``window`` recorded them."""
        for figures in counters:
            self._rows.setdefault(figures.device, StepRows()).add(steps, figures, window)
        self.see(counters, steps.last)

    def see(self, counters: Sequence[Counters], step: int) -> None:
        """Figures that end no step; they are the last ones, and may hold the peak."""
        for figures in counters:
            self._peaks.setdefault(figures.device, _Peak(figures)).see(figures, step)

    def take(self, *, unfinished: bool = False) -> Iterator[StepsRecord]:
        """Rows since the last call; the rows in progress too if ``unfinished``."""
        for device, rows in self._rows.items():
            columns = rows.take(unfinished=unfinished)
            if columns is not None:
                yield StepsRecord(device, columns)

    def summaries(self, events: Callable[[str], int]) -> list[DeviceSummary]:
        """Every device's lines for the footer; ``events`` tells how many it has in the file."""
        return [
            DeviceSummary(
                device=device,
                allocated_bytes=peak.last.allocated,
                reserved_bytes=peak.last.reserved,
                peak_allocated_bytes=peak.allocated,
                peak_reserved_bytes=peak.reserved,
                peak_step=peak.step,
                events=events(device),
            )
            for device, peak in self._peaks.items()
        ]
