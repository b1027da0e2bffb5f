"""The figures of every device over a run: rows of its steps, its peaks, its line in the footer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from memprof.record.step_counters import Span, StepCounters
from memprof.record.step_sample import StepSample
from memprof.records import DeviceInfo, DeviceSummary, Readings, StepsRecord
from memprof.sources.protocol import Counters
from memprof.trace import NOT_RECORDED
from memprof.views.most_taken import most_taken

if TYPE_CHECKING:
    from memprof.views.time_to_full import TimeToFull

__all__ = ["FiguresByDevice"]

SINGLE = 4096
"""Rows of all devices together that hold one step each."""


class _Peak(msgspec.Struct):
    """A device's last figures, its highest over the run, and a few of its step ends."""

    last: Counters
    allocated: int = NOT_RECORDED
    reserved: int = NOT_RECORDED
    step: int = NOT_RECORDED
    others: int = 0
    """Bytes of the device that this process's tensors cannot have, at the last look."""
    outside: int = NOT_RECORDED
    """Most that the process held beyond torch's reserved bytes."""
    sample: StepSample = msgspec.field(default_factory=StepSample)

    def see(self, counters: Counters, step: int) -> None:
        self.last = counters
        allocated = max(counters.allocated, counters.peak_allocated)
        if allocated > self.allocated:
            self.allocated, self.step = allocated, step
        self.reserved = max(self.reserved, counters.reserved, counters.peak_reserved)


class FiguresByDevice:
    """What was counted, by device, and how much of it still waits to be written."""

    def __init__(self) -> None:
        self._rows: dict[str, StepCounters] = {}
        self._peaks: dict[str, _Peak] = {}
        self._host_free = float(NOT_RECORDED)
        self.filling: dict[str, TimeToFull] = {}
        """The devices that fill up, by what was known at the last summary."""

    def __len__(self) -> int:
        """Devices of which anything was counted."""
        return len(self._peaks)

    span = Span
    """What `count` is told of steps."""

    def count(self, steps: Span, counters: Sequence[Counters], window: int) -> None:
        """The end of a step, or of a few short ones; ``window`` recorded them."""
        for figures in counters:
            rows = self._rows.get(figures.device)
            if rows is None:  # so many devices make no larger file
                rows = self._rows[figures.device] = StepCounters(SINGLE // len(counters))
            rows.add(steps, figures, window)
        self.see(counters, steps.last)
        each_us = (steps.end_us - steps.start_us) / max(1, steps.last - steps.first + 1)
        for figures in counters:
            self._peaks[figures.device].sample.add(
                steps.last,
                figures.allocated,
                each_us,
                peak=figures.peak_allocated,
                peak_with_gaps=most_taken(
                    figures.allocated, figures.peak_allocated, figures.inactive_split
                ),
                end_us=steps.end_us,
            )

    def see(self, counters: Sequence[Counters], step: int) -> None:
        """Figures that end no step; they are the last ones, and may hold the peak."""
        for figures in counters:
            self._peaks.setdefault(figures.device, _Peak(figures)).see(figures, step)

    def read(self, readings: Readings) -> None:
        """What was said just now, on the sampler's thread: bytes outside torch's, and free ones."""
        peak = self._peaks.get(readings.device)
        if readings.device == "host":
            free = [_last(readings, name) for name in ("available", "limit_free")]
            free_values = [value for value in free if value is not None]
            self._host_free = float(min(free_values, default=NOT_RECORDED))
        if peak is None or peak.last.reserved < 0:
            return
        own, used = _last(readings, "process_used"), _last(readings, "used")
        if own is not None:
            peak.outside = max(peak.outside, round(own) - peak.last.reserved, 0)
        if used is not None:
            peak.others = max(0, round(used) - peak.last.reserved)

    def take(self, *, unfinished: bool = False) -> Iterator[StepsRecord]:
        """Rows since the last call; the rows in progress too if ``unfinished``.

        They are forgotten as the next ones are asked for: an interrupted writer gets them again.
        """
        for device, rows in self._rows.items():
            columns = rows.columns(unfinished=unfinished)
            if columns is not None:
                yield StepsRecord(device, columns)
                rows.drop(len(columns.first))

    def times_to_full(self, infos: Sequence[DeviceInfo]) -> dict[str, TimeToFull]:
        """The devices that fill up, as far as is known by now, and when they are full."""
        from memprof.views.time_to_full import capacity, has_gaps, time_to_full

        info_by_device = {info.device: info for info in infos}
        estimates = {}
        for device, peak in list(self._peaks.items()):
            info = info_by_device.get(device) or DeviceInfo(device)
            room = capacity(
                info,
                allocated=peak.last.allocated,
                others=peak.others,
                host_free=self._host_free,
            )
            one = time_to_full(device, peak.sample.levels(with_gaps=has_gaps(info)), room)
            if one is not None:
                estimates[device] = one
        return estimates

    @property
    def step_us(self) -> int:
        """Median duration of a step, of the device that had most; -1 without one."""
        return max((p.sample.step_us for p in list(self._peaks.values())), default=NOT_RECORDED)

    def summaries(
        self, events: Callable[[str], int], ooms: Mapping[str, int], infos: Sequence[DeviceInfo]
    ) -> list[DeviceSummary]:
        """Every device's lines for the footer.

        Args:
            events: tells how many a device has in the file.
            ooms: failed requests, by device.
            infos: what is known of devices.
        """
        totals = {info.device: info.total_bytes for info in infos}
        full = self.filling = self.times_to_full(infos)
        return [
            _summary(device, self._peaks.get(device), events(device), ooms, totals, full)
            for device in dict.fromkeys((*self._peaks, *ooms))
        ]


def _summary(
    device: str,
    peak: _Peak | None,
    events: int,
    ooms: Mapping[str, int],
    totals: Mapping[str, int],
    full: Mapping[str, TimeToFull],
) -> DeviceSummary:
    peak = peak or _Peak(Counters(device))
    bytes_per_step, rising = peak.sample.trend()
    then = full.get(device) if not ooms.get(device) else None
    return DeviceSummary(
        device=device,
        allocated_bytes=peak.last.allocated,
        reserved_bytes=peak.last.reserved,
        peak_allocated_bytes=peak.allocated,
        peak_reserved_bytes=peak.reserved,
        peak_step=peak.step,
        events=events,
        total_bytes=totals.get(device, 0),
        outside_bytes=peak.outside,
        bytes_per_step=bytes_per_step,
        rising=rising,
        ooms=ooms.get(device, 0),
        full_step=then.full_step if then is not None else NOT_RECORDED,
        full_left_us=then.left_us if then is not None else NOT_RECORDED,
    )


def _last(readings: Readings, name: str) -> float | int | None:
    """The last value of a name that could be read."""
    return next((v for v in reversed(readings.values.get(name, ())) if v is not None), None)
