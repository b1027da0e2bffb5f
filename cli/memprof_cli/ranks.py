"""The ranks of a job: who reads and judges them, and what the screen says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memprof.ranks.engines import engine
from memprof.ranks.figures import MEASURES
from memprof.ranks.merge_findings import SharedFinding
from memprof.ranks.report import JobReport
from memprof.ranks.text import heading, how_far, roll_call, spread, sums, who, who_was_judged
from memprof.ranks.workers import Workers
from memprof.views.sites import short_path
from memprof_cli.progress import progress
from memprof_cli.terminal import terminal

__all__ = ["print_job", "workers_on"]

_WIDTH = 100
_MOST_FINDINGS = 5
_MOST_DEVIATIONS = 8
_STYLES = {"ok": "bold green", "no data": "bold yellow", "oom": "bold red", "leak": "bold red"}
_TITLES = {measure.name: measure.title for measure in MEASURES}
_MENDED = ("leak", "waste", "fragmentation")
"""Levels whose verdict names a fix; of the others the next command is all there is to do."""


@contextmanager
def workers_on(address: str | None) -> Iterator[Workers]:
    """The workers of the engine at ``address``; this process where there is none."""
    if address is None:
        yield Workers(progress=progress)
        return
    with engine(address) as executor:
        workers = Workers(executor, progress)
        workers.check()
        yield workers


def print_job(job: JobReport) -> None:
    """Print who was read, the verdict, the peaks, who differs, what was found, what to type."""
    console = terminal(_WIDTH)
    console.print(Text(heading(job), style="dim"))
    console.print(_answer(job))
    if job.spreads:
        console.print(_spreads(job))
    if job.deviations:
        console.print(_deviations(job))
    console.print(_findings(job))
    console.print(_rows([("Next", Text(job.next, style="cyan"))]))


def _rows(rows: Iterable[tuple[str, Text]]) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(name, text)
    return grid


def _answer(job: JobReport) -> RenderableType:
    verdict = job.verdict
    rows = [("" if number else "Ranks", Text(line)) for number, line in enumerate(roll_call(job))]
    rows += [
        ("Verdict", Text(verdict.line, style=_STYLES.get(verdict.level, "bold yellow"))),
        ("Why", Text(verdict.why)),
    ]
    if verdict.level in _MENDED:
        rows.append(("Fix", Text(verdict.next, style="green")))
    return Padding(_rows(rows), (0, 0, 1, 0))


def _spreads(job: JobReport) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for style in ("bold", "", "", ""):
        table.add_column(style=style, no_wrap=True, overflow="ellipsis")
    table.add_row(*(Text(head, style="dim") for head in ("", "least", "median", "highest")))
    for one in job.spreads:
        table.add_row(_TITLES[one.measure], *map(Text, spread(job, one)))
    return Padding(table, (0, 0, 1, 0))


def _deviations(job: JobReport) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(overflow="fold")
    for one in job.deviations[:_MOST_DEVIATIONS]:
        table.add_row(Text(_TITLES[one.measure]), Text(who(job, one)), Text(how_far(job, one)))
    head = Text("Differ from the rest", style="bold")
    more = len(job.deviations) - _MOST_DEVIATIONS
    rest = [Text(f"  and {more} more (see --json)", style="dim")] if more > 0 else []
    return Padding(Group(head, Padding(table, (0, 0, 0, 2)), *rest), (0, 0, 1, 0))


def _findings(job: JobReport) -> RenderableType:
    lines: list[RenderableType] = [Text(who_was_judged(job), style="bold")]
    lines += [Padding(_finding(job, one), (0, 0, 0, 2)) for one in job.findings[:_MOST_FINDINGS]]
    more = len(job.findings) - _MOST_FINDINGS
    if more > 0:
        lines.append(Text(f"  and {more} more (see --json)", style="dim"))
    return Padding(Group(*lines), (0, 0, 1, 0))


def _finding(job: JobReport, one: SharedFinding) -> RenderableType:
    text = Text(one.kind.replace("_", " "), style="bold red" if one.bytes_per_step else "bold")
    text.append(f"  {one.title}", style="")
    says_where = one.names_line or not one.site.filename
    at = "" if says_where else f"at {short_path(one.site.filename)}:{one.site.line}, "
    text.append(f"; {at}{sums(job, one)}", style="dim")
    return text
