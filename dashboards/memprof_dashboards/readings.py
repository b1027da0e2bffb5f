"""The figure "around torch": sampled readings of the driver and the host, by unit; no drawing."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import numpy.typing as npt

from memprof.run import ReadingSeries
from memprof.views.device_readings import PROCESS, beyond_torch, other_processes
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

_PROCESSES = 4
"""Other processes that are drawn; the line of all others has the rest."""
_NOT_TORCH = "Not torch's (NVML)"
_BESIDE = {
    "beyond_torch": "this process beyond torch",
    "others_used": "all other processes",
}


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
    beyond = beyond_torch(view.run, view.device)
    processes = other_processes(view.run, view.device.device)
    left_out = {*_NOT_DRAWN, *(series.name for series in processes[_PROCESSES:])}
    for series in (*((beyond,) if beyond is not None else ()), *view.run.readings):
        if series.device not in (view.device.device, _HOST) or series.name in left_out:
            continue
        is_finite = np.isfinite(series.values)
        if not is_finite.any():
            continue
        name, unit = _label_of(series.name)
        key = _key(series, unit)
        title = _NOT_TORCH if key[1] == _NOT_TORCH else _title(series)
        panel = panels.setdefault(key, ReadingPanel(title, unit, []))
        panel.lines.append(_line(series, name, view.origin))
    return sorted(panels.values(), key=lambda p: (p.unit != "", p.unit == "count"))


def _key(series: ReadingSeries, unit: str) -> tuple[str, str]:
    """A panel a source and unit; what is free on the whole machine would dwarf what a job uses."""
    if series.name in _BESIDE or series.name.startswith(PROCESS):
        return series.source, _NOT_TORCH
    return series.source, "available" if series.name == "available" else unit


def _label_of(name: str) -> tuple[str, str]:
    if name in _BESIDE:
        return _BESIDE[name], ""
    if name.startswith(PROCESS):
        return visible(name.removeprefix(PROCESS)), ""
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
    places = [0, len(values) - 1]
    for low, high in itertools.pairwise(edges):
        part = np.nan_to_num(values[low:high])
        places += [int(low + part.argmin()), int(low + part.argmax())]
    return np.unique(places)
