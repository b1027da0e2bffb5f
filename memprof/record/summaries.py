"""The summary of a run in its footer, and before that now and then, made of its `device_figures`.

A job of many ranks is killed as a whole when one rank dies, so most files have no footer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memprof.record.process import now_us
from memprof.records import DeviceInfo, DeviceSummary, Footer, Interim

if TYPE_CHECKING:
    from memprof.record.device_figures import FiguresByDevice
    from memprof.record.oom_records import OomRecords
    from memprof.record.recording import Recording
    from memprof.record.window_schedule import OverheadMeter
    from memprof.views.time_to_full import TimeToFull

__all__ = ["Summaries"]

EVERY_US, _SHARE = 10_000_000, 0.001
"""An interim summary comes so often, or once in this share of the run so far, times the number of
devices: few in any run."""


class Summaries:
    """Sums up what was counted so far."""

    def __init__(
        self,
        figures: FiguresByDevice,
        recording: Recording,
        ooms: OomRecords,
        meter: OverheadMeter,
        began_us: float | None = None,
    ) -> None:
        """``began_us``: when the run began, by `clock_us`; now, where it is not given."""
        self._figures, self._recording, self._ooms, self._meter = figures, recording, ooms, meter
        self._began_us = self._last_us = clock_us() if began_us is None else began_us

    def is_due(self, at_us: float) -> bool:
        """Whether the last one is old, at this moment of a clock that nobody sets."""
        share = _SHARE * max(1, len(self._figures))
        return at_us - self._last_us >= max(EVERY_US, share * (at_us - self._began_us))

    @property
    def filling(self) -> list[TimeToFull]:
        """The devices that fill up, by the last summary; none that has run out already."""
        estimates = self._figures.filling.values()
        return [one for one in estimates if not self._ooms.times.get(one.device)]

    def write(self, steps: int, devices: Sequence[DeviceInfo]) -> None:
        """An interim summary, after so many steps."""
        self._last_us = clock_us()
        spent_us, step_us = self._spent_us(), self._figures.step_us
        record = Interim(now_us(), steps, self._summaries(devices), spent_us, step_us)
        self._recording.output.write(record)

    def footer(
        self, steps: int, devices: Sequence[DeviceInfo], status: str, *, is_over: bool = False
    ) -> Footer:
        """The last one; ``status`` says how the run ended, ``is_over`` that the program has."""
        return Footer(
            ended_us=now_us(),
            steps=steps,
            devices=self._summaries(devices),
            overhead_us=self._spent_us(),
            status=status,
            step_us=self._figures.step_us,
            is_over=is_over,
        )

    def _spent_us(self) -> int:
        """What recording took; samples of what is short may come to more than there was time."""
        return round(min(self._meter.total_us, clock_us() - self._began_us))

    def _summaries(self, devices: Sequence[DeviceInfo]) -> list[DeviceSummary]:
        return self._figures.summaries(self._recording.total_events, self._ooms.times, devices)


def clock_us() -> float:
    """The clock that nobody sets, in microseconds."""
    return time.perf_counter_ns() / 1000
