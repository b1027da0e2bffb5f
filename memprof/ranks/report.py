"""One job of many ranks in one answer: a verdict, why, what to type; files are read elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low

from memprof.ranks.figures import MEASURES, Deviation, RankFigures, Spread, is_rising
from memprof.ranks.merge_findings import SharedFinding
from memprof.report.summary import Verdict
from memprof.rules.finding import Kind
from memprof.units import format_bytes, format_count, format_duration
from memprof.views.sites import short_path

__all__ = [
    "JobReport",
    "JudgedRank",
    "LeftOut",
    "format_measure",
    "format_ranks",
    "format_share",
    "format_stretch",
    "job_verdict",
    "next_command",
]

_GROWING = (Kind.LEAK, Kind.CYCLE, Kind.HOST_GROWTH, Kind.NON_TORCH)
_SURE = 0.5
"""Confidence from which waste is the verdict, as in a single run's."""
_STRETCHES = 4


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is not among the ranks."""

    file: str
    why: str


@dataclass(frozen=True, slots=True)
class JudgedRank:
    """A rank whose whole recording was looked through for findings."""

    rank: str
    file: str
    chosen: str
    """Why this one; empty where each is judged."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """What `memprof report` says of the ranks of a job, and ``--json`` carries."""

    command: tuple[str, ...]
    """What ran, without words that are one rank's own; empty: the files are of several jobs."""
    started_us: int
    world_size: int
    """0 where the files are of several jobs."""
    missing: tuple[tuple[int, int], ...]
    """Ranks of which there is no readable file, as first and last of each stretch."""
    left_out: tuple[LeftOut, ...]
    verdict: Verdict
    spreads: tuple[Spread, ...]
    deviations: tuple[Deviation, ...]
    judged: tuple[JudgedRank, ...]
    findings: tuple[SharedFinding, ...]
    ranks: tuple[RankFigures, ...]
    next: str
    """The command that looks into the rank which tells the most."""

    @property
    def missing_count(self) -> int:
        """How many ranks are missing."""
        return sum(last - first + 1 for first, last in self.missing)


def format_measure(value: float, unit: str) -> str:
    """``62.1 GiB``, ``24 KiB per step`` or ``310 ms``."""
    if unit == "us":
        return format_duration(value)
    return format_bytes(round(value)) + (" per step" if unit == "bytes per step" else "")


def format_ranks(ranks: Iterable[RankFigures | int], *, most: int = _STRETCHES) -> str:
    """``3, 7–9``, cut after a few stretches; the names of files where they have no number."""
    all_ranks = list(ranks)
    numbers = sorted({r if isinstance(r, int) else r.rank for r in all_ranks})
    if numbers and numbers[0] < 0:
        names = [r.file for r in all_ranks if isinstance(r, RankFigures)]
        return _cut(names, most, len(names))
    stretches: list[list[int]] = []
    for number in numbers:
        if stretches and number == stretches[-1][1] + 1:
            stretches[-1][1] = number
        else:
            stretches.append([number, number])
    texts = [format_stretch(first, last) for first, last in stretches[:most]]
    count = sum(last - first + 1 for first, last in stretches[:most])
    return ", ".join(texts) + _more(len(numbers) - count)


def format_stretch(first: int, last: int) -> str:
    """``7``, ``7, 8`` or ``7–9``."""
    if last - first < 2:
        return ", ".join(map(str, range(first, last + 1)))
    return f"{first}–{last}"


def format_share(ranks: Sequence[str], judged_count: int) -> str:
    """``on 3 of 6 judged``, ``on rank 1 alone of 6 judged`` or ``on all 6 judged``."""
    if len(ranks) == judged_count:
        return (
            f"on all {format_count(judged_count)} judged" if judged_count > 1 else f"on {ranks[0]}"
        )
    if len(ranks) == 1:
        return f"on {ranks[0]} alone of {format_count(judged_count)} judged"
    return f"on {format_count(len(ranks))} of {format_count(judged_count)} judged"


def _cut(names: Sequence[str], most: int, total: int) -> str:
    return ", ".join(names[:most]) + _more(total - min(most, len(names)))


def _more(count: int) -> str:
    return f" and {format_count(count)} more" if count > 0 else ""


# -- the verdict -----------------------------------------------------------------------------------


def job_verdict(
    ranks: Sequence[RankFigures],
    deviating: Sequence[Deviation],
    findings: Sequence[SharedFinding],
    judged_ranks: Sequence[JudgedRank],
) -> Verdict:
    """The worst first: memory ran out, a leak, a rank died, one fills up, one differs, waste."""
    then = f"`{next_command(ranks, deviating, findings)}`"
    out = [rank for rank in ranks if rank.ran_out]
    if out:
        return _ran_out(ranks, out, then)
    if not any(rank.peak_allocated_bytes > 0 or rank.peak_reserved_bytes > 0 for rank in ranks):
        return _no_data()
    growing = _growing(findings)
    if growing:
        return _verdict_of("leak", growing[0], ranks, judged_ranks)
    failed = [rank for rank in ranks if rank.ended == "failed"]
    if failed:
        return _failed(ranks, failed, then)
    filling = _filling(ranks)
    if filling:
        return _full(ranks, filling, then)
    if deviating:
        return _deviating(ranks, deviating, then)
    waste = [one for one in findings if one.confidence >= _SURE and not one.minor]
    if waste:
        is_hole = waste[0].kind == Kind.FRAGMENTATION.value
        return _verdict_of("fragmentation" if is_hole else "waste", waste[0], ranks, judged_ranks)
    return _quiet(ranks, judged_ranks, then)


def next_command(
    ranks: Sequence[RankFigures], deviating: Sequence[Deviation], findings: Sequence[SharedFinding]
) -> str:
    """What to type to look into the rank that tells the most."""
    out = [rank for rank in ranks if rank.ran_out]
    if out:
        return _command("oom", _first(out))
    growing = _growing(findings)
    if growing:
        return _command("leaks", next(r for r in ranks if r.name == growing[0].largest_at))
    failed = [rank for rank in ranks if rank.ended == "failed"]
    if failed:
        return _command("report", _first(failed))
    filling = _filling(ranks)
    if filling:
        return _command("leaks", filling[0])
    if deviating:
        return _command("report", ranks[deviating[0].rows[0]])
    return _command("report", max(ranks, key=lambda rank: rank.peak_allocated_bytes))


def _command(name: str, rank: RankFigures) -> str:
    return f"memprof {name} {shlex.quote(rank.file)}"


def _growing(findings: Sequence[SharedFinding]) -> list[SharedFinding]:
    return [one for one in findings if Kind(one.kind) in _GROWING]


def _first(ranks: Sequence[RankFigures]) -> RankFigures:
    """The one that ended first: the others often end because of it."""
    return min(ranks, key=lambda rank: rank.ended_us or rank.started_us)


def _ran_out(ranks: Sequence[RankFigures], out: Sequence[RankFigures], then: str) -> Verdict:
    first = _first(out)
    if len(out) == 1:
        line = f"{first.name} ran out of memory, the only one of {_count_text(ranks)}"
    else:
        which = f"{format_ranks(out)}; {first.name} first"
        line = f"{format_count(len(out))} of {_count_text(ranks)} ran out of memory: {which}"
    return Verdict("oom", line, _peak_text(first, ranks), f"{then} says why")


def _peak_text(first: RankFigures, ranks: Sequence[RankFigures]) -> str:
    if first.peak_allocated_bytes < 0:
        return "what it held is not in the file"
    of = f" of {format_bytes(first.total_bytes)}" if first.total_bytes else ""
    peak = format_bytes(first.peak_allocated_bytes)
    sentence = f"{first.name}'s peak was {peak}{of} on {first.device}, in {_steps(first)}"
    peaks = sorted(one.peak_allocated_bytes for one in ranks)
    return f"{sentence}; the median of all is {format_bytes(median_low(peaks))}"


def _steps(rank: RankFigures) -> str:
    return "1 step" if rank.steps == 1 else f"{format_count(rank.steps)} steps"


def _count_text(ranks: Sequence[RankFigures]) -> str:
    return f"{format_count(len(ranks))} {'ranks' if ranks[0].rank >= 0 else 'recordings'}"


def _no_data() -> Verdict:
    return Verdict(
        "no data",
        "no data: nothing was measured on any rank",
        "no file holds an allocation or a counter of any device",
        "record with `MEMPROF=run.json torchrun …`",
    )


def _verdict_of(
    level: str, one: SharedFinding, ranks: Sequence[RankFigures], judged_ranks: Sequence[JudgedRank]
) -> Verdict:
    sentences = []
    if one.site.filename:
        code = f": `{one.site.code[:60]}`" if one.site.code else ""
        sentences.append(f"made at {short_path(one.site.filename)}:{one.site.line}{code}")
    if level == "leak":
        sentences.append(_rising(ranks))
    fix = f"{one.fix}: {one.why}" if one.fix else "see the findings below"
    line = f"{one.title}; {format_share(one.ranks, len(judged_ranks))}"
    return Verdict(level, line, "; ".join(filter(None, sentences)) or one.title, fix)


def _rising(ranks: Sequence[RankFigures]) -> str:
    rates = sorted(r.bytes_per_step or 0.0 for r in ranks if is_rising(r))
    if not rates:
        return ""
    rate = format_bytes(round(rates[len(rates) // 2]))
    return (
        f"allocated bytes rise on {format_count(len(rates))} of {_count_text(ranks)}, "
        f"by {rate} per step"
    )


def _failed(ranks: Sequence[RankFigures], failed: Sequence[RankFigures], then: str) -> Verdict:
    first = _first(failed)
    many = (
        "" if len(failed) == 1 else f"{format_count(len(failed))} of {_count_text(ranks)} failed; "
    )
    line = f"{many}{first.name} {'first' if many else 'failed'}, after {_steps(first)}"
    return Verdict("failed", line, first.status, then)


def _filling(ranks: Sequence[RankFigures]) -> list[RankFigures]:
    """Those that may still run and whose device fills up, the first to be full before others."""
    filling = [rank for rank in ranks if rank.ended == "cut off" and rank.full_step >= 0]
    return sorted(filling, key=lambda rank: (rank.full_left_us < 0, rank.full_left_us))


def _full(ranks: Sequence[RankFigures], filling: Sequence[RankFigures], then: str) -> Verdict:
    first = filling[0]
    when = f"at about step {format_count(first.full_step)}"
    if first.full_left_us >= 0:
        when += f", in {format_duration(first.full_left_us)} from its last step"
    if len(filling) == 1:
        line = f"{first.name} runs out of memory {when}"
    else:
        count = f"{format_count(len(filling))} of {_count_text(ranks)} run out of memory"
        line = f"{count}; {first.name} first, {when}"
    rate = format_bytes(round(first.bytes_per_step or 0))
    why = f"allocated bytes rise by {rate} per step on {first.device}"
    return Verdict("leak", line, why if first.bytes_per_step else _peak_text(first, ranks), then)


def _deviating(ranks: Sequence[RankFigures], deviating: Sequence[Deviation], then: str) -> Verdict:
    first = deviating[0]
    which = format_ranks(ranks[row] for row in first.rows)
    differ = "differs" if len(first.rows) == 1 else "differ"
    count = f"{format_count(len(first.rows))} of {_count_text(ranks)}"
    line = f"{count} {differ} from the rest in {_title(first)}: {which}"
    why = (
        f"{_title(first)} is {format_measure(first.value, first.unit)} on "
        f"{ranks[first.rows[0]].name}, the median {format_measure(first.median, first.unit)}"
    )
    others = list(dict.fromkeys(_title(one) for one in deviating if one.measure != first.measure))
    if others:
        why += f"; some differ in {', '.join(others)}"
    return Verdict("outlier", line, why, then)


def _title(one: Deviation) -> str:
    return next(measure.title for measure in MEASURES if measure.name == one.measure)


def _quiet(ranks: Sequence[RankFigures], judged_ranks: Sequence[JudgedRank], then: str) -> Verdict:
    highest = max(ranks, key=lambda rank: rank.peak_allocated_bytes)
    line = f"peak {format_bytes(highest.peak_allocated_bytes)} on {highest.name}; no rank differs"
    rising = _rising(ranks)
    if rising:
        why = f"{rising}, yet no single line keeps growing on those judged"
    else:
        why = f"nothing was found on the {format_count(len(judged_ranks))} ranks judged"
    return Verdict("ok", line, why, then)
