"""Findings of several ranks as one: the same line or holder, on how many, and its bytes in sum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from memprof.chain_description import names_line
from memprof.records import Site
from memprof.rules.finding import Kind, Remedy, RuleFinding
from memprof.rules.run_rule import RunMatch
from memprof.rules.same_holder import holder_key

__all__ = ["RankFinding", "SharedFinding", "merge", "merged", "of_rank"]


@dataclass(frozen=True, slots=True)
class SharedFinding:
    """One finding of one or more ranks; words are those of the rank where it is largest."""

    kind: str
    title: str
    device: str
    site: Site
    holder: str
    """The first one's description."""
    fix: str
    """A term of `memprof.rules.fixes.FIXES`; empty without a remedy."""
    why: str
    fix_filename: str
    fix_line: int
    confidence: float
    """The highest."""
    ranks: tuple[str, ...]
    """Names of those that have it, in their order."""
    largest_at: str
    bytes: int
    """Of all of them in sum, likewise the rate."""
    bytes_per_step: float
    names_line: bool = False
    """The title names the line of ``site``."""
    minor: bool = False
    """It is a headline on none of them."""


@dataclass(frozen=True, slots=True)
class RankFinding:
    """One finding of one rank: what is said of it, and what tells it on another rank."""

    key: Hashable
    """What it has in common with itself on another rank."""
    finding: SharedFinding
    """Of this rank alone, whose name is not known here."""


def of_rank(all_findings: Sequence[RuleFinding]) -> tuple[RankFinding, ...]:
    """The findings of one rank without what makes them large; they can be pickled."""
    return tuple(RankFinding(_same(one), _alone(one)) for one in all_findings)


def merge(by_rank: Mapping[str, Sequence[RuleFinding]]) -> tuple[SharedFinding, ...]:
    """`merged` from findings as the rules yield them."""
    return merged({name: of_rank(ones) for name, ones in by_rank.items()})


def merged(by_rank: Mapping[str, Sequence[RankFinding]]) -> tuple[SharedFinding, ...]:
    """The findings of each rank, by its name, put together: what is on most ranks comes first.

    Of the same number, as in a single run: what grows first, then the largest. What is a headline
    on no rank comes last.
    """
    groups: dict[Hashable, list[tuple[str, SharedFinding]]] = defaultdict(list)
    order: dict[Hashable, int] = {}
    for name, ones in by_rank.items():
        for place, one in enumerate(ones):
            groups[one.key].append((name, one.finding))
            order[one.key] = min(order.get(one.key, place), place)
    by_growth = sorted(
        groups,
        key=lambda key: (
            _is_minor(groups[key]),
            not _grows(groups[key]),
            -_ranks(groups[key]),
            order[key],
        ),
    )
    return tuple(_shared(groups[key]) for key in by_growth)


def _same(one: RuleFinding) -> Hashable:
    """What it has in common with itself on another rank: not device numbers, sizes or counts."""
    device = one.device.partition(":")[0]
    if one.site.filename:
        return one.kind, device, one.site.filename, one.site.line, one.site.function
    return one.kind, device, holder_key(one.holders[0]) if one.holders else ()


def _grows(ones: Sequence[tuple[str, SharedFinding]]) -> bool:
    return any(one.bytes_per_step > 0 for _, one in ones)


def _is_minor(ones: Sequence[tuple[str, SharedFinding]]) -> bool:
    return all(one.minor for _, one in ones)


def _ranks(ones: Sequence[tuple[str, SharedFinding]]) -> int:
    return len({name for name, _ in ones})


def _names_line(one: RuleFinding) -> bool:
    """Whether the title of a finding names its line: some say who holds the tensors."""
    holder = one.holders[0] if one.holders else None
    grows = one.kind in (Kind.LEAK, Kind.CYCLE)
    if holder is None or not holder.is_named:
        return grows  # and is said by the line that made it
    says_holder = grows or isinstance(one.match, RunMatch)
    return says_holder and names_line(holder.links, one.site.filename, one.site.line)


def _shared(ones: Sequence[tuple[str, SharedFinding]]) -> SharedFinding:
    name, main = max(ones, key=lambda pair: (pair[1].bytes_per_step, pair[1].bytes))
    return replace(
        main,
        confidence=max(one.confidence for _, one in ones),
        ranks=tuple(dict.fromkeys(name for name, _ in ones)),
        largest_at=name,
        bytes=sum(one.bytes for _, one in ones),
        bytes_per_step=sum(one.bytes_per_step for _, one in ones),
        minor=_is_minor(ones),
    )


def _alone(one: RuleFinding) -> SharedFinding:
    remedy = one.remedies[0] if one.remedies else Remedy("", "")
    return SharedFinding(
        kind=one.kind.value,
        title=one.title,
        device=one.device,
        site=one.site,
        holder=one.holders[0].description if one.holders else "",
        fix=remedy.fix,
        why=remedy.why,
        fix_filename=remedy.filename,
        fix_line=remedy.line,
        confidence=one.confidence,
        ranks=(),
        largest_at="",
        bytes=one.bytes,
        bytes_per_step=one.bytes_per_step,
        names_line=_names_line(one),
        minor=one.minor,
    )
