"""Whether a program fits on the card that it was run for, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

from memprof.dry_run.library import ESTIMATE, NOT_COUNTED, NOT_LISTED
from memprof.report.device_summary import DeviceFigures, PeakMoment
from memprof.report.summary import Summary
from memprof.run import Run
from memprof.units import format_bytes, format_count
from memprof.views.device_readings import most, series_of
from memprof.views.sites import NO_STACK

__all__ = ["NCCL", "NCCL_LACKING", "CardVerdict", "fits", "how_sure"]

NCCL = "nccl"
"""The name under which a dry run writes down what NCCL held of a device."""
NCCL_LACKING = "nccl_lacking"
"""And what the device had too little of when NCCL asked in vain; absent otherwise."""


@dataclass(frozen=True, slots=True)
class CardVerdict:
    """The answer for one card; bytes."""

    device: str
    fits: bool
    """No request for memory failed, neither torch's nor NCCL's."""
    total_bytes: int
    """Of the card."""
    context_bytes: int
    """Of that, what CUDA's context is taken to hold."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    nccl_bytes: int
    """The most that NCCL is taken to hold besides, outside torch's allocator; 0 without it."""
    nccl_lacking_bytes: int
    """What was missing where NCCL found no memory, which ends the program; 0 elsewhere."""
    left_bytes: int
    """What torch could have reserved besides, at its peak."""
    step: int
    """Of the peak of allocated bytes; -1 where it was in none."""
    phase: str
    module: str
    line: str
    backward_of: str = ""
    """In a backward pass the forward line whose operator it was, in words; empty elsewhere."""

    def __str__(self) -> str:
        """The answer in a line."""
        allocated = format_bytes(self.peak_allocated_bytes)
        reserved = format_bytes(self.peak_reserved_bytes)
        took = f"{allocated} allocated and {reserved} reserved at the most"
        if self.nccl_bytes:
            took += f", {format_bytes(self.nccl_bytes)} for NCCL"
        total = format_bytes(self.total_bytes)
        if self.nccl_lacking_bytes:
            lacking = format_bytes(self.nccl_lacking_bytes)
            return f"does not fit: NCCL lacked {lacking} at {took}, of {total}"
        if not self.fits:
            return f"does not fit: memory ran out at {took}, of {total}"
        return f"fits: {took}; {format_bytes(self.left_bytes)} of {total} left"

    @property
    def where(self) -> str:
        """When the peak of allocated bytes was, in words."""
        parts = [f"step {self.step}"] if self.step >= 0 else []
        is_told = self.phase not in ("", "unknown", "other") and not self.backward_of
        parts += [self.phase] if is_told else []
        line = self.line if self.line != NO_STACK else ""  # as in a backward pass
        line = self.backward_of or line
        parts += [part for part in (self.module, line) if part]
        return ", ".join(parts)


def how_sure(run: Run) -> str:
    """What of the answer is no byte that torch itself asked for, in words; empty if all are.

    The sizes themselves, with their lines, are in the report under "not seen".
    """
    messages = [note.message for note in run.notes if note.source == "dry run"]
    estimated = sum(message.startswith(ESTIMATE) for message in messages)
    uncounted = sum(NOT_COUNTED in message for message in messages)
    parts = [
        f"{format_count(number)} {kind}"
        for number, kind in ((estimated, "estimated"), (uncounted, "not counted"))
        if number
    ]
    parts += [f"{one.split()[0]} more" for one in messages if one.endswith(NOT_LISTED)]
    return f"workspaces of libraries: {', '.join(parts)} (see Not seen)" if parts else ""


def fits(run: Run, summary: Summary) -> tuple[CardVerdict, ...]:
    """The answer for each card on which something was allocated; none if it was no dry run."""
    if run.header.dry_run is None:
        return ()
    context_bytes = run.header.dry_run.context_bytes
    used = [d for d in summary.devices if d.device.startswith("cuda") and d.peak_reserved_bytes]
    return tuple(
        _fit(
            device,
            context_bytes,
            *(max(most(series_of(run, device.device, name)), 0) for name in (NCCL, NCCL_LACKING)),
        )
        for device in used
    )


def _fit(
    device: DeviceFigures, context_bytes: int, nccl_bytes: int, nccl_lacking_bytes: int
) -> CardVerdict:
    peak: PeakMoment | None = device.peak
    spare = device.total_bytes - context_bytes - device.peak_reserved_bytes - nccl_bytes
    return CardVerdict(
        device=device.device,
        fits=not device.ooms and not nccl_lacking_bytes,
        total_bytes=device.total_bytes,
        context_bytes=context_bytes,
        peak_allocated_bytes=device.peak_allocated_bytes,
        peak_reserved_bytes=device.peak_reserved_bytes,
        nccl_bytes=nccl_bytes,
        nccl_lacking_bytes=nccl_lacking_bytes,
        left_bytes=max(spare, 0),
        step=peak.step if peak else -1,
        phase=peak.phase if peak else "",
        module=peak.module if peak else "",
        line=peak.site if peak else "",
        backward_of=peak.backward_of if peak else "",
    )
