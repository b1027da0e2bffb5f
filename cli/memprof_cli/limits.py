"""``--fail-above``: whether every peak of a run stays within a budget, for CI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import click

from memprof.errors import MemprofError
from memprof.ranks.report import JobReport
from memprof.report.summary import Summary
from memprof.units import format_bytes, parse_bytes

__all__ = ["EXIT_ABOVE", "fail_above", "job_peaks", "peaks"]

EXIT_ABOVE = 3

Peak = tuple[str, int]
"""Where it was, in words, and its bytes; -1 where none was measured."""


def peaks(summaries: Sequence[Summary]) -> Iterator[Peak]:
    """The peaks of allocated bytes of single files; a final state has none."""
    for summary in summaries:
        known = [] if summary.final_state else summary.devices
        measured = [d for d in known if d.peak_allocated_bytes > 0]
        for device in measured:
            yield f"on {device.device} in {summary.source}", device.peak_allocated_bytes
        if not measured:
            yield f"in {summary.source}", -1


def job_peaks(job: JobReport) -> Iterator[Peak]:
    """The peak of each rank, also of those that are missing or could not be read."""
    for rank in job.ranks:
        yield f"in {rank.file}", rank.peak_allocated_bytes or -1
    yield from ((f"in {one.file}", -1) for one in job.left_out)
    if job.missing_count:
        yield f"of {job.missing_count} of the {job.world_size} ranks: no file of theirs", -1


def fail_above(limit: str, found: Iterable[Peak]) -> None:
    """End with `EXIT_ABOVE` where a peak is above ``limit``, a size such as ``24GiB``.

    Raises:
        MemprofError: none is, but some peak was not measured; or ``limit`` is no size.
    """
    most, told = parse_bytes(limit), list(found)
    above = [(where, nbytes) for where, nbytes in told if nbytes > most]
    for where, nbytes in above:
        over = format_bytes(nbytes - most)
        click.echo(
            f"above {limit}: peak allocated {format_bytes(nbytes)} {where}, {over} more", err=True
        )
    if above:
        raise click.exceptions.Exit(EXIT_ABOVE)
    unknown = next((where for where, nbytes in told if nbytes < 0), None)
    if unknown is not None:
        raise MemprofError(
            f"no peak was measured {unknown}", "what cannot be judged does not pass --fail-above"
        )
