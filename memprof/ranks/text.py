"""A job's report in words, the same in the terminal and on the page."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from memprof.ranks.figures import Deviation, Spread
from memprof.ranks.merge_findings import SharedFinding
from memprof.ranks.report import (
    JobReport,
    format_measure,
    format_ranks,
    format_share,
    format_stretch,
)
from memprof.units import format_bytes, format_count

__all__ = ["heading", "how_far", "roll_call", "spread", "sums", "who", "who_was_judged"]

_MOST_NAMED = 4
_LONGEST = 100


def heading(job: JobReport) -> str:
    """What ran, and when."""
    if not job.world_size:
        return f"{format_count(len(job.ranks))} recordings, not of one job"
    command = " ".join(job.command)
    short = command if len(command) <= _LONGEST else f"{command[:_LONGEST]}…"
    return f"{short}, started {_moment(job.started_us)}"


def _moment(time_us: int) -> str:
    try:
        moment = dt.datetime.fromtimestamp(time_us / 1e6, dt.timezone.utc)
    except (ValueError, OverflowError, OSError):  # a hostile file's year 60,000
        return "at an unknown time"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def roll_call(job: JobReport) -> Iterator[str]:
    """How many ranks there are and how they ended; what is not there is named."""
    of = f" of {format_count(job.world_size)}" if job.world_size else ""
    yield f"{format_count(len(job.ranks))}{of} read{_missing(job)}"
    failed = [rank for rank in job.ranks if rank.ended == "failed"]
    if failed:
        first = min(failed, key=lambda rank: rank.ended_us)
        which = f"{format_ranks(failed)}; {first.name} first" if failed[1:] else first.name
        yield f"{format_count(len(failed))} failed: {which}: {first.status}"
    cut = [rank for rank in job.ranks if rank.ended == "cut off"]
    if cut:
        which = "all" if len(cut) == len(job.ranks) else format_ranks(cut)
        yield f"{format_count(len(cut))} cut off (killed, or still running): {which}"
    for one in job.left_out[:_MOST_NAMED]:
        # Errors of other libraries say which file they are about, or do not: nothing else tells.
        filename = one.file if one.file not in one.why else ""
        yield f"left out: {': '.join(filter(None, (filename, one.why)))}"
    if len(job.left_out) > _MOST_NAMED:
        yield f"left out: {format_count(len(job.left_out) - _MOST_NAMED)} more files (see --json)"


def _missing(job: JobReport) -> str:
    if not job.missing:
        return ""
    gaps_shown = job.missing[:_MOST_NAMED]
    gap_texts = ", ".join(format_stretch(*stretch) for stretch in gaps_shown)
    rest = job.missing_count - sum(last - first + 1 for first, last in gaps_shown)
    more = f" and {format_count(rest)} more" if rest else ""
    return f"; {format_count(job.missing_count)} missing: {gap_texts}{more}"


def spread(job: JobReport, one: Spread) -> tuple[str, str, str]:
    """The least, the median and the highest of a measure; where all are equal, that alone."""
    middle = format_measure(one.median, one.unit)
    of = "" if one.ranks == len(job.ranks) else f"; of {format_count(one.ranks)}"
    if one.least == one.highest:
        return "", f"{middle} on each{of}", ""
    least = f"{format_measure(one.least, one.unit)} ({one.least_at})"
    return least, middle, f"{format_measure(one.highest, one.unit)} ({one.highest_at}){of}"


def who(job: JobReport, one: Deviation) -> str:
    """``rank 17`` or ``3 ranks: 17, 33, 34``."""
    ones = [job.ranks[row] for row in one.rows]
    ranks_text = format_ranks(ones)
    if ones[0].rank < 0:
        return ranks_text
    return (
        f"rank {ranks_text}" if len(ones) == 1 else f"{format_count(len(ones))} ranks: {ranks_text}"
    )


def how_far(job: JobReport, one: Deviation) -> str:
    """``up to 62.1 GiB (rank 17), the median 40.1 GiB``."""
    value = format_measure(one.value, one.unit)
    median = f"the median {format_measure(one.median, one.unit)}"
    if len(one.rows) == 1:
        return f"{value}, {median}"
    return f"{'up' if one.higher else 'down'} to {value} ({job.ranks[one.rows[0]].name}), {median}"


def who_was_judged(job: JobReport) -> str:
    """On whom findings were looked for: one that is found on all of three may be on all."""
    outcome = "Found" if job.findings else "Nothing found"
    if len(job.judged) == len(job.ranks):
        return f"{outcome} on the {format_count(len(job.ranks))} ranks, all judged"
    ranks_text = ", ".join(
        f"{one.rank} ({one.chosen})" if one.chosen else one.rank for one in job.judged
    )
    of = f"{format_count(len(job.judged))} of {format_count(len(job.ranks))}"
    return f"{outcome} on the {of} ranks judged: {ranks_text}; --all judges each"


def sums(job: JobReport, one: SharedFinding) -> str:
    """``on 3 of 3 judged, 18 MiB and 24 KiB per step in sum``."""
    on = format_share(one.ranks, len(job.judged))
    rate = f"{format_bytes(round(one.bytes_per_step))} per step" if one.bytes_per_step else ""
    size = format_bytes(one.bytes) if one.bytes else ""
    sum_text = " and ".join(filter(None, (size, rate)))
    if not sum_text:
        return on
    return f"{on}, {sum_text} in sum" if len(one.ranks) > 1 else f"{on}, {sum_text}"
