"""``memprof report``: one screen of text, JSON for machines, and the interactive page."""

from __future__ import annotations

import re
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from memprof.allocator import ReplayedTrace
from memprof.errors import SettingsError
from memprof.oom.post_mortem import PostMortem, post_mortems
from memprof.ranks.files import files_of, gather_ranks, job_report
from memprof.ranks.report import JobReport
from memprof.report.summary import Summary, summarize
from memprof.rules.finding import RuleFinding
from memprof.rules.ranked_findings import findings
from memprof.runfile.remote_file import Location, location
from memprof.trace import Action, Trace
from memprof.views.examination import Examination, examine
from memprof.views.window import Window
from memprof.what_if.changed_run import DeviceWhatIf, replay
from memprof_cli.json_output import print_json
from memprof_cli.limits import fail_above, job_peaks, limit_of, peaks
from memprof_cli.progress import progress
from memprof_cli.ranks import print_job, workers_on
from memprof_cli.screen import print_summaries, print_summary
from memprof_cli.sources import RECORDING, open_run, source_option

__all__ = ["command"]

_RANK = re.compile(r"\.rank\d+$")
_WHAT_IF_EVENTS = 50_000
"""Above these the page leaves replays to `memprof what-if --search` and `memprof oom`."""


@dataclass(frozen=True, slots=True, eq=False)
class _Report:
    examination: Examination
    findings: tuple[RuleFinding, ...]
    summary: Summary


@click.command()
@click.argument("files", nargs=-1, required=True, type=RECORDING)
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
@click.option("--all", "judge_all", is_flag=True, help="Look for leaks on every rank of a job.")
@click.option(
    "--on",
    "engine_address",
    metavar="ENGINE",
    help="Read and judge every rank of a job on a cluster: dask://HOST:PORT, ray://HOST:PORT or "
    "ray://auto; on this machine dask://local:4, ray://local:4 or processes://4.",
)
@click.option("--each", "one_by_one", is_flag=True, help="Give each file a screen of its own.")
@click.option(
    "--fail-above",
    "limit",
    metavar="LIMIT",
    help="Exit with status 3 when a peak of allocated bytes is above LIMIT: a size such as 22GiB, "
    "or another run's peak as base.json+2%; with 1 where a peak was not measured.",
)
def command(  # noqa: PLR0917 - click names them all
    files: Sequence[Location],
    output: Path | None,
    as_json: bool,
    open_page: bool,
    no_page: bool,
    roots: tuple[Path, ...],
    judge_all: bool,
    engine_address: str | None,
    one_by_one: bool,
    limit: str | None,
) -> None:
    """Show where the memory in FILES went, and write one self-contained HTML page.

    FILES are run files of memprof, or allocator snapshots that torch wrote
    (torch.cuda.memory._dump_snapshot), gzipped or not; also folders of them, and quoted patterns
    such as 'run.rank*.json', all of them also as URLs (s3://bucket/run). The ranks of one job, and
    more than eight files, share one screen.
    """
    most = limit_of(limit) if limit is not None else None  # before the work is done
    all_named, files = list(files), files_of(files)
    report = None
    if len(files) > 1 and not one_by_one:
        with workers_on(engine_address) as workers:
            job = gather_ranks(files, by_name=all_named == list(files), workers=workers)
            if job is not None:
                report = job_report(
                    job,
                    judge_all=judge_all or engine_address is not None,
                    workers=workers,
                    roots=[*roots, Path.cwd()],
                )
    elif engine_address is not None:
        raise SettingsError(
            "--on is for the ranks of a job, and this is one recording", "leave --on out"
        )
    if report is not None:
        page = None if no_page or (as_json and output is None) else output or _beside_job(report)
        _tell_job(report, page, as_json=as_json)
        all_peaks = job_peaks(report)
    else:
        summaries, page = _tell_each(files, roots, output, as_json=as_json, no_page=no_page)
        all_peaks = peaks(summaries, cards_only=most is not None and most.of_run)
    if open_page and page is not None:
        webbrowser.open(page.absolute().as_uri())
    if most is not None:
        fail_above(most, all_peaks)


def _tell_job(job: JobReport, page: Path | None, *, as_json: bool) -> None:
    if page is not None:
        from memprof_dashboards.ranks import write_job

        write_job(job, page)
    if as_json:
        print_json(job)  # `docs/ranks.md` says what is in it
        return
    print_job(job)
    if page is not None:
        click.echo(f"page: {page}")


def _tell_each(
    files: Sequence[Location],
    roots: Sequence[Path],
    output: Path | None,
    *,
    as_json: bool,
    no_page: bool,
) -> tuple[list[Summary], Path | None]:
    """A screen a file and one page of all; returns what was said and the page."""
    reports = [_report_of(file, roots) for file in progress(files, "reading")]
    page = None if no_page or (as_json and output is None) else output or _beside(files[0])
    if page is not None:
        _write_page(reports, page)
    summaries = [report.summary for report in reports]
    if as_json:
        print_summaries([(report.summary, report.findings) for report in reports])
    else:
        for report in reports:
            print_summary(report.summary, report.findings)
        if page is not None:
            click.echo(f"page: {page}")
    return summaries, page


def _report_of(file: Location, roots: Sequence[Path]) -> _Report:
    run = open_run(file, roots)
    examination = examine(run)
    all_findings = findings(run, examination)
    return _Report(examination, all_findings, summarize(examination, all_findings))


def _beside(file: Location) -> Path:
    """``run.json.gz`` -> ``run.html``, in the same folder."""
    name = file.name
    for suffix in (".gz", ".json", ".pickle", ".pkl"):
        name = name.removesuffix(suffix)
    return file.with_name(f"{name or file.name}.html")


def _beside_job(job: JobReport) -> Path:
    """``run.rank0.json`` -> ``run.ranks.html``, in the same folder."""
    page = _beside(location(job.ranks[0].file))
    stem = _RANK.sub("", page.name.removesuffix(".html"))
    return page.with_name(f"{stem}.ranks.html")


def _write_page(reports: Sequence[_Report], page: Path) -> None:
    # The page's parts take longer to import than most reports take to compute.
    from memprof_dashboards import RunReport, write

    summaries = [
        RunReport(r.examination, r.summary, r.findings, _what_if(r), _post_mortems(r))
        for r in reports
    ]
    write(summaries, page)


def _post_mortems(report: _Report) -> tuple[PostMortem, ...]:
    """Of the failures of this run; those of long recordings are left to `memprof oom`."""
    run = report.examination.run
    failed = any(device.ooms for device in report.summary.devices)
    if not failed or sum(device.events for device in run.devices) > _WHAT_IF_EVENTS:
        return ()
    return post_mortems(run, examination=report.examination)


def _replay_of(window: Window) -> ReplayedTrace | Trace:
    """The replay that a window comes from; its trace where it comes from none."""
    return window.trace if window.replay is None else window.replay


def _what_if(report: _Report) -> tuple[DeviceWhatIf, ...]:
    """Other allocator settings for the page, where that takes a moment and not minutes."""
    run, device_examinations = report.examination.run, report.examination.devices
    if sum(device.events for device in run.devices) > _WHAT_IF_EVENTS:
        return ()
    return tuple(
        row
        for device in device_examinations
        for window in device.windows[-1:]
        if (window.trace.events.action == Action.ALLOC).any()
        for row in replay(_replay_of(device.exact_window(window.number)), search=True)
    )
