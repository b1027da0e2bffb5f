"""The ranks of a job in figures: what each came to, the spread over all, and who differs in what.

Rows come from footers, or from whole runs where there is none; findings are merged in `together`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.oom.failed_allocation import times_out_of_memory
from memprof.ranks.outlier_test import outliers
from memprof.records import DeviceSummary, Footer, Header, is_out_of_memory
from memprof.run import Run, Steps
from memprof.trace import NOT_RECORDED
from memprof.views.device_readings import beyond_torch, most
from memprof.views.examination import DeviceExamination, examine
from memprof.views.steps import allocated_trend
from memprof.views.time_to_full import TimeToFull, times_to_full

__all__ = [
    "MEASURES",
    "Deviation",
    "Measure",
    "RankFigures",
    "Spread",
    "choose_ranks",
    "deviations",
    "footer_of",
    "is_rising",
    "rank_rows",
    "spreads",
]

_EACH = 8
"""Ranks up to which each is judged."""
_MOST_JUDGED = 6
_RISING = 0.9
_SMALLEST_BLOCK = 512
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class RankFigures:
    """One recording of many; bytes and microseconds, -1 where not measured."""

    rank: int
    """-1 outside a launcher."""
    file: str
    ended: str
    """``ok``, ``failed`` (by an exception) or ``cut off`` (killed, or still running)."""
    status: str
    """The exception."""
    started_us: int
    ended_us: int
    """Of one that was cut off: when it was last summed up."""
    steps: int
    step_us: int
    ooms: int
    """Requests that any of its devices could not serve."""
    device: str
    """The one that the figures are of: an accelerator if any rank used one, with the most bytes."""
    total_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    outside_bytes: int
    bytes_per_step: float | None
    rising: float
    full_step: int = NOT_RECORDED
    """The step that will not fit on the device any more; -1: it does not fill up, or not known."""
    full_left_us: int = NOT_RECORDED
    """Time until then from the last step's end; of one that has ended, what would have come."""

    @property
    def name(self) -> str:
        """``rank 17``, or the file where it has none."""
        return f"rank {self.rank}" if self.rank >= 0 else self.file

    @property
    def unused_bytes(self) -> int:
        """Most that was reserved beyond the most that tensors took."""
        if min(self.peak_reserved_bytes, self.peak_allocated_bytes) < 0:
            return NOT_RECORDED
        return max(self.peak_reserved_bytes - self.peak_allocated_bytes, 0)

    @property
    def ran_out(self) -> bool:
        """Whether a request failed for want of memory."""
        return self.ooms > 0 or is_out_of_memory(self.status)


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure by which ranks are compared."""

    name: str
    title: str
    unit: str
    """``bytes``, ``bytes per step`` or ``us``."""
    least: float
    """Differences of this size are noise."""
    of: Callable[[RankFigures], float | None]

    def values(self, ranks: Sequence[RankFigures]) -> list[float | None]:
        """One a rank, None where not measured: a growth may be negative, else that is -1."""
        values = [self.of(rank) for rank in ranks]
        return [None if v is None or (v < 0 and self.name != "growth") else v for v in values]


MEASURES = (
    Measure("peak_allocated", "peak allocated", "bytes", _MIB, lambda r: r.peak_allocated_bytes),
    Measure("peak_reserved", "peak reserved", "bytes", 2 * _MIB, lambda r: r.peak_reserved_bytes),
    Measure("unused", "reserved, unused", "bytes", 2 * _MIB, lambda r: r.unused_bytes),
    Measure("outside", "outside torch", "bytes", 2 * _MIB, lambda r: r.outside_bytes),
    Measure("growth", "growth", "bytes per step", _SMALLEST_BLOCK, lambda r: r.bytes_per_step),
    Measure("step_time", "step time", "us", 1_000, lambda r: r.step_us),
    Measure("time_to_full", "time to full", "us", 1_000_000, lambda r: r.full_left_us),
)
_NOT_COMPARED = ("peak_reserved", "time_to_full")
"""Told as a spread; who differs in it differs in allocated or in unused bytes, or in growth."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The least, the median and the highest of a measure, and which rank has them."""

    measure: str
    unit: str
    ranks: int
    """Of how many it was measured."""
    least: float
    least_at: str
    median: float
    highest: float
    highest_at: str


@dataclass(frozen=True, slots=True)
class Deviation:
    """Ranks that differ from the rest in one measure, all in one direction."""

    measure: str
    unit: str
    higher: bool
    rows: tuple[int, ...]
    """Which of the ranks, by their place, the farthest first."""
    value: float
    """Of the farthest."""
    median: float
    """Of all."""


# -- rows ------------------------------------------------------------------------------------------


def rank_rows(
    files: Sequence[str],
    headers: Sequence[Header],
    footers: Sequence[Footer],
    closed: Sequence[bool],
) -> tuple[RankFigures, ...]:
    """A row a file; the arguments have one element each.

    The figures are those of accelerators if any rank has some: what its host's tensors take is
    another matter, and a rank that came not so far differs from the rest.
    """
    everywhere = [device for footer in footers for device in footer.devices]
    accelerated = any(d.device != "cpu" and d.peak_allocated_bytes > 0 for d in everywhere)
    rows = zip(files, headers, footers, closed, strict=True)
    return tuple(_row(*row, accelerated=accelerated) for row in rows)


def _row(
    file: str, header: Header, footer: Footer, is_closed: bool, *, accelerated: bool
) -> RankFigures:
    devices = [d for d in footer.devices if (d.device != "cpu") is accelerated]
    main = max(devices, key=lambda d: d.peak_allocated_bytes, default=DeviceSummary(""))
    totals = {info.device: info.total_bytes for info in header.devices}
    failed = is_closed and footer.status != "ok"
    return RankFigures(
        rank=header.rank,
        file=file,
        ended="failed" if failed else "ok" if is_closed else "cut off",
        status=footer.status if failed else "",
        started_us=header.created_us,
        ended_us=footer.ended_us,
        steps=footer.steps,
        step_us=footer.step_us,
        ooms=sum(max(d.ooms, 0) for d in footer.devices),
        device=main.device,
        total_bytes=main.total_bytes or totals.get(main.device, 0),
        peak_allocated_bytes=main.peak_allocated_bytes,
        peak_reserved_bytes=main.peak_reserved_bytes,
        outside_bytes=main.outside_bytes,
        bytes_per_step=main.bytes_per_step,
        rising=main.rising,
        full_step=main.full_step,
        full_left_us=main.full_left_us,
    )


def footer_of(run: Run) -> Footer:
    """What the footer of a run would have said, from everything that was recorded of it."""
    examination = examine(run)
    rows = [device.steps for device in run.devices if len(device.steps)]
    full = {one.device: one for one in times_to_full(run)}
    return Footer(
        ended_us=max((int(steps.end_us.max()) for steps in rows), default=0),
        steps=max((int(steps.last.max()) + 1 for steps in rows), default=0),
        devices=[
            _summary(device, run, full.get(device.device.device)) for device in examination.devices
        ],
        status="ok" if run.is_snapshot else run.footer.status if run.footer else "",
        step_us=max((_step_us(steps) for steps in rows), default=NOT_RECORDED),
    )


def _summary(examination: DeviceExamination, run: Run, full: TimeToFull | None) -> DeviceSummary:
    device = examination.device
    trend = allocated_trend(device.steps)
    # What a CPU reserves, and how it rounds, is the model's; footers hold what was counted.
    is_cpu = device.device == "cpu"
    peak = int(device.steps.peak_allocated.max(initial=NOT_RECORDED))
    return DeviceSummary(
        device=device.device,
        peak_allocated_bytes=peak if is_cpu and peak > 0 else examination.peak_allocated,
        peak_reserved_bytes=NOT_RECORDED if is_cpu else examination.peak_reserved,
        total_bytes=device.info.total_bytes,
        outside_bytes=most(beyond_torch(run, device)),
        bytes_per_step=trend.bytes_per_step if trend else None,
        rising=trend.rising if trend else float(NOT_RECORDED),
        ooms=times_out_of_memory(run, device),
        events=device.events,
        full_step=full.full_step if full is not None else NOT_RECORDED,
        full_left_us=full.left_us if full is not None else NOT_RECORDED,
    )


def _step_us(steps: Steps) -> int:
    timed = (steps.start_us >= 0) & (steps.end_us >= steps.start_us)
    if not timed.any():
        return NOT_RECORDED
    each = (steps.end_us - steps.start_us)[timed] / (steps.last - steps.first + 1)[timed]
    return round(float(np.median(each)))


# -- comparing -------------------------------------------------------------------------------------


def _values(measure: Measure, ranks: Sequence[RankFigures]) -> npt.NDArray[np.float64]:
    values = [np.nan if value is None else value for value in measure.values(ranks)]
    return np.array(values, dtype=np.float64)


def spreads(ranks: Sequence[RankFigures]) -> tuple[Spread, ...]:
    """Of every measure that any rank has."""
    return tuple(
        _spread(measure, values, ranks)
        for measure in MEASURES
        if not np.isnan(values := _values(measure, ranks)).all()
    )


def _spread(
    measure: Measure, values: npt.NDArray[np.float64], ranks: Sequence[RankFigures]
) -> Spread:
    low, high = int(np.nanargmin(values)), int(np.nanargmax(values))
    return Spread(
        measure=measure.name,
        unit=measure.unit,
        ranks=int((~np.isnan(values)).sum()),
        least=float(values[low]),
        least_at=ranks[low].name,
        median=float(np.nanmedian(values)),
        highest=float(values[high]),
        highest_at=ranks[high].name,
    )


def deviations(ranks: Sequence[RankFigures]) -> tuple[Deviation, ...]:
    """Who differs from the rest in what, by the rule of `outliers`; measure by measure."""
    return tuple(
        deviation
        for measure in MEASURES
        if measure.name not in _NOT_COMPARED
        for deviation in _deviations(measure, _values(measure, ranks))
    )


def _deviations(measure: Measure, values: npt.NDArray[np.float64]) -> Iterator[Deviation]:
    far = outliers(values, measure.least)
    if not far.any():
        return
    median = float(np.nanmedian(values))
    for higher in (True, False):
        rows = np.flatnonzero(far & ((values > median) == higher))
        rows = rows[np.argsort(-np.abs(values[rows] - median), kind="stable")]
        if len(rows):
            first = float(values[rows[0]])
            places = tuple(rows.tolist())
            yield Deviation(measure.name, measure.unit, higher, places, first, median)


# -- whom to judge ---------------------------------------------------------------------------------


def is_rising(rank: RankFigures) -> bool:
    """Whether its allocated bytes rise from nearly every step to every later one."""
    rate = rank.bytes_per_step
    return rate is not None and rate > _SMALLEST_BLOCK and rank.rising > _RISING


def choose_ranks(ranks: Sequence[RankFigures], deviating: Sequence[Deviation]) -> dict[int, str]:
    """Places of the ranks that stand for all, and why each: whole recordings are dear to judge.

    Of up to eight, each; else the first that ran out of memory, the one with the highest peak, the
    median one, the fastest growing and the farthest in each deviation, six at most.
    """
    if len(ranks) <= _EACH:
        return dict.fromkeys(range(len(ranks)), "")
    reasons: dict[int, str] = {}
    for place, why in _candidates(ranks, deviating):
        if len(reasons) < _MOST_JUDGED:
            reasons.setdefault(place, why)
    return reasons


def _candidates(
    ranks: Sequence[RankFigures], deviating: Sequence[Deviation]
) -> Iterator[tuple[int, str]]:
    places = range(len(ranks))
    out = [place for place in places if ranks[place].ran_out]
    if out:
        yield min(out, key=lambda place: ranks[place].ended_us), "ran out of memory"
    by_peak = sorted(places, key=lambda place: ranks[place].peak_allocated_bytes)
    yield by_peak[-1], "highest peak"
    yield by_peak[(len(by_peak) - 1) // 2], "median peak"
    rising = [place for place in places if is_rising(ranks[place])]
    if rising:
        yield max(rising, key=lambda place: ranks[place].bytes_per_step or 0.0), "fastest growth"
    titles = {measure.name: measure.title for measure in MEASURES}
    for one in deviating:
        yield one.rows[0], f"{'high' if one.higher else 'low'} {titles[one.measure]}"
