"""``memprof report``: one screen of text, JSON for machines, and the interactive page."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from memprof.analysis.examination import Examination, examine
from memprof.analysis.findings import Found
from memprof.analysis.oom import PostMortem, post_mortems
from memprof.analysis.summary import Summary, summarize
from memprof.analysis.whatif import DeviceWhatIf, replay
from memprof.findings import findings
from memprof.trace import Action
from memprof_cli.progress import progress
from memprof_cli.screen import print_summary, summaries_json
from memprof_cli.sources import opened, source_option

__all__ = ["command"]

_WHAT_IF_EVENTS = 50_000
"""Above these the page leaves replays to `memprof what-if --search` and `memprof oom`."""


@dataclass(frozen=True, slots=True, eq=False)
class _Report:
    examination: Examination
    found: tuple[Found, ...]
    summary: Summary


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The page to write [beside the first file].",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print figures as JSON; write a page only with -o."
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
@click.option("--no-page", is_flag=True, help="Print the summary alone.")
@source_option
def command(
    files: Sequence[Path],
    output: Path | None,
    as_json: bool,
    open_page: bool,
    no_page: bool,
    roots: tuple[Path, ...],
) -> None:
    """Say where the memory in FILES went, and write one self-contained HTML page.

    FILES are run files of memprof, or allocator snapshots that torch wrote
    (torch.cuda.memory._dump_snapshot), gzipped or not.
    """
    reports = [_examined(file, roots) for file in progress(files, "reading")]
    page = None if no_page or (as_json and output is None) else output or _beside(files[0])
    if page is not None:
        _write_page(reports, page)
    if as_json:
        click.echo(summaries_json([report.summary for report in reports]))
    else:
        for report in reports:
            print_summary(report.summary, report.found)
        if page is not None:
            click.echo(f"page: {page}")
    if open_page and page is not None:
        webbrowser.open(page.absolute().as_uri())


def _examined(file: Path, roots: Sequence[Path]) -> _Report:
    run = opened(file, roots)
    examination = examine(run)
    found = findings(run, examination)
    return _Report(examination, found, summarize(examination, found))


def _beside(file: Path) -> Path:
    """``run.json.gz`` -> ``run.html``, in the same folder."""
    name = file.name
    for suffix in (".gz", ".json", ".pickle", ".pkl"):
        name = name.removesuffix(suffix)
    return file.with_name(f"{name or file.name}.html")


def _write_page(reports: Sequence[_Report], page: Path) -> None:
    # The page's parts take longer to import than most reports take to compute.
    from memprof_dashboards import Reported, write

    told = [
        Reported(r.examination, r.summary, r.found, _what_if(r), _post_mortems(r)) for r in reports
    ]
    write(told, page)


def _post_mortems(report: _Report) -> tuple[PostMortem, ...]:
    """Of the failures of this run; those of long recordings are left to `memprof oom`."""
    run = report.examination.run
    failed = any(device.ooms for device in report.summary.devices)
    if not failed or sum(device.events for device in run.devices) > _WHAT_IF_EVENTS:
        return ()
    return post_mortems(run, examination=report.examination)


def _what_if(report: _Report) -> tuple[DeviceWhatIf, ...]:
    """Other allocator settings for the page, where that takes a moment and not minutes."""
    run = report.examination.run
    if sum(device.events for device in run.devices) > _WHAT_IF_EVENTS:
        return ()
    return tuple(
        row
        for device in run.devices
        for trace in device.windows[-1:]
        if (trace.events.action == Action.ALLOC).any()
        for row in replay(trace, search=True)
    )
