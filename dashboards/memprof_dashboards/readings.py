"""The figure "around torch": sampled readings of the driver and the host, by unit; no drawing."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import numpy.typing as npt

from memprof.run import ReadingSeries
from memprof_dashboards.text import visible
from memprof_dashboards.views import DeviceView

__all__ = ["ReadingPanel", "readings_figure"]

_POINTS = 1200
_HOST = "host"
_UNITS = (
    ("_percent", "%"),
    ("_w", "W"),
    ("_c", "°C"),
    ("_count", "count"),
    ("_mhz", "MHz"),
    ("_bytes_per_s", "B/s"),
    ("_s", "s"),
    ("_us", "µs"),
)
# A constant is no curve; what is left of one is told by the curve beside it.
_NOT_DRAWN = frozenset({"total", "free", "gc_full_count"})


class Line(msgspec.Struct):
    """One value over time; None where it could not be read."""

    name: str
    time_us: list[int]
    values: list[float | None]


class ReadingPanel(msgspec.Struct):
    """The lines of one source that share a unit (empty: bytes)."""

    title: str
    unit: str
    lines: list[Line]


def readings_figure(view: DeviceView) -> list[ReadingPanel]:
    """Panels for this device and the host, memory first; empty where nothing was sampled."""
    panels: dict[tuple[str, str], ReadingPanel] = {}
    for series in view.run.readings:
        if series.device not in (view.device.device, _HOST) or series.name in _NOT_DRAWN:
            continue
        known = np.isfinite(series.values)
        if not known.any():
            continue
        name, unit = _named(series.name)
        panel = panels.setdefault(_key(series, unit), ReadingPanel(_title(series), unit, []))
        panel.lines.append(_line(series, name, view.origin))
    return sorted(panels.values(), key=lambda p: (p.unit != "", p.unit == "count"))


def _key(series: ReadingSeries, unit: str) -> tuple[str, str]:
    """A panel a source and unit; what is free on the whole machine would dwarf what a job uses."""
    return series.source, "available" if series.name == "available" else unit


def _named(name: str) -> tuple[str, str]:
    for suffix, unit in _UNITS:
        if name.endswith(suffix):
            return visible(name.removesuffix(suffix).replace("_", " ")), unit
    return visible(name.replace("_", " ")), ""


def _title(series: ReadingSeries) -> str:
    titles = {"nvml": "Device (NVML)", "host": "Host"}
    return titles.get(series.source, visible(series.source))


def _line(series: ReadingSeries, name: str, origin: int) -> Line:
    rows = _extremes(series.values, _POINTS)
    values = [float(v) if np.isfinite(v) else None for v in series.values[rows]]
    return Line(name, (series.time_us[rows] - origin).tolist(), values)


def _extremes(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Rows that keep the lowest and the highest value of each of ``count / 2`` stretches."""
    if len(values) <= count:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), count // 2 + 1).astype(int)
    kept = [0, len(values) - 1]
    for low, high in itertools.pairwise(edges):
        part = np.nan_to_num(values[low:high])
        kept += [int(low + part.argmin()), int(low + part.argmax())]
    return np.unique(kept)
