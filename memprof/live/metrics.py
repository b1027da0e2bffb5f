"""The figures of runs as metrics, by the conventions of Prometheus: names, units, help, labels.

Who carries them to whom is the exporters' matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from memprof.live.live_run import LiveDevice, LiveRun

__all__ = ["METRICS", "Metric", "Sample", "samples"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; a counter's name ends in ``_total``."""

    name: str
    help: str
    unit: str
    """``bytes``, ``seconds``, or empty for a count."""
    is_counter: bool = False
    labels: tuple[str, ...] = ()
    """Beside ``file`` and ``rank``, which all have."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric."""

    metric: Metric
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def _of_device(name: str, text: str, unit: str = "bytes", *more: str) -> Metric:
    return Metric(f"memprof_{name}", text, unit, labels=("device", *more))


_ALLOCATED = _of_device("allocated_bytes", "Bytes of tensors at the end of the last step.")
_PEAK = _of_device("peak_allocated_bytes", "Most bytes of tensors at once since recording began.")
_RESERVED = _of_device(
    "reserved_bytes", "Bytes that torch's allocator held at the last step's end."
)
_PEAK_RESERVED = _of_device(
    "peak_reserved_bytes", "Most bytes that torch's allocator held at once."
)
_CAPACITY = _of_device("device_memory_bytes", "Memory of the device.")
_OUTSIDE = _of_device(
    "outside_torch_bytes", "Bytes of this process on the device that torch did not reserve."
)
_OTHERS = _of_device("other_processes_bytes", "Bytes of other processes on the device.")
_OWNED = _of_device(
    "owned_bytes", "Bytes by their owner, when the last window ended.", "bytes", "category"
)
_GROWTH = _of_device(
    "growth_bytes_per_step",
    "Growth of allocated bytes at step ends; 0 where they do not keep rising.",
)
_FULL_S = _of_device(
    "time_to_full_seconds", "Time until the device is full; absent where not known.", "seconds"
)
_FULL_STEPS = _of_device(
    "time_to_full_steps", "Steps until the device is full; absent where not known.", ""
)
_RETRIES = Metric(
    "memprof_allocation_retries_total",
    "Requests that were served only after cached memory had been given back.",
    "",
    is_counter=True,
    labels=("device",),
)
_OOMS = Metric(
    "memprof_out_of_memory_total",
    "Requests that the device could not serve.",
    "",
    is_counter=True,
    labels=("device",),
)
_STEPS = Metric("memprof_steps_total", "Steps that have ended.", "", is_counter=True)
_STEP_S = Metric("memprof_step_duration_seconds", "How long the last step took.", "seconds")
_FINDINGS = Metric(
    "memprof_findings_total",
    "Findings while the job runs.",
    "",
    is_counter=True,
    labels=("finding",),
)
_OVERHEAD = Metric(
    "memprof_recording_seconds_total",
    "Time that recording has taken.",
    "seconds",
    is_counter=True,
)
_LAST_RECORD = Metric(
    "memprof_last_record_timestamp_seconds", "When the job was heard of last.", "seconds"
)
_RUN_ENDED = Metric("memprof_run_ended", "1 when the run has ended in good order.", "")
_RESIDENT = Metric("memprof_host_resident_bytes", "Resident memory of the process.", "bytes")
_AVAILABLE = Metric("memprof_host_available_bytes", "Memory that the host has available.", "bytes")
_LIMIT_FREE = Metric(
    "memprof_host_limit_free_bytes", "What the limit of the container or job leaves.", "bytes"
)

METRICS = (
    *(_ALLOCATED, _PEAK, _RESERVED, _PEAK_RESERVED, _CAPACITY, _OUTSIDE, _OTHERS, _OWNED),
    *(_GROWTH, _FULL_S, _FULL_STEPS, _RETRIES, _OOMS, _STEPS, _STEP_S, _FINDINGS, _OVERHEAD),
    *(_LAST_RECORD, _RUN_ENDED, _RESIDENT, _AVAILABLE, _LIMIT_FREE),
)
"""All of them, in the order in which they are told."""


def samples(runs: Sequence[LiveRun]) -> Iterator[Sample]:
    """Every value that is known by now; what was not measured is absent."""
    for run in runs:
        with run.lock:
            values = list(_of_run(run))
        yield from values


def _of_run(run: LiveRun) -> Iterator[Sample]:
    if run.header is None:
        return
    own = {"file": Path(run.source).name, "rank": str(run.rank) if run.rank >= 0 else ""}
    for device in run.devices.values():
        yield from _not_negative(_device_values(run, device), own | {"device": device.device})
        for owner in device.categories:
            labels = own | {"device": device.device, "category": owner.name}
            yield Sample(_OWNED, float(owner.bytes), labels)
    counts: dict[str, int] = dict(run.finding_counts)
    for name, count in sorted(counts.items()):
        yield Sample(_FINDINGS, float(count), own | {"finding": name})
    main = run.main
    each_us = main.last.each_us if main is not None and main.last is not None else -1.0
    yield from _not_negative(
        {
            _STEPS: run.step + 1,
            _STEP_S: each_us / 1e6,
            _OVERHEAD: run.overhead_us / 1e6,
            _LAST_RECORD: run.last_us / 1e6 if run.last_us else -1,
            _RUN_ENDED: int(run.footer is not None and run.footer.status == "ok"),
            _RESIDENT: run.host.get("rss", -1),
            _AVAILABLE: run.host.get("available", -1),
            _LIMIT_FREE: run.host.get("limit_free", -1),
        },
        own,
    )


def _device_values(run: LiveRun, device: LiveDevice) -> dict[Metric, float]:
    last, trend = device.last, device.trend()
    full = next((one for one in run.times_to_full() if one.device == device.device), None)
    values: dict[Metric, float] = {
        _CAPACITY: device.info.total_bytes or -1,
        _OUTSIDE: device.outside_bytes,
        _OTHERS: device.readings.get("others_used", -1),
        _RETRIES: device.retries,
        _OOMS: device.ooms,
    }
    if last is not None:
        values |= {
            _ALLOCATED: last.allocated,
            _PEAK: device.peak_allocated,
            _RESERVED: last.reserved,
            _PEAK_RESERVED: device.peak_reserved,
        }
    if trend is not None:
        values[_GROWTH] = max(0.0, trend.bytes_per_step) if trend.keeps_rising else 0.0
    if full is not None:
        values |= {_FULL_S: full.left_us / 1e6, _FULL_STEPS: full.steps_left}
    return values


def _not_negative(values: Mapping[Metric, float], labels: Mapping[str, str]) -> Iterator[Sample]:
    for metric, value in values.items():
        if value >= 0:
            yield Sample(metric, float(value), labels)
