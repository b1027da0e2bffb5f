"""Looks at what is alive at a few step ends and searches for the holders of what grows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from memprof.records import Finding, Holder
from memprof.reference_chain import LinkKind, is_bounded, largest_container, way
from memprof.referrers.bounded_search import Quarry, Searches
from memprof.referrers.graph_growth import WALK_S, GraphGrowth, longest_graph
from memprof.referrers.growth_lines import Growth, GrowthLines
from memprof.referrers.pause_estimate import PauseEstimate
from memprof.referrers.search_candidates import (
    Living,
    Suspect,
    remade,
    residents,
    stackless,
    suspects,
)
from memprof.referrers.search_from_roots import quiet
from memprof.referrers.search_from_tensors import FOR_LINES_S
from memprof.source_code.find_line import may_stop_growing
from memprof.sources.tensor_addresses import PlaceOf, place_of
from memprof.trace import Label

__all__ = ["Announcement", "LiveSource", "Survivors"]

_FIRST_LOOK = 8
"""Steps before the first look; the others are after 12, 16, 24, 32, 48, 64, 96 …, …"""
_RISEN = 1.5
"""… or as many steps after the last look, where so many times its bytes are allocated: the loop
that fills them may have begun after hundreds of steps of another."""
_LEAST_ALLOCATED = 16 << 20
"""From so many bytes on."""
_FRESH_BIRTHS = 2.0
"""A stack is searched again when its survivors come from so many times more steps than before."""
LEAST_CLIMBED = 4 << 20
"""Bytes of a stack's survivors, before they are searched for pass by pass: such a search uses up
what could record a hundred steps. At the end of a window it is done whatever they are."""
LEAST_SEARCHED = 1 << 20
"""The same before they are searched for at once, where that takes as long as some steps. Numbers
that are listed for a report, or a data set as it is made, would use up what records training."""
_IN_VAIN = 2
"""Times as long until the next search where one found no holder: it takes the longest."""
_ANNOUNCED_AFTER = 4
"""Looks in a row at which a stack's survivors had become more."""
_ANNOUNCED_BIRTHS = 6
_LARGER_AFTER = 3
"""Looks in a row, or steps after one, at which what is made anew was larger than before."""
_MUCH_LARGER = 2
"""Times the bytes that it had when it was searched for, before it is searched for again."""
SCAN_S = 0.1
"""The longest that a scan for graphs may hold the job up in passing: 0.13 s at each look used up
what a server's searches may take, of 390,000 objects in two threads."""
_SCAN_BLOCK_S = 1.5e-8
"""What it takes for each of the interpreter's blocks, before it was measured: 10 million blocks, of
4.2 million objects, Python 3.11, 2026-11-22."""
GRAPH_S = 0.3
"""The longest that a search for the tensor may take that a growing graph hangs on."""
LAST_S = 0.5
"""The longest that the last look may take, at which nothing can be left for later; …"""
AT_EXIT_S = 1.0
"""… the same where the program is over, of which only the end comes later so …"""
_AFTER_SEARCH = 0.1
"""… and the share of it that is left for what follows its search: to let go of the list of all
objects, and the scan for graphs."""
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
    living: Callable[[], Living]
    label_of: Callable[[int], Label]
    place: PlaceOf = place_of
    """Where a tensor lies, for devices whose memory is known by addresses."""


@dataclass(slots=True)
class _StackSearch:
    """What was found of a stack when it was looked at."""

    births: int = 0
    searched: int = 0
    """Births when its holders were searched for last."""
    first_step: int = 0
    grown: int = 0
    """Looks in a row at which it had grown, and the oldest were still there."""
    holders: tuple[Holder, ...] = ()


@dataclass(slots=True)
class _Remade:
    """What was known at the last look of tensors that are made anew again and again."""

    bytes: int
    grown: int = 0
    """Looks in a row at which they had become larger."""
    searched: int = 0
    """Bytes when their holders were searched for last."""


@dataclass(slots=True)
class Survivors:
    """Asked at every step's end; answers almost always at once with nothing.

    Looks are so rare that a run of a million steps has some forty of them, and a look that finds
    nothing costs one pass over the live storages.
    """

    sources: Callable[[], Sequence[LiveSource]]
    """The devices at this moment: some come into use late."""
    note: Callable[[str], None] = lambda _: None
    """Told what was not searched for."""
    budget_s: float = 2.0
    """Seconds that all looks may take in any case, beyond that a share of the run (`share`)."""
    share: float = 0.01
    _steps: int = 0
    _began_s: float = field(default_factory=time.monotonic)
    _spent_s: float = 0.0
    _growths: dict[tuple[str, int], _StackSearch] = field(default_factory=dict)
    _remade: dict[tuple[str, int], _Remade] = field(default_factory=dict)
    _looked_step: int = -1
    """The step of the last look, …"""
    _steps_at_look: int = 0
    """… the steps until then, …"""
    _allocated_at_look: int = _LEAST_ALLOCATED
    """… and the bytes that were allocated; `_LEAST_ALLOCATED` for fewer."""
    _followed: dict[tuple[str, int], int] = field(default_factory=dict)
    """Bytes of what was made anew when the last step ended, while it grew since the last look."""
    _followed_steps: int = 0
    _announcements: set[tuple[Hashable, ...]] = field(default_factory=set)
    _news: list[Growth] = field(default_factory=list)
    """What one look found out, for the log."""
    _lines: GrowthLines = field(default_factory=GrowthLines)
    _graphs: GraphGrowth = field(default_factory=GraphGrowth)
    _has_asked_for_stackless: bool = False
    _graph_said: bool = False
    _graph_holders: tuple[Holder, ...] = ()
    _searches: Searches = field(init=False)
    _scanning: PauseEstimate = field(default_factory=lambda: PauseEstimate(SCAN_S, _SCAN_BLOCK_S))

    def __post_init__(self) -> None:
        self._searches = Searches(self.note)

    def step_ended(self, step: int, allocated: int = 0) -> list[Announcement]:
        """What can be said after ``step``, with so many bytes ``allocated`` on all devices."""
        self._steps += 1
        announcements = self._gone_on(step) if self.is_searching else []
        if self.has_time():
            if _is_look(self._steps) or self._has_risen(allocated):
                self._steps_at_look = self._steps
                self._allocated_at_look = max(_LEAST_ALLOCATED, allocated)
                announcements += self.look(step)
            elif self._followed:
                announcements += self._follow(step)
        return announcements

    def _has_risen(self, allocated: int) -> bool:
        is_long_ago = self._steps - self._steps_at_look >= _FIRST_LOOK
        return is_long_ago and allocated >= _RISEN * self._allocated_at_look

    @property
    def is_searching(self) -> bool:
        """Whether a search goes on at the next step's end."""
        return self._searches.is_under_way

    def step_ended_between(self, step: int) -> list[Announcement]:
        """What a search says that a window began and that is not over yet."""
        return self._gone_on(step) if self.is_searching else []

    def window_ended(self, step: int) -> list[Announcement]:
        """The same when what was recorded of new tensors ends, until the next window.

        It may be the last time that what the program holds has a name: whatever grows is searched
        for, even where that takes many steps' ends.
        """
        if self._steps < _FIRST_LOOK:
            return []
        announcements = self.look(step, all_that_grow=True) if self.has_time() else []
        if self.has_time() or not self._has_asked_for_stackless:
            announcements += self._of_stackless(step)
        return announcements

    def _of_stackless(self, step: int) -> list[Announcement]:
        """Who holds most of what was made between windows: at the end names may be gone.

        Once whatever searches have taken: a loop that makes the data may have used up their time.
        """
        quarries = [
            _quarry(source, one) for source in self.sources() for one in stackless(source.living())
        ]
        if not quarries:
            return []
        self._has_asked_for_stackless = True
        began_s = time.thread_time()
        with quiet():
            answers = self._searches.at_once(quarries)
        self._spent_s += time.thread_time() - began_s
        return [
            Announcement(_finding(one.device, one.suspect, step, holders, "resident"))
            for one, holders in answers
            if holders
        ]

    def look(self, step: int, *, all_that_grow: bool = False) -> list[Announcement]:
        """Search for the holders of whatever has grown since the last look.

        Where that takes long it is done at the next step ends, bit by bit, and only for a leak that
        is certain and not small, or ``all_that_grow``.
        """
        began_s = time.thread_time()
        is_busy = self._searches.is_under_way
        with quiet():  # a block that a collection frees in between would seem to have no owner
            growing = self._growing(step)
            fresh = [
                (source, one)
                for source, one, is_fresh in growing
                if is_fresh or (all_that_grow and not self._holders(source, one))
            ]
            if not all_that_grow and self._searches.is_noticeable():
                fresh = [pair for pair in fresh if pair[1].bytes >= LEAST_SEARCHED]
            if not (all_that_grow or self._searches.is_cheap()):
                fresh = [
                    (source, one)
                    for source, one in fresh
                    if one.bytes >= LEAST_CLIMBED and self._is_certain(source, one)
                ]
            larger = self._larger(step, least=1 if all_that_grow else _LARGER_AFTER)
            self._followed = {key: one.bytes for key, one in self._remade.items()}
            self._followed_steps = 0
            if (fresh or larger) and not is_busy:
                self._searches.begin([_quarry(*pair) for pair in (*fresh, *larger)])
            answers = self._searches.take()
            searched_keys = self._note_answers(answers)
            announcements = _said_of_remade(answers, step)
            announcements += [
                one
                for source, suspect, _ in growing
                if (one := self._said_of(source.device, suspect, step, searched_keys)) is not None
            ]
        announcements = self._with_lines(announcements)
        announcements += self._host(step)
        self._spent_s += time.thread_time() - began_s
        return announcements

    def last_look(self, step: int, *, is_over: bool = False) -> list[Announcement]:
        """At the end of the recording: also who holds the largest bytes that nothing explains.

        All that was put off is searched for now, as far as it can be in half a second; in a second
        where the program ``is_over``.
        """
        longest_s = AT_EXIT_S if is_over else LAST_S
        ends_s = time.thread_time() + longest_s
        with quiet():
            growing = self._growing(step)
            is_cheap = self._searches.is_cheap()  # else what is known of them was told
            fresh = [
                (source, one)
                for source, one, is_fresh in growing
                if not self._holders(source, one) or (is_fresh and is_cheap)
            ]
            growing_keys = {(source.device, one.stack) for source, one, _ in growing} | set(
                self._growths
            )
            resting = [
                (source, one)
                for source in self.sources()
                for one in residents(source.living(), source.label_of)
                if (source.device, one.stack) not in growing_keys
            ]
            quarries = [_quarry(*pair) for pair in (*fresh, *resting)]
            left_s = ends_s - time.thread_time() - _AFTER_SEARCH * longest_s
            self._searches.begin(quarries, max(0.0, left_s))
            answers = self._searches.take()
        holders = {(one.device, one.suspect.stack): chains for one, chains in answers}
        searched_keys = self._note_answers(answers)
        announcements = [
            one
            for source, suspect, _ in growing
            if (one := self._said_of(source.device, suspect, step, searched_keys)) is not None
        ]
        announcements = self._with_lines(announcements)
        announcements += self._host(step, ends_s - time.thread_time())
        announcements += [
            Announcement(_finding(source.device, suspect, step, chains, "resident"))
            for source, suspect in resting
            if (chains := holders.get((source.device, suspect.stack), ()))
        ]
        return announcements

    def _gone_on(self, step: int) -> list[Announcement]:
        """A search that was interrupted, at the next step's end."""
        began_s = time.thread_time()
        with quiet():
            self._searches.proceed()
            answers = self._searches.take()
        searched_keys = self._note_answers(answers)
        suspects_of = [(one.device, one.suspect) for one, _ in answers]
        announcements = [
            self._said_of(device, one, step, searched_keys) for device, one in suspects_of
        ]
        self._spent_s += time.thread_time() - began_s
        return self._with_lines([one for one in announcements if one is not None])

    def has_time(self) -> bool:
        """Whether searches have taken less than they may; where time is no limit, always."""
        elapsed_s = time.monotonic() - self._began_s
        return self._spent_s <= self.budget_s + self.share * elapsed_s

    def _growing(self, step: int) -> list[tuple[LiveSource, Suspect, bool]]:
        """What grows on every device, and whether it was not searched for yet as it is now."""
        return [
            (source, one, self._is_fresh(source.device, one))
            for source in self.sources()
            for one in suspects(source.living(), source.label_of, step)
        ]

    def _larger(self, step: int, least: int) -> list[tuple[LiveSource, Suspect]]:
        """What is made anew and was larger at ``least`` looks in a row, where there is time for it.

        None of it lives for long, so a search that takes several steps would find it gone.
        """
        since, self._looked_step = self._looked_step, step
        found = [
            (source, one)
            for source in self.sources()
            for one in remade(source.living(), source.label_of, since)
        ]
        remaining: dict[tuple[str, int], _Remade] = {}
        larger = []
        for source, one in found:
            key = source.device, one.stack
            before = self._remade.get(key, _Remade(one.bytes))
            grown = before.grown + 1 if one.bytes > before.bytes else 0
            remaining[key] = _Remade(one.bytes, grown, before.searched)
            if grown >= least:
                larger.append((source, one))
        self._remade = remaining
        return [
            (source, one) for source, one in larger if self._is_due((source.device, one.stack), one)
        ]

    def _follow(self, step: int) -> list[Announcement]:
        """Search for what each step since the last look made anew, larger than the one before.

        A loop may lie between two looks that are far apart.
        """
        began_s = time.thread_time()
        with quiet():
            remade_now = {
                (source.device, one.stack): (source, one)
                for source in self.sources()
                for one in remade(source.living(), source.label_of, step)
            }
            self._followed = {
                key: remade_now[key][1].bytes
                for key, before in self._followed.items()
                if key in remade_now and remade_now[key][1].bytes > before
            }
            self._followed_steps += 1
            answers: list[tuple[Quarry, tuple[Holder, ...]]] = []
            if self._followed_steps >= _LARGER_AFTER:
                due = [key for key in self._followed if self._is_due(key, remade_now[key][1])]
                if due:
                    self._searches.begin([_quarry(*remade_now[key]) for key in due])
                    answers = self._searches.take()
                self._followed = {}
        self._spent_s += time.thread_time() - began_s
        return _said_of_remade(answers, step)

    def _is_due(self, key: tuple[str, int], one: Suspect) -> bool:
        """Whether what is made anew is searched for now: it is much larger than the last time."""
        known = self._remade.setdefault(key, _Remade(one.bytes))
        is_due = one.bytes >= _MUCH_LARGER * known.searched and key not in self._growths
        if not is_due or not self._searches.is_at_once():
            return False
        known.searched = one.bytes
        return True

    def _note_answers(
        self, answers: Iterable[tuple[Quarry, tuple[Holder, ...]]]
    ) -> set[tuple[str, int]]:
        """Keep what was found; whose it is."""
        searched = set()
        for quarry, holders in answers:
            key = quarry.device, quarry.suspect.stack
            growth = self._growths.get(key)
            if growth is not None:  # it grows
                asked_in_vain = 1 if holders else _IN_VAIN
                growth.searched = asked_in_vain * quarry.suspect.births
                growth.holders = holders or growth.holders
                searched.add(key)
        return searched

    def _said_of(
        self, device: str, one: Suspect, step: int, searched_keys: Iterable[tuple[str, int]]
    ) -> Announcement | None:
        """What is new of a stack: its holders, or that it surely grows; None where nothing is."""
        if self._searches.is_pending(device, one.stack):
            return None
        is_new = self._is_news(device, one)
        if not is_new and (device, one.stack) not in searched_keys:
            return None
        finding = _finding(device, one, step, self._growths[device, one.stack].holders, "growth")
        if is_new:
            self._news.append(Growth(finding, _per_step(one, self._steps)))
        return Announcement(finding)

    def _with_lines(self, announcements: Iterable[Announcement]) -> list[Announcement]:
        """The same with what the log says of those that are new."""
        lines = {id(finding): line for finding, line in self._lines.of(self._news)}
        for one in self._news:
            if not self._lines.covers(one):  # at another look it may be much
                key = _key(one.finding.device, one.finding.stack, one.holders)
                self._announcements.discard(key)
        self._news = []
        return [
            replace(one, message=lines.get(id(one.finding), one.message)) for one in announcements
        ]

    def _is_fresh(self, device: str, one: Suspect) -> bool:
        growth = self._growths.setdefault((device, one.stack), _StackSearch())
        stays = not growth.births or one.first_step <= growth.first_step
        growth.grown = growth.grown + 1 if stays and one.births > growth.births else 0
        growth.births, growth.first_step = one.births, one.first_step
        return one.births >= _FRESH_BIRTHS * growth.searched

    def _holders(self, source: LiveSource, one: Suspect) -> tuple[Holder, ...]:
        return self._growths[source.device, one.stack].holders

    def _is_certain(self, source: LiveSource, one: Suspect) -> bool:
        """Whether it would be announced, were its holder known: once is a long search worth it."""
        growth = self._growths[source.device, one.stack]
        return growth.grown >= _ANNOUNCED_AFTER and not growth.searched

    def _is_news(self, device: str, one: Suspect) -> bool:
        """Whether a stack has grown at several looks, and that was not yet said."""
        growth = self._growths[device, one.stack]
        key = _key(device, one.stack, growth.holders)
        needed = _ANNOUNCED_LATE if _may_stop(growth.holders) else _ANNOUNCED_AFTER
        sure = growth.grown >= needed and one.births >= _ANNOUNCED_BIRTHS
        fills_up = any(is_bounded(one.links) for one in growth.holders[:1])
        if not sure or fills_up or key in self._announcements:
            return False
        self._announcements.add(key)
        return True

    def _host(self, step: int, left_s: float = math.inf) -> list[Announcement]:
        """What is to be said of graphs that grow; found in ``left_s`` seconds."""
        ends_s = time.thread_time() + left_s
        young = not self._scanning.is_short(min(SCAN_S, left_s))
        with self._scanning.measured() if not young else nullcontext():
            budget_s = max(0.0, min(WALK_S, left_s))
            longest = longest_graph(budget_s, young=young, chain=self._graphs.chain)
        rate = self._graphs.add(step, longest)
        if not rate or longest.tensor is None:
            return []
        if not self._graph_holders:
            with quiet():
                limit_s = min(GRAPH_S, ends_s - time.thread_time() - FOR_LINES_S)
                self._graph_holders = self._searches.holders_of(longest.tensor, limit_s)
        holders = self._graph_holders
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


def _said_of_remade(
    answers: Iterable[tuple[Quarry, tuple[Holder, ...]]], step: int
) -> list[Announcement]:
    """Who holds what is made anew; none where it has no holder that has a name."""
    return [
        Announcement(_finding(one.device, one.suspect, step, holders, "resident"))
        for one, holders in answers
        if not one.suspect.births and holders and holders[0].is_named
    ]


def _quarry(source: LiveSource, one: Suspect) -> Quarry:
    return Quarry(source.device, one, source.place)


def _finding(
    device: str, one: Suspect, step: int, holders: Sequence[Holder], reason: str
) -> Finding:
    details: dict[str, object] = {
        "reason": reason,
        "births": one.births,
        "first_step": one.first_step,
        "last_step": one.last_step,
    }
    return Finding(
        "holders",
        device=device,
        step=step,
        time_us=_now_us(),
        stack=one.stack,
        label=one.label,
        bytes=one.bytes,
        count=one.count,
        holders=list(holders),
        details=details,
    )


def _may_stop(holders: Sequence[Holder]) -> bool:
    """Whether the program does more with the first holder's largest container than fill it."""
    for one in holders[:1]:
        at = largest_container(one.links)
        if not one.filename or at is None:
            continue
        name_links = [link for link in one.links[:at] if link.kind != LinkKind.ITEM]
        return any(
            may_stop_growing(one.filename, name, link.type_name)
            for link in name_links[-1:]
            for name in (link.name, f".{link.name}")
        )
    return False


def _key(device: str, stack: int, holders: Sequence[Holder]) -> tuple[Hashable, ...]:
    """What a stack is announced by: the way in which it is held, once that is known."""
    return way(holders[0].links) if holders else (device, str(stack))


def _per_step(one: Suspect, steps: int) -> float:
    """Bytes; of ``steps`` those between windows were not seen."""
    span = one.last_step - one.first_step + 1
    return one.bytes / max(1, min(span, max(steps, one.births)))


def _graph_message(rate: float, holders: Sequence[Holder]) -> str:
    by = f" of {holders[0].description}" if holders else ""
    return f"the autograd graph{by} grows by {rate:.0f} nodes per step, on the host"


def _now_us() -> int:
    return time.time_ns() // 1000
