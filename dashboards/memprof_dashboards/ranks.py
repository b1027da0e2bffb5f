"""The page about the ranks of a job, light with a thousand of them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from memprof.ranks.figures import MEASURES, Spread
from memprof.ranks.merge_findings import SharedFinding
from memprof.ranks.report import JobReport
from memprof.ranks.text import heading, how_far, roll_call, spread, sums, who, who_was_judged
from memprof.views.sites import short_path
from memprof_dashboards import assets
from memprof_dashboards.shell import save_page, shell
from memprof_dashboards.text import coded, escaped, visible

__all__ = ["render_job", "write_job"]

_LEVELS = {
    "ok": "No rank differs",
    "no data": "No data",
    "leak": "Leak",
    "failed": "A rank failed",
    "outlier": "Outliers",
    "waste": "Waste",
    "fragmentation": "Fragmentation",
    "oom": "Out of memory",
}
_TITLES = {measure.name: measure.title for measure in MEASURES}
_TILES = ("peak_allocated", "unused", "outside", "growth", "step_time")


class MeasureData(msgspec.Struct):
    """One measure of every rank; null where it was not measured."""

    name: str
    title: str
    unit: str
    values: list[float | None]
    median: float
    outliers: list[int]


class JobData(msgspec.Struct):
    """What the script draws; lists have one element a rank."""

    numbered: bool
    """Ranks have numbers; else they are told by the files' names."""
    rank: list[int]
    name: list[str]
    file: list[str]
    ended: list[str]
    ran_out: list[bool]
    steps: list[int]
    device: list[str]
    total: list[int]
    allocated: list[int]
    unused: list[int]
    outside: list[int]
    measures: list[MeasureData]


def write_job(job: JobReport, path: str | Path) -> Path:
    """`render_job` into ``path``; returns the path.

    Raises:
        MemprofError: the file cannot be written.
    """
    return save_page(render_job(job), path)


def render_job(job: JobReport) -> str:
    """The whole page as text.

    Raises:
        MissingError: plotly is not installed whole.
    """
    words = _verdict(job) + _tiles(job) + _roll_call(job) + _deviations(job) + _findings(job)
    data = msgspec.json.encode(_data(job))
    return shell(f"memprof · {heading(job)}", words, _FIGURES, data, assets.JOB_SCRIPTS)


def _data(job: JobReport) -> JobData:
    ranks = job.ranks
    far: dict[str, list[int]] = {}
    for one in job.deviations:
        far.setdefault(one.measure, []).extend(one.rows)
    medians = {one.measure: one.median for one in job.spreads}
    return JobData(
        numbered=all(rank.rank >= 0 for rank in ranks),
        rank=[rank.rank for rank in ranks],
        name=[visible(rank.name, 80) for rank in ranks],
        file=[visible(short_path(rank.file, 1), 80) for rank in ranks],
        ended=[visible(rank.status or rank.ended, 160) for rank in ranks],
        ran_out=[rank.ran_out for rank in ranks],
        steps=[rank.steps for rank in ranks],
        device=[visible(rank.device, 40) for rank in ranks],
        total=[rank.total_bytes for rank in ranks],
        allocated=[rank.peak_allocated_bytes for rank in ranks],
        unused=[rank.unused_bytes for rank in ranks],
        outside=[rank.outside_bytes for rank in ranks],
        measures=[
            MeasureData(
                m.name, m.title, m.unit, m.values(ranks), medians[m.name], far.get(m.name, [])
            )
            for m in MEASURES
            if m.name in medians
        ],
    )


# -- HTML ------------------------------------------------------------------------------------------


def _verdict(job: JobReport) -> str:
    verdict_record = job.verdict
    kind = {"failed": "oom", "outlier": "waste"}.get(
        verdict_record.level, verdict_record.level
    ).replace(" ", "-")
    return (
        f'<section class="verdict level-{kind}" aria-label="Verdict">'
        f'<p class="level">{_LEVELS[verdict_record.level]}</p><h1>{coded(verdict_record.line)}</h1>'
        f"<dl><div><dt>Why</dt><dd>{coded(verdict_record.why)}</dd></div>"
        f"<div><dt>Next</dt><dd>{coded(verdict_record.next)}</dd></div></dl></section>"
    )


def _tiles(job: JobReport) -> str:
    tiles = [_tile(job, one) for one in job.spreads if one.measure in _TILES]
    return f'<div class="tiles many">{"".join(tiles)}</div>'


def _tile(job: JobReport, one: Spread) -> str:
    least, middle, highest = spread(job, one)
    ends = f'<p class="detail">{escaped(least, 80)} to {escaped(highest, 80)}</p>' if least else ""
    return (
        f'<div class="tile"><h3>{_TITLES[one.measure].capitalize()}, median</h3>'
        f'<p class="value">{escaped(middle)}</p>{ends}</div>'
    )


def _roll_call(job: JobReport) -> str:
    items = "".join(f"<li>{escaped(text)}</li>" for text in roll_call(job))
    return (
        f'<section class="unseen"><h2>Ranks</h2><ul><li><code>{escaped(heading(job))}</code></li>'
        f"{items}</ul></section>"
    )


def _deviations(job: JobReport) -> str:
    if not job.deviations:
        return ""
    rows = "".join(
        f"<tr><td>{_TITLES[one.measure]}</td><td>{escaped(who(job, one))}</td>"
        f"<td>{escaped(how_far(job, one))}</td></tr>"
        for one in job.deviations
    )
    return _table(
        "Differ from the rest",
        "more than 3.5 scaled median absolute deviations from the median",
        ("In", "Who", "How far"),
        rows,
    )


def _findings(job: JobReport) -> str:
    rows = "".join(_finding(job, one) for one in job.findings)
    if not rows:
        return f'<section class="unseen"><p>{escaped(who_was_judged(job), 800)}</p></section>'
    return _table(
        "Findings", escaped(who_was_judged(job), 800), ("What", "Where", "On", "Fix"), rows
    )


def _finding(job: JobReport, one: SharedFinding) -> str:
    where = f"{short_path(one.site.filename)}:{one.site.line}" if one.site.filename else ""
    code = f"<br><code>{escaped(one.site.code, 120)}</code>" if one.site.code else ""
    fix = f"<code>{escaped(one.fix)}</code> {coded(one.why)}" if one.fix else ""
    return (
        f"<tr><td><b>{escaped(one.kind.replace('_', ' '))}</b> {coded(one.title)}</td>"
        f"<td>{escaped(where)}{code}</td><td>{escaped(sums(job, one))}</td><td>{fix}</td></tr>"
    )


def _table(title: str, lead: str, columns: tuple[str, ...], rows: str) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    return (
        f'<section class="figure told"><header><h2>{title}</h2></header><p class="lead">{lead}</p>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"
    )


_FIGURES = (
    (
        "footprint",
        "Rank by rank",
        "Peak of tensors, what torch reserved beyond it, and what the process held outside torch.",
    ),
    ("measure", "One measure", "A point is a rank, the line the median."),
)
