"""``--fail-above``: whether every peak of a run stays within a budget, for CI."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import click

from memprof.errors import MemprofError, SettingsError
from memprof.loading import load
from memprof.ranks.report import JobReport
from memprof.report.peak_gaps import PeakGap, peak_gaps
from memprof.report.summary import Summary
from memprof.runfile.remote_file import location
from memprof.units import format_bytes, parse_bytes
from memprof.views.examination import examine

__all__ = ["EXIT_ABOVE", "Limit", "fail_above", "job_peaks", "limit_of", "peaks"]

EXIT_ABOVE = 3
_RUN = re.compile(r"(?P<file>.+?)(?:\+(?P<percent>\d+(?:\.\d+)?)%)?")


@dataclass(frozen=True, slots=True)
class Limit:
    """What ``--fail-above`` was given: a size, or the highest peak of another run and more."""

    text: str
    bytes: int
    of_run: bool = False
    card: str = ""
    """The card that the other run simulated; empty for a size or a real card."""
    peak_gaps: tuple[PeakGap, ...] = ()
    """What was not seen of the other run's peak."""

    def __str__(self) -> str:
        """As it was given, with its bytes where they came from a file."""
        return f"{self.text} ({format_bytes(self.bytes)})" if self.of_run else self.text


def limit_of(text: str) -> Limit:
    """What ``24GiB``, ``base.json`` or ``base.json+2%`` stands for.

    Raises:
        SettingsError: it is neither a size nor a file.
        MemprofError: the file is no recording, or no peak was measured in it.
    """
    match = _RUN.fullmatch(text)
    assert match is not None or not text
    file = location(match["file"]) if match else Path()
    if match is None or (match["percent"] is None and not file.is_file()):
        return Limit(text, parse_bytes(text))
    if not file.is_file():
        raise SettingsError(f"{file} is not there", "record it first: --fail-above base.json+2%")
    run = load(file)
    devices = examine(run).devices
    cards = [device for device in devices if device.name != "cpu"]
    main = max(cards or devices, key=lambda device: device.peak_allocated, default=None)
    highest = main.peak_allocated if main is not None else 0
    if main is None or highest <= 0:
        raise MemprofError(f"no peak was measured in {file}", "what it holds cannot be a limit")
    more = float(match["percent"] or 0)
    simulated = run.header.dry_run
    most = int(highest * (1 + more / 100))
    card = simulated.card if simulated else ""
    return Limit(text, most, of_run=True, card=card, peak_gaps=peak_gaps(main, run))


class ComparedPeak(NamedTuple):
    """The most that was in use at once, of a device or a rank."""

    where: str
    """In words: ``on cpu in run.json``."""
    bytes: int
    """-1 where none was measured."""
    gaps: tuple[PeakGap, ...] = ()
    """What was not seen of it."""


def peaks(summaries: Sequence[Summary], *, cards_only: bool = False) -> Iterator[ComparedPeak]:
    """The peaks of allocated bytes of single files; a final state has none.

    ``cards_only`` leaves out the CPU of a run that used a card.
    """
    for summary in summaries:
        judged_devices = [] if summary.final_state else summary.devices
        devices = [d for d in judged_devices if d.peak_allocated_bytes > 0]
        cards = [d for d in devices if d.device != "cpu"]
        devices = cards if cards_only and cards else devices
        for device in devices:
            where = f"on {device.device} in {summary.source}"
            yield ComparedPeak(where, device.peak_allocated_bytes, device.peak_gaps)
        if not devices:
            yield ComparedPeak(f"in {summary.source}", -1)


def job_peaks(job: JobReport) -> Iterator[ComparedPeak]:
    """The peak of each rank, also of those that are missing or could not be read."""
    for rank in job.ranks:
        yield ComparedPeak(f"in {rank.file}", rank.peak_allocated_bytes or -1)
    yield from (ComparedPeak(f"in {one.file}", -1) for one in job.left_out)
    if job.missing_count:
        yield ComparedPeak(
            f"of {job.missing_count} of the {job.world_size} ranks: no file of theirs", -1
        )


def fail_above(limit: Limit, peak_list: Iterable[ComparedPeak]) -> None:
    """End with `EXIT_ABOVE` where a peak is above ``limit``.

    Raises:
        MemprofError: none is, but some peak was not measured, or not all of it was seen.
    """
    most, all_peaks = limit.bytes, list(peak_list)
    above = [peak for peak in all_peaks if peak.bytes > most]
    for peak in above:
        over = format_bytes(peak.bytes - most)
        click.echo(
            f"above {limit}: peak allocated {format_bytes(peak.bytes)} {peak.where}, {over} more",
            err=True,
        )
    if above:
        raise click.exceptions.Exit(EXIT_ABOVE)
    unknown = next((peak.where for peak in all_peaks if peak.bytes < 0), None)
    if unknown is not None:
        raise MemprofError(
            f"no peak was measured {unknown}", "what cannot be judged does not pass --fail-above"
        )
    for peak in all_peaks:
        _check_seen(peak, limit)


def _check_seen(peak: ComparedPeak, limit: Limit) -> None:
    """Raise where bytes were not seen, unless the run to compare with lacks just the same."""
    if not peak.gaps:
        return
    if limit.peak_gaps == peak.gaps == (PeakGap.OPERATORS,):
        return
    unseen = ", ".join(gap.value for gap in peak.gaps)
    raise MemprofError(
        f"the peak {peak.where} may be above {limit}; not seen: {unseen}",
        "run `memprof native` once and record again: what was not seen does not pass --fail-above",
    )
