"""The pages of memprof: a recorded run in, HTML out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from memprof.errors import MemprofError
from memprof.run import Run
from memprof.views.sites import short_path
from memprof_dashboards.page import RunReport, page, report_of
from memprof_dashboards.shell import save_page

__all__ = ["RunReport", "render", "write"]


def render(runs: Sequence[Run | RunReport], *, title: str = "") -> str:
    """One self-contained page about ``runs``, with a switch where they are several.

    A bare `Run` is examined and summed up here; hand in `RunReport` where that is done already, or
    where there are findings.

    Raises:
        MemprofError: there is no run, or plotly is not installed whole.
    """
    if not runs:
        raise MemprofError("there is no run to show", "name a run file or a snapshot")
    reports = [run if isinstance(run, RunReport) else report_of(run) for run in runs]
    names = [short_path(r.examination.run.source, 1) for r in reports]
    return page(reports, title or f"memprof · {', '.join(n for n in names if n) or 'run'}")


def write(runs: Sequence[Run | RunReport], path: str | Path, *, title: str = "") -> Path:
    """`render` into ``path``; returns the path.

    Raises:
        MemprofError: the file cannot be written.
    """
    return save_page(render(runs, title=title), path)
