"""The figures of one run as its records come, whoever brings them: a file that grows, or the job.

Bounded, however long the run is: rows of steps are thinned, and of all else the last is kept.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memprof.records import (
    DeviceInfo,
    Finding,
    Footer,
    Header,
    Interim,
    Note,
    Readings,
    StateRecord,
    StepsRecord,
    TablesRecord,
    WindowRecord,
)
from memprof.runfile.checks import MOST_DEVICES, check_range, integers
from memprof.runfile.parallel_owners import ParallelOwners
from memprof.trace import NOT_RECORDED, RECORDED_CATEGORIES, BlockState
from memprof.views.most_taken import most_taken
from memprof.views.owners import CATEGORY_NAMES, NO_MODULE
from memprof.views.time_to_full import (
    StepLevels,
    TimeToFull,
    capacity,
    has_gaps,
    time_to_full,
)
from memprof.views.trend import WARM_UP, Trend, trend

__all__ = ["LiveDevice", "LiveRun", "OwnerBytes", "StepRow"]

_MOST_ROWS = 2048
"""Rows of a device's steps, for a chart; of more, two become one."""
_MOST_FINDINGS, _MOST_NOTES, _LAST_ROWS = 200, 50, 64
_MOST_KINDS = 64
_MOST_LABELS = 1 << 20
_LATEST = 1 << 62
_COUNTERS = (
    *("first", "last", "start_us", "end_us", "allocated", "allocated_max"),
    *("peak_allocated", "reserved", "peak_reserved", "inactive_split"),
    *("retries", "ooms"),
)
_READINGS = frozenset(
    (
        *("used", "free", "total", "process_used", "others_used"),
        *("utilization_percent", "temperature_c", "power_w"),
        *("rss", "shared", "children_rss", "available", "limit_free"),
    )
)


@dataclass(frozen=True, slots=True)
class StepRow:
    """The end of a step, or of several: bytes, -1 where not measured."""

    first: int
    last: int
    end_us: int
    each_us: float
    """Time that a step took."""
    allocated: int
    peak: int
    reserved: int
    peak_reserved: int
    peak_with_gaps: int
    """The peak, and the gaps that it did not fit into."""


@dataclass(frozen=True, slots=True)
class OwnerBytes:
    """Who had how much at the end of the last window, or at its beginning."""

    name: str
    bytes: int


@dataclass(slots=True, eq=False)
class LiveDevice:
    """One device of a run."""

    device: str
    info: DeviceInfo
    most_rows: int = _MOST_ROWS
    rows: list[StepRow] = field(default_factory=list)
    """Over the whole run, thinned."""
    last_rows: deque[StepRow] = field(default_factory=lambda: deque(maxlen=_LAST_ROWS))
    """The last ones as they came."""
    readings: dict[str, float] = field(default_factory=dict)
    """The last value of each that could be read."""
    categories: tuple[OwnerBytes, ...] = ()
    modules: tuple[OwnerBytes, ...] = ()
    owners_step: int = NOT_RECORDED
    """The step in which that was so."""
    retries: int = NOT_RECORDED
    ooms: int = 0
    peak_allocated: int = NOT_RECORDED
    peak_reserved: int = NOT_RECORDED
    _reserved_when_read: float = 0.0
    _stride: int = 1
    _waiting: int = 0
    _full: tuple[int, TimeToFull | None] = (-1, None)
    _trend: tuple[int, Trend | None] = (-1, None)
    _count: int = 0

    @property
    def last(self) -> StepRow | None:
        """The last step that was counted."""
        return self.last_rows[-1] if self.last_rows else None

    @property
    def outside_bytes(self) -> int:
        """What the process holds on the device beyond what torch has reserved; -1: not known."""
        own = self.readings.get("process_used")
        return NOT_RECORDED if own is None else max(0, round(own - self._reserved_when_read))

    def add(self, row: StepRow) -> None:
        """One more row, at the end."""
        self._count += 1
        self.last_rows.append(row)
        self.peak_allocated = max(self.peak_allocated, row.peak, row.allocated)
        self.peak_reserved = max(self.peak_reserved, row.reserved, row.peak_reserved)
        if self.rows and self._waiting and self._waiting < self._stride:
            self.rows[-1] = _merged(self.rows[-1], row)
        else:
            self.rows.append(row)
            self._waiting = 0
        self._waiting += 1
        if len(self.rows) > self.most_rows:
            pairs = zip(self.rows[0:-1:2], self.rows[1::2], strict=False)
            odd = self.rows[-1:] if len(self.rows) % 2 else []
            self.rows = [_merged(one, other) for one, other in pairs] + odd
            self._stride *= 2

    def read(self, values: dict[str, float]) -> None:
        """What a driver or the host said just now."""
        self.readings |= values
        if "used" in values or "process_used" in values:
            self._reserved_when_read = float(max(0, self.last.reserved)) if self.last else 0.0

    def time_to_full(self, host: dict[str, float]) -> TimeToFull | None:
        """When it is full, as far as is known by now; ``host``: the last readings of the host."""
        if self._full[0] == self._count or self.ooms > 0 or self.last is None:
            return self._full[1] if self.ooms <= 0 else None
        free = [host[name] for name in ("available", "limit_free") if name in host]
        used = self.readings.get("used")
        room = capacity(
            self.info,
            allocated=self.last.allocated,
            others=0.0 if used is None else max(0.0, used - self._reserved_when_read),
            host_free=min(free, default=-1.0),
        )
        estimate = time_to_full(self.device, self._levels(), room)
        self._full = self._count, estimate
        return estimate

    def trend(self) -> Trend | None:
        """How what is allocated at step ends changed since the warm-up; None with few steps."""
        if self._trend[0] != self._count:
            points = [(row.last, row.allocated) for row in self.rows if row.last >= WARM_UP]
            points = [pair for pair in points if pair[1] >= 0]
            pairs = np.array(points, dtype=np.float64).reshape(-1, 2)
            self._trend = self._count, trend(pairs[:, 0], pairs[:, 1])
        return self._trend[1]

    def _levels(self) -> StepLevels:
        rows, gaps = self.rows, has_gaps(self.info)
        columns = (
            [row.last for row in rows],
            [row.allocated for row in rows],
            [row.peak_with_gaps if gaps else max(row.peak, row.allocated) for row in rows],
            [row.end_us for row in rows],
        )
        return StepLevels(*(np.array(column, dtype=np.float64) for column in columns))


def _merged(one: StepRow, other: StepRow) -> StepRow:
    steps, more = one.last - one.first + 1, other.last - other.first + 1
    return StepRow(
        first=one.first,
        last=other.last,
        end_us=other.end_us,
        each_us=(one.each_us * steps + other.each_us * more) / max(1, steps + more),
        allocated=other.allocated,
        peak=max(one.peak, other.peak),
        reserved=other.reserved,
        peak_reserved=max(one.peak_reserved, other.peak_reserved),
        peak_with_gaps=max(one.peak_with_gaps, other.peak_with_gaps),
    )


class LiveRun:
    """One run, or one rank of a job; any thread may add, and any may look under ``lock``."""

    def __init__(self, source: str = "", *, most_rows: int = _MOST_ROWS) -> None:
        """``most_rows`` are kept of a device's steps: in a job few, as they are looked at there."""
        self.source = source
        self._most_rows = most_rows
        self.lock = threading.RLock()
        self.clear()

    def clear(self) -> None:
        """Forget everything: the file is another one now."""
        self.header: Header | None = None
        self.devices: dict[str, LiveDevice] = {}
        self.host: dict[str, float] = {}
        self.findings: deque[Finding] = deque(maxlen=_MOST_FINDINGS)
        self.finding_counts: Counter[str] = Counter()
        self.notes: deque[Note] = deque(maxlen=_MOST_NOTES)
        self.footer: Footer | None = None
        self.interim: Interim | None = None
        self.windows = 0
        self.last_us = 0
        """The latest time that a record has told of."""
        self._modules: list[str] = [""]
        self._parallel = ParallelOwners()

    @property
    def rank(self) -> int:
        """Global rank; -1 outside a launcher."""
        return self.header.rank if self.header is not None else -1

    @property
    def step(self) -> int:
        """The last step that was counted on any device; -1 before the first."""
        return max((d.last.last for d in self.devices.values() if d.last), default=NOT_RECORDED)

    @property
    def findings_count(self) -> int:
        """Findings so far, of all kinds."""
        return self.finding_counts.total()

    @property
    def overhead_us(self) -> int:
        """What recording took so far; -1 where not told yet."""
        latest = self.footer or self.interim
        return latest.overhead_us if latest is not None else NOT_RECORDED

    @property
    def main(self) -> LiveDevice | None:
        """The accelerator with the highest peak; the CPU where there is none."""
        used = [one for one in self.devices.values() if one.last is not None]
        cards = [one for one in used if one.device != "cpu"]
        return max(cards or used, key=lambda one: one.peak_allocated, default=None)

    def times_to_full(self) -> list[TimeToFull]:
        """Of every device that fills up, the first that is full first."""
        with self.lock:
            if self.footer is not None:
                return []
            estimates = [one.time_to_full(self.host) for one in self.devices.values()]
        finite = [one for one in estimates if one is not None]
        return sorted(finite, key=lambda one: (one.left_us, one.steps_left))

    def add_all(self, records: Iterable[object]) -> int:
        """The records that are new; how many there were."""
        count = 0
        for record in records:
            self.add(record)
            count += 1
        return count

    def add(self, record: object) -> None:
        """One more record; one that says nothing here, or is impossible, is passed over."""
        adds = _ADDERS.get(type(record))
        if adds is None:
            return
        try:
            with self.lock:
                adds(self, record)
        # A line may be valid JSON of the right types and still hold impossible figures.
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return

    def _device(self, name: str) -> LiveDevice | None:
        if name not in self.devices:
            if len(self.devices) >= MOST_DEVICES:
                return None
            infos = self.header.devices if self.header is not None else []
            info = next((one for one in infos if one.device == name), DeviceInfo(name))
            self.devices[name] = LiveDevice(name, info, self._most_rows)
        return self.devices[name]

    def _add_header(self, header: Header) -> None:
        self.header = header
        for info in header.devices[:MOST_DEVICES]:
            device = self._device(info.device)
            if device is not None:
                device.info = info

    def _add_steps(self, record: StepsRecord) -> None:
        rows, device = record.steps, self._device(record.device)
        length = len(rows.first)
        columns = {name: integers(getattr(rows, name)) for name in _COUNTERS}
        for name, column in columns.items():
            check_range(name, column, NOT_RECORDED, _LATEST)
            if len(column) != length:
                raise ValueError("its columns differ in length")
        if device is None or not length:
            return
        for at in range(length):
            figures = {name: int(column[at]) for name, column in columns.items()}
            device.add(_step_row(figures))
        device.retries = max(device.retries, int(columns["retries"][-1]))
        device.ooms = max(device.ooms, int(columns["ooms"][-1]))
        self._note_time(int(columns["end_us"][-1]))

    def _add_readings(self, record: Readings) -> None:
        values = {
            name: float(value)
            for name, column in record.values.items()
            if name in _READINGS or name.startswith("used by ")
            if (value := next((v for v in reversed(column) if v is not None), None)) is not None
        }
        if record.time_us:
            self._note_time(int(record.time_us[-1]))
        if record.device == "host":
            self.host |= values
            return
        device = self._device(record.device)
        if device is not None:
            device.read(values)

    def _add_tables(self, record: TablesRecord) -> None:
        first = record.first[2]
        if not 0 <= first <= _MOST_LABELS or len(record.labels) > _MOST_LABELS:
            raise ValueError("too many labels")
        if not 0 <= min(record.first) <= max(record.first) <= _LATEST:
            raise ValueError("its rows are impossible")
        self._parallel.add(record.first[0], record.frames, record.first[1], record.stacks)
        del self._modules[first:]
        self._modules += [""] * (first - len(self._modules))
        self._modules += [module for _, _, module, _ in record.labels]

    def _add_state(self, record: StateRecord) -> None:
        device = self._device(record.device)
        size = integers(record.blocks.size)
        category, label = integers(record.blocks.category), integers(record.blocks.label)
        is_live = integers(record.blocks.state) == BlockState.ACTIVE_ALLOCATED
        check_range("category", category, 0, RECORDED_CATEGORIES)
        if device is None or not is_live.any():
            return
        category = self._parallel.categories(category, integers(record.blocks.stack))
        size, category, label = size[is_live], category[is_live], label[is_live]
        device.categories = _owners(CATEGORY_NAMES, category, size)
        names = self._modules
        label_row = np.where((label >= 0) & (label < len(names)), label, 0)
        rows, back = np.unique(label_row, return_inverse=True)
        distinct = sorted({names[int(row)] or NO_MODULE for row in rows})
        number = {name: n for n, name in enumerate(distinct)}
        of = np.array([number[names[int(row)] or NO_MODULE] for row in rows], dtype=np.int64)
        device.modules = _owners(distinct, of[back], size)
        device.owners_step = self.step

    def _add_finding(self, finding: Finding) -> None:
        self.findings.append(finding)
        if finding.finding in self.finding_counts or len(self.finding_counts) < _MOST_KINDS:
            self.finding_counts[finding.finding] += 1
        if finding.finding == "oom":
            device = self._device(finding.device)
            if device is not None:
                device.ooms = max(1, device.ooms)

    def _add_note(self, note: Note) -> None:
        self.notes.append(note)

    def _add_window(self, _: WindowRecord) -> None:
        self.windows += 1

    def _add_interim(self, interim: Interim) -> None:
        self.interim = interim
        self._note_time(interim.time_us)

    def _add_footer(self, footer: Footer) -> None:
        self.footer = footer
        self._note_time(footer.ended_us)

    def _note_time(self, time_us: int) -> None:
        if 0 <= time_us < 1 << 57:
            self.last_us = max(self.last_us, time_us)


_ADDERS: dict[Any, Callable[[LiveRun, Any], None]] = {
    Header: LiveRun._add_header,
    StepsRecord: LiveRun._add_steps,
    Readings: LiveRun._add_readings,
    TablesRecord: LiveRun._add_tables,
    StateRecord: LiveRun._add_state,
    Finding: LiveRun._add_finding,
    Note: LiveRun._add_note,
    WindowRecord: LiveRun._add_window,
    Interim: LiveRun._add_interim,
    Footer: LiveRun._add_footer,
}


def _step_row(figures: dict[str, int]) -> StepRow:
    steps = max(1, figures["last"] - figures["first"] + 1)
    peak = max(figures["peak_allocated"], figures["allocated_max"])
    timed = figures["end_us"] > 0 and figures["start_us"] > 0
    return StepRow(
        first=figures["first"],
        last=figures["last"],
        end_us=max(0, figures["end_us"]),
        each_us=(figures["end_us"] - figures["start_us"]) / steps if timed else -1.0,
        allocated=figures["allocated"],
        peak=peak,
        reserved=figures["reserved"],
        peak_reserved=figures["peak_reserved"],
        peak_with_gaps=most_taken(figures["allocated"], peak, figures["inactive_split"]),
    )


def _owners(
    names: list[str] | tuple[str, ...], of: np.ndarray, size: np.ndarray
) -> tuple[OwnerBytes, ...]:
    sums = np.bincount(of, weights=size, minlength=len(names))
    owners = [
        OwnerBytes(name, int(total)) for name, total in zip(names, sums, strict=False) if total
    ]
    return tuple(sorted(owners, key=lambda one: -one.bytes))
