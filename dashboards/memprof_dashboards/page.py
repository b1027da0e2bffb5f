"""The page about runs: figures and words of each; what a figure holds is its own room's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from memprof.oom.post_mortem import PostMortem
from memprof.report.summary import Summary, summarize
from memprof.rules.finding import RuleFinding
from memprof.run import Run
from memprof.trace import Category, Phase, Tables
from memprof.views.examination import Examination, examine
from memprof.views.owners import CATEGORY_NAMES, PHASE_NAMES
from memprof.views.sites import short_path, sites
from memprof.what_if.changed_run import DeviceWhatIf
from memprof_dashboards import assets, findings, header, postmortem, whatif
from memprof_dashboards.colors import CATEGORY_COLORS, OTHER_COLOR, PHASE_COLORS
from memprof_dashboards.memory import MemoryFigure, memory_figure
from memprof_dashboards.owners import OwnersFigure, owners_figures
from memprof_dashboards.readings import ReadingPanel, readings_figure
from memprof_dashboards.segments import SegmentMap, segment_maps
from memprof_dashboards.shell import shell
from memprof_dashboards.steps import StepsFigure, steps_figure
from memprof_dashboards.text import escaped, visible
from memprof_dashboards.views import DeviceView, StackBook, StackTable, device_view, origin_us

__all__ = ["RunReport", "page", "report_of"]

_SAMPLES = 10_000
"""Stretches of a timeline that a page keeps in all, shared among its devices."""
_FEWEST_SAMPLES = 600


@dataclass(frozen=True, slots=True, eq=False)
class RunReport:
    """A run with everything that a page says about it."""

    examination: Examination
    summary: Summary
    findings: Sequence[RuleFinding] = ()
    what_if: Sequence[DeviceWhatIf] = ()
    """Replays under other configurations, where they were asked for."""
    post_mortems: Sequence[PostMortem] = ()
    """Of failed allocations, likewise."""


def report_of(run: Run) -> RunReport:
    """A run examined and summed up, without a search for findings."""
    examination = examine(run)
    return RunReport(examination, summarize(examination))


class DeviceData(msgspec.Struct):
    """What the scripts draw of one device."""

    name: str
    memory: MemoryFigure | None
    owners: dict[str, OwnersFigure]
    steps: StepsFigure | None
    readings: list[ReadingPanel]
    segments: dict[str, SegmentMap]
    modelled: bool


class RunData(msgspec.Struct):
    """What the scripts draw of one run."""

    name: str
    origin_us: int
    stacks: StackTable
    devices: list[DeviceData]
    findings: list[findings.FindingSeries]


class PageData(msgspec.Struct):
    """Everything the scripts draw."""

    categories: list[str]
    category_colors: list[str]
    phases: list[str]
    phase_colors: list[str]
    other_color: str
    runs: list[RunData]


def page(reports: Sequence[RunReport], title: str) -> str:
    """The whole page as text.

    Raises:
        MissingError: plotly is not installed whole.
    """
    devices = sum(len(r.examination.devices) for r in reports)
    samples = max(_SAMPLES // max(devices, 1), _FEWEST_SAMPLES)
    runs = [_run_data(report, samples) for report in reports]
    data = PageData(
        categories=list(CATEGORY_NAMES),
        category_colors=[CATEGORY_COLORS[c] for c in Category],
        phases=list(PHASE_NAMES),
        phase_colors=[PHASE_COLORS[p] for p in Phase],
        other_color=OTHER_COLOR,
        runs=runs,
    )
    tops = "".join(_top(report, number) for number, report in enumerate(reports))
    return shell(title, tops, _FIGURES, msgspec.json.encode(data), assets.SCRIPTS, _switches(runs))


def _run_data(report: RunReport, samples: int) -> RunData:
    run = report.examination.run
    origin = origin_us(run)
    book = _book(report.examination)
    devices = [
        _device_data(device_view(run, examination, origin, book), samples)
        for examination in report.examination.devices
    ]
    return RunData(_name(run), origin, book.table(), devices, findings.series(report.findings))


def _book(examination: Examination) -> StackBook:
    """The devices of a run share their tables, so stacks are numbered once for all of them."""
    window = next((w for d in examination.devices for w in d.windows), None)
    if window is None:
        return StackBook(Tables(), sites(Tables()))
    return StackBook(window.trace.tables, window.owners.sites)


def _name(run: Run) -> str:
    name = visible(short_path(run.source, 1), 60) or "run"
    return f"{name} · rank {run.header.rank}" if run.header.rank >= 0 else name


def _device_data(view: DeviceView, samples: int) -> DeviceData:
    modelled = any(w.trace.modelled for w in view.windows)  # a CPU has no segments to look at
    return DeviceData(
        name=visible(view.device.device, 60),
        memory=memory_figure(view, samples),
        owners=owners_figures(view),
        steps=steps_figure(view),
        readings=readings_figure(view),
        segments={} if modelled else segment_maps(view),
        modelled=modelled,
    )


# -- HTML ------------------------------------------------------------------------------------------


def _top(report: RunReport, number: int) -> str:
    """What is said of one run in words: hidden but for the run that is switched to."""
    summary = report.summary
    tiles = "".join(
        f'<div data-run="{number}" data-device="{d}"{_hidden_input(d)}>'
        f"{header.figures(figures, final_state=summary.final_state)}</div>"
        for d, figures in enumerate(summary.devices)
    )
    return (
        f'<div class="run" data-run="{number}"{_hidden_input(number)}>'
        f"{header.verdict(summary)}{tiles}{header.recording_gaps(summary)}"
        f"{postmortem.cards(report.post_mortems)}"
        f"{findings.cards(report.findings)}{whatif.tables(report.what_if)}"
        f'<details class="about"><summary>About this recording</summary>'
        f"{header.recording(report.examination.run, report.summary)}</details></div>"
    )


def _hidden_input(number: int) -> str:
    return " hidden" if number else ""


def _switches(runs: Sequence[RunData]) -> str:
    """The choice of run and, within each, of device; left out where there is none."""
    switches = ""
    if len(runs) > 1:
        options = "".join(
            f'<option value="{n}">{escaped(r.name)}</option>' for n, r in enumerate(runs)
        )
        switches += f'<label>Run <select id="run">{options}</select></label>'
    for number, run in enumerate(runs):
        if len(run.devices) > 1:
            options = "".join(
                f'<option value="{n}">{escaped(d.name)}</option>' for n, d in enumerate(run.devices)
            )
            switches += (
                f'<label data-run="{number}"{_hidden_input(number)}>Device '
                f'<select class="device">{options}</select></label>'
            )
    return switches


_FIGURES = (
    (
        "memory",
        "Memory over time",
        "Bytes in use, stacked by owner, under what torch holds from the driver.",
    ),
    ("readings", "Around torch", "What the driver and the host say, on the same time axis."),
    ("owners", "What was alive", "Width is bytes. Click a box to look into it."),
    ("steps", "Step by step", "The most each step used, and what stayed at its end."),
    (
        "segments",
        "Map of the allocator",
        "Every segment by address; drag to zoom, double-click to go back.",
    ),
)
