"""The summary of a run in its footer, and before that now and then, made of its `device_figures`.

A job of many ranks is killed as a whole when one rank dies, so most files have no footer.
"""

from __future__ import annotations

from collections.abc import Sequence

from memprof.record.device_figures import FiguresByDevice
from memprof.record.oom_records import OomRecords
from memprof.record.process import now_us
from memprof.record.recording import Recording
from memprof.record.window_schedule import OverheadMeter
from memprof.records import DeviceInfo, DeviceSummary, Footer, Interim

__all__ = ["Summaries"]

EVERY_US, _SHARE = 10_000_000, 0.001
"""An interim summary comes so often, or once in this share of the run so far: few in any run."""


class Summaries:
    """Sums up what was counted so far."""

    def __init__(
        self, figures: FiguresByDevice, recording: Recording, ooms: OomRecords, meter: OverheadMeter
    ) -> None:
        self._figures, self._recording, self._ooms, self._meter = figures, recording, ooms, meter
        self._began_us = self._last_us = now_us()

    def is_due(self, at_us: int) -> bool:
        """Whether the last one is old."""
        return at_us - self._last_us >= max(EVERY_US, _SHARE * (at_us - self._began_us))

    def write(self, steps: int, devices: Sequence[DeviceInfo]) -> None:
        """An interim summary, after so many steps."""
        self._last_us = at_us = now_us()
        spent_us, step_us = self._spent_us(at_us), self._figures.step_us
        record = Interim(at_us, steps, self._summaries(devices), spent_us, step_us)
        self._recording.output.write(record)

    def footer(self, steps: int, devices: Sequence[DeviceInfo], status: str) -> Footer:
        """The last one; ``status`` says how the run ended."""
        at_us = now_us()
        return Footer(
            ended_us=at_us,
            steps=steps,
            devices=self._summaries(devices),
            overhead_us=self._spent_us(at_us),
            status=status,
            step_us=self._figures.step_us,
        )

    def _spent_us(self, at_us: int) -> int:
        """What recording took; samples of what is short may come to more than there was time."""
        return min(round(self._meter.total_us), at_us - self._began_us)

    def _summaries(self, devices: Sequence[DeviceInfo]) -> list[DeviceSummary]:
        return self._figures.summaries(self._recording.total_events, self._ooms.times, devices)
