"""Looks at what is alive at a few step ends and searches for the holders of what grows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from memprof.holding import find_holders
from memprof.holding.search import quiet
from memprof.holding.source import may_stop_growing
from memprof.records import Finding, Holder, breadth
from memprof.sources.places import PlaceOf, place_of
from memprof.survivors.graphs import GraphGrowth, longest_graph
from memprof.survivors.stalls import Stall
from memprof.survivors.suspects import Living, Suspect, residents, suspects
from memprof.trace import Label
from memprof.units import format_bytes

__all__ = ["Announcement", "LiveSource", "Survivors"]

_FIRST_LOOK = 8
"""Steps before the first look; the others are after 12, 16, 24, 32, 48, 64, 96 …"""
_MOST_HOLDERS = 3
_FRESH_BIRTHS = 2.0
"""A stack is searched again when its survivors come from so many times more steps than before."""
_ANNOUNCED_AFTER = 4
"""Looks in a row at which a stack's survivors had become more."""
_ANNOUNCED_BIRTHS = 6
_SEARCH_S, _SCAN_S = 0.5, 0.25
"""The longest that a search for holders and a scan for graphs may hold the job up in passing; a
leak that is to be announced is worth more, once."""
_SEARCH_BLOCK_S, _SCAN_BLOCK_S = 3e-7, 1e-7
"""What they take for each of the interpreter's blocks, before it was measured: 1.3 million blocks,
350,000 objects, two cores, Python 3.11, 2026-11-21."""
_ANNOUNCED_LATE = 8
"""The same where the program takes entries out of the container, or looks at how many there are."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """A finding, and what to say about it in the log if it is a new leak."""

    finding: Finding
    message: str = ""


@dataclass(frozen=True, slots=True)
class LiveSource:
    """What one device keeps alive, and how its labels are read."""

    device: str
    living: Callable[[], Iterable[Living]]
    label_of: Callable[[int], Label]
    place: PlaceOf = place_of
    """Where a tensor lies, for devices whose memory is known by addresses."""


@dataclass(slots=True)
class _Known:
    """What was found of a stack when it was looked at."""

    births: int = 0
    searched: int = 0
    """Births when its holders were searched for last."""
    first_step: int = 0
    grown: int = 0
    """Looks in a row at which it had grown, and the oldest were still there."""
    holders: tuple[Holder, ...] = ()


@dataclass(slots=True)
class Survivors:
    """Asked at every step's end; answers almost always at once with nothing.

    Looks are so rare that a run of a million steps has some forty of them, and a look that finds
    nothing costs one pass over the live storages.
    """

    sources: Callable[[], Sequence[LiveSource]]
    """The devices at this moment: some come into use late."""
    budget_s: float = 2.0
    """Seconds that one search may take; all of them together take a share of the run (`share`)."""
    share: float = 0.01
    _steps: int = 0
    _began_s: float = field(default_factory=time.monotonic)
    _spent_s: float = 0.0
    _known: dict[tuple[str, int], _Known] = field(default_factory=dict)
    _announced: set[tuple[str, ...]] = field(default_factory=set)
    _graphs: GraphGrowth = field(default_factory=GraphGrowth)
    _graph_said: bool = False
    _searching: Stall = field(default_factory=lambda: Stall(_SEARCH_S, _SEARCH_BLOCK_S))
    _scanning: Stall = field(default_factory=lambda: Stall(_SCAN_S, _SCAN_BLOCK_S))

    def step_ended(self, step: int) -> list[Announcement]:
        """What can be said after ``step``."""
        self._steps += 1
        return self.look(step) if _is_look(self._steps) and self._has_time() else []

    def window_ended(self, step: int) -> list[Announcement]:
        """The same when what was recorded of new tensors ends, until the next window."""
        return self.look(step) if self._steps >= _FIRST_LOOK and self._has_time() else []

    def look(self, step: int, *, last: bool = False) -> list[Announcement]:
        """Search for the holders of whatever has grown since the last look.

        Where that takes long it is put off until a leak is certain, or to the ``last`` look.
        """
        began_s = time.thread_time()
        in_passing = not last and not self._searching.is_short()
        with quiet():  # a block that a collection frees in between would seem to have no owner
            found = [
                one
                for source in self.sources()
                for one in self._growing(source, step, in_passing=in_passing)
            ]
        found += self._host(step, young=not last and not self._scanning.is_short())
        self._spent_s += time.thread_time() - began_s
        return found

    def last_look(self, step: int) -> list[Announcement]:
        """At the end of the recording: also who holds the largest bytes that nothing explains."""
        found = self.look(step, last=True)
        with quiet():
            return [*found, *(one for source in self.sources() for one in self._rest(source, step))]

    def _rest(self, source: LiveSource, step: int) -> list[Announcement]:
        known = {stack for device, stack in self._known if device == source.device}
        living = residents(source.living(), source.label_of)
        resting = [one for one in living if one.stack not in known]
        return [
            Announcement(_finding(source, one, step, holders, "resident"))
            for one, holders in zip(resting, self._search(source, resting), strict=True)
            if holders
        ]

    def _has_time(self) -> bool:
        elapsed_s = time.monotonic() - self._began_s
        return self._spent_s <= self.budget_s + self.share * elapsed_s

    def _growing(self, source: LiveSource, step: int, *, in_passing: bool) -> list[Announcement]:
        growing = suspects(source.living(), source.label_of, step)
        fresh = [one for one in growing if self._is_fresh(source.device, one)]
        if in_passing:
            fresh = [one for one in fresh if self._is_certain(source.device, one)]
        for one, holders in zip(fresh, self._search(source, fresh), strict=True):
            known = self._known[source.device, one.stack]
            known.searched, known.holders = one.births, holders
        said = [(one, self._news(source, one)) for one in growing]
        return [
            Announcement(self._finding(source, one, step), message)
            for one, message in said
            if message or one in fresh
        ]

    def _is_fresh(self, device: str, one: Suspect) -> bool:
        known = self._known.setdefault((device, one.stack), _Known())
        stays = not known.births or one.first_step <= known.first_step
        known.grown = known.grown + 1 if stays and one.births > known.births else 0
        known.births, known.first_step = one.births, one.first_step
        return one.births >= _FRESH_BIRTHS * known.searched

    def _is_certain(self, device: str, one: Suspect) -> bool:
        """Whether it would be announced, were its holder known: once is a long search worth it."""
        known = self._known[device, one.stack]
        return known.grown >= _ANNOUNCED_AFTER and not known.searched

    def _search(self, source: LiveSource, wanted: Sequence[Suspect]) -> list[tuple[Holder, ...]]:
        targets = list(dict.fromkeys(key for one in wanted for key in one.targets))
        if not targets:
            return [() for _ in wanted]
        with self._searching.measured():
            holders = find_holders(
                targets, limit=_MOST_HOLDERS, budget_s=self.budget_s, place=source.place
            )
        found = dict(zip(targets, holders, strict=True))
        return [_in_common([found[key] for key in one.targets]) for one in wanted]

    def _news(self, source: LiveSource, one: Suspect) -> str:
        """What to say of a stack that has grown at several looks; empty where that was said."""
        known = self._known[source.device, one.stack]
        key = _outline(known.holders[0]) if known.holders else (source.device, str(one.stack))
        needed = _ANNOUNCED_LATE if _may_stop(known.holders) else _ANNOUNCED_AFTER
        sure = known.grown >= needed and one.births >= _ANNOUNCED_BIRTHS
        if not sure or key in self._announced or _is_bounded(known.holders):
            return ""
        self._announced.add(key)
        return _message(one, self._steps, known.holders)

    def _finding(self, source: LiveSource, one: Suspect, step: int) -> Finding:
        known = self._known[source.device, one.stack]
        return _finding(source, one, step, known.holders, "growth")

    def _host(self, step: int, *, young: bool) -> list[Announcement]:
        with self._scanning.measured() if not young else nullcontext():
            longest = longest_graph(young=young)
        rate = self._graphs.add(step, longest)
        if not rate or longest.tensor is None:
            return []
        holders = find_holders([longest.tensor], limit=_MOST_HOLDERS, budget_s=self.budget_s)[0]
        finding = Finding(
            "host_growth",
            device="host",
            step=step,
            time_us=_now_us(),
            count=longest.nodes,
            holders=list(holders),
            details={"nodes_per_step": rate},
        )
        message = "" if self._graph_said else _graph_message(rate, holders)
        self._graph_said = True
        return [Announcement(finding, message)]


def _is_look(steps: int) -> bool:
    """8, 12, 16, 24, 32, 48, 64, 96 … steps: powers of two and the middles between them."""
    if steps < _FIRST_LOOK:
        return False
    odd = steps
    while odd % 2 == 0:
        odd //= 2
    return odd in (1, 3)


def _finding(
    source: LiveSource, one: Suspect, step: int, holders: Sequence[Holder], reason: str
) -> Finding:
    details: dict[str, object] = {
        "reason": reason,
        "births": one.births,
        "first_step": one.first_step,
        "last_step": one.last_step,
    }
    return Finding(
        "holders",
        device=source.device,
        step=step,
        time_us=_now_us(),
        stack=one.stack,
        label=one.label,
        bytes=one.bytes,
        count=one.count,
        holders=list(holders),
        details=details,
    )


def _in_common(answers: Sequence[tuple[Holder, ...]]) -> tuple[Holder, ...]:
    """The holders of several tensors, those of most of them first; each way of holding once."""
    count = Counter(key for answer in answers for key in {_outline(one) for one in answer})
    kept: dict[tuple[str, ...], tuple[int, int, Holder]] = {}
    for answer in answers:
        for rank, one in enumerate(answer):
            kept.setdefault(_outline(one), (-count[_outline(one)], rank, one))
    ranked = sorted(kept.values(), key=lambda entry: entry[:2])
    return tuple(one for *_, one in ranked[:_MOST_HOLDERS])


def _outline(holder: Holder) -> tuple[str, ...]:
    """A chain without the places in containers, which differ from tensor to tensor."""
    names = (f"{link.kind}:{'' if link.kind == 'item' else link.name}" for link in holder.links)
    return tuple(names) or (holder.description,)


def _is_bounded(holders: Sequence[Holder]) -> bool:
    """Whether the first holder's longest container can hold so much and no more."""
    links = [link for one in holders[:1] for link in one.links if link.length > 0]
    return bool(links) and max(links, key=breadth).limit > 0


def _may_stop(holders: Sequence[Holder]) -> bool:
    """Whether the program does more with the first holder's longest container than fill it."""
    for one in holders[:1]:
        lengths = [breadth(link) for link in one.links]
        if not one.filename or max(lengths, default=-1) <= 0:
            continue
        named = [link for link in one.links[: lengths.index(max(lengths))] if link.kind != "item"]
        return any(
            may_stop_growing(one.filename, name, link.type_name)
            for link in named[-1:]
            for name in (link.name, f".{link.name}")
        )
    return False


def _message(one: Suspect, steps: int, holders: Sequence[Holder]) -> str:
    span = one.last_step - one.first_step + 1
    per_step = one.bytes / max(
        1, min(span, max(steps, one.births))
    )  # steps between windows: unseen
    by = f", held by {holders[0].description}" if holders else ""
    return (
        f"{format_bytes(round(per_step))} a step stay alive since step {one.first_step} "
        f"({one.count} tensors so far){by}"
    )


def _graph_message(rate: float, holders: Sequence[Holder]) -> str:
    by = f" of {holders[0].description}" if holders else ""
    return f"the autograd graph{by} grows by {rate:.0f} nodes a step, on the host"


def _now_us() -> int:
    return time.time_ns() // 1000
