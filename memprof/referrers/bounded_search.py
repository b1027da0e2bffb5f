"""Searches for holders that never hold the job up for long: whole, pass by pass, or not at all."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from memprof.records import Holder
from memprof.reference_chain import way
from memprof.referrers.find_holders import FOR_LINES, find_holders
from memprof.referrers.heap import Deadline
from memprof.referrers.pause_estimate import PauseEstimate
from memprof.referrers.search_candidates import Suspect
from memprof.referrers.search_from_tensors import FOR_LINES_S, UpwardSearch
from memprof.sources.tensor_addresses import PlaceOf, place_of
from memprof.sources.training_threads import may_read_tensors

__all__ = ["Quarry", "Searches"]

_MOST_HOLDERS = 3
WHOLE_S = 0.5
"""The longest that a search of the whole heap may be expected to hold the job up; what would take
longer is climbed, pass by pass, …"""
WHOLE_AFTER_S = 0.5
"""… and what was not explained so is searched for once more, if that takes no longer than this."""
BUDGET_S = 0.45
"""What is not found by then is not looked for any longer, lines in sources included: the estimate
was wrong. An answer that is cut off may name the wrong holder, so it is climbed to instead."""
SLICE_S = 0.15
"""The time for passes at one step's end; a single pass of 4 million objects takes 0.08 s, and
looking up where it stopped 0.1 s."""
_WHOLE_BLOCK_S, _PASS_BLOCK_S = 1.5e-7, 1e-8
"""What a whole search and a pass take for each of the interpreter's blocks, before it was measured
(Python 3.11; 1.8 million blocks, 460,000 objects, 2026-11-23: 1.2e-7 where the program's variables
lead to what is looked for, 2.4e-7 else; 10 million blocks, 4.2 million objects, 2026-11-22)."""
CHEAP_S = 0.05
"""Where a pass takes no longer, what is new is searched for as it comes, not only a sure leak."""
NOTICEABLE_S = 0.12
"""Where a search of the whole heap takes longer, it waits until what grows comes to some bytes."""
_SLOW_BLOCK_S = 2.4e-7
"""What a whole search takes for each block where no variable of the program leads to what is looked
for. The last search counts on that: a climb would find more than one that is cut off."""
_LEAST_PASSES = 3
"""Passes that a climb takes at least: to find the tensor, what refers to it, and a name."""
_MOST_CLIMBED = 8
"""Stacks whose tensors are climbed from at once, those that come first."""


@dataclass(frozen=True, slots=True)
class Quarry:
    """Whose holders are searched for, on which device."""

    device: str
    suspect: Suspect
    place: PlaceOf = place_of


@dataclass(slots=True)
class Searches:
    """One search at a time, begun at a step's end and gone on with at the next ones."""

    note: Callable[[str], None] = lambda _: None
    """Told once what was not searched for, and why."""
    _quarries: list[Quarry] = field(default_factory=list)
    _climbs: dict[PlaceOf, UpwardSearch] = field(default_factory=dict)
    _remaining: list[Quarry] = field(default_factory=list)
    """What the passes did not explain."""
    _answers: list[tuple[Quarry, tuple[Holder, ...]]] = field(default_factory=list)
    _was_cut: bool = False
    """The time for a search of the whole heap was over before it was."""
    _whole: PauseEstimate = field(default_factory=lambda: PauseEstimate(WHOLE_S, _WHOLE_BLOCK_S))
    _pass: PauseEstimate = field(default_factory=lambda: PauseEstimate(CHEAP_S, _PASS_BLOCK_S))
    _has_logged: bool = False

    @property
    def is_under_way(self) -> bool:
        """Whether more is to be done at the next step's end."""
        return bool(self._climbs or self._remaining)

    def is_cheap(self) -> bool:
        """Whether what is new may be searched for as it comes."""
        return self._whole.is_short(WHOLE_S) or self._pass.is_short(CHEAP_S)

    def is_noticeable(self) -> bool:
        """Whether a search of the whole heap takes so long that it is worth waiting for bytes."""
        return not self._whole.is_short(NOTICEABLE_S)

    def is_at_once(self) -> bool:
        """Whether a search would be over at the step's end at which it is begun."""
        return not self.is_under_way and self._whole.is_short(WHOLE_S)

    def is_pending(self, device: str, stack: int) -> bool:
        """Whether the answer for the tensors of a stack is still to come."""
        under_way = (*self._quarries, *self._remaining) if self.is_under_way else ()
        return any((one.device, one.suspect.stack) == (device, stack) for one in under_way)

    def begin(self, quarries: Sequence[Quarry], last_s: float | None = None) -> None:
        """Search for the first time; drops what was under way.

        Args:
            quarries: the most important first.
            last_s: how long at most, where nothing can be left for later; None: as long as at any
                other step's end, and then more at the next ones.
        """
        self._climbs, self._remaining, self._was_cut = {}, [], False
        if not may_read_tensors():
            self._quarries, self._answers = [], [(one, ()) for one in quarries]
            return
        self._quarries = [one for one in quarries if one.suspect.targets]
        self._answers = [(one, ()) for one in quarries if not one.suspect.targets]
        if not self._quarries:
            return
        if last_s is not None:
            self._search_last(last_s)
        elif self._whole.is_short(WHOLE_S):
            self._quarries = self._search_all(self._quarries)
            self._was_cut = bool(self._quarries)
            if self._was_cut:
                self._begin_climbs()  # from the next step's end on: the time of this one is over
        else:
            self._begin_climbs()
            self._go_on(SLICE_S)

    def _search_last(self, limit_s: float) -> None:
        """Search in one go: the whole heap if that is surely over in time, else climb first.

        What the climbs do not explain is then searched for in the whole heap, if that may fit.
        """
        ends_s = time.thread_time() + limit_s
        if self._whole.is_short(limit_s / (1 + FOR_LINES), least_block_s=_SLOW_BLOCK_S):
            self._remaining, self._quarries = self._quarries, []
        else:
            before_whole_s = limit_s - self._whole.expected_s
            may_follow = before_whole_s >= SLICE_S
            self._begin_climbs()
            self._make_passes(before_whole_s if may_follow else limit_s - FOR_LINES_S)
            self._give_up_climbs()
            self._take_climbed(ends_s - time.thread_time())
        if self._remaining:
            rest, self._remaining = self._remaining, []
            unexplained = self._search_all(rest, ends_s - time.thread_time())
            self._answers += [(one, ()) for one in unexplained]
            if unexplained:
                self._say()

    def _begin_climbs(self) -> None:
        places: dict[PlaceOf, list[object]] = defaultdict(list)
        for one in self._quarries[:_MOST_CLIMBED]:
            places[one.place].append(one.suspect.targets[0])
        self._climbs = {
            place: UpwardSearch(targets, limit=_MOST_HOLDERS, place=place)
            for place, targets in places.items()
        }

    def at_once(self, quarries: Sequence[Quarry]) -> list[tuple[Quarry, tuple[Holder, ...]]]:
        """The holders of some tensors now; none where that takes long or a search is under way."""
        if self.is_under_way or not self._whole.is_short(WHOLE_S) or not may_read_tensors():
            return []
        self._answers += [(one, ()) for one in self._search_all(quarries)]
        return self.take()

    def proceed(self) -> None:
        """Go on at the next step's end."""
        if not may_read_tensors():
            self.begin(self._quarries or self._remaining)
            return
        if self._remaining and not self._climbs:
            rest, self._remaining, self._quarries = self._remaining, [], []
            self._answers += [(one, ()) for one in self._search_all(rest)]
        else:
            self._go_on(SLICE_S)

    def _go_on(self, limit_s: float) -> None:
        self._make_passes(limit_s)
        if all(climb.is_over for climb in self._climbs.values()):
            self._take_climbed(0.0 if self._was_cut else WHOLE_AFTER_S)

    def _make_passes(self, limit_s: float) -> None:
        ends_s = time.thread_time() + limit_s
        has_gone_on = False
        for climb in self._climbs.values():
            left_s = ends_s - time.thread_time()
            if not climb.is_over and (left_s > 0 or not has_gone_on):
                has_gone_on = True
                climb.proceed(left_s)
                self._pass.took(climb.slowest_s)

    def _give_up_climbs(self) -> None:
        """Keep what the passes have found so far; one that has not begun has found nothing."""
        for climb in self._climbs.values():
            if climb.has_begun and not climb.is_over:
                climb.give_up()
                climb.proceed(0.0)

    def take(self) -> list[tuple[Quarry, tuple[Holder, ...]]]:
        """What has been found since the last call; no holder where there is none to be had."""
        answers, self._answers = self._answers, []
        return answers

    def holders_of(self, target: object, limit_s: float) -> tuple[Holder, ...]:
        """The holders of one tensor now, or none where that takes longer than ``limit_s``."""
        if not self._pass.is_short(limit_s / _LEAST_PASSES):
            self._say()
            return ()
        if self._whole.is_short(limit_s):
            with self._whole.measured():
                deadline = Deadline(limit_s / (1 + FOR_LINES))
                return find_holders(
                    [target], limit=_MOST_HOLDERS, deadline=deadline, in_passing=True
                )[0]
        climb = UpwardSearch([target], limit=_MOST_HOLDERS)
        climb.proceed(limit_s)
        if not climb.is_over:
            climb.give_up()
            climb.proceed(0.0)
            self._say()
        return climb.searched.get(target, ())

    def _take_climbed(self, rest_s: float) -> None:
        """Take what the climbs have found; the rest waits for a whole search of ``rest_s``."""
        climbs, self._climbs = self._climbs, {}
        quarries, self._quarries = self._quarries, []
        missing = []
        for one in quarries:
            answers = climbs[one.place].searched if one.place in climbs else {}
            holders = answers.get(one.suspect.targets[0], ())
            if holders and holders[0].is_named:
                self._answers.append((one, holders))
            else:
                missing.append((one, holders))
        if missing and self._whole.is_short(rest_s):
            self._remaining = [one for one, _ in missing]
            return
        self._answers += missing
        if missing:
            self._say()

    def _say(self) -> None:
        if not self._has_logged:
            self._has_logged = True
            self.note(
                "who holds some of what stays alive was not searched for to the end: the "
                f"interpreter holds {sys.getallocatedblocks():,} blocks of memory, and a look at "
                "all of them would hold the job up for too long"
            )

    def _search_all(
        self, chosen_quarries: Sequence[Quarry], limit_s: float | None = None
    ) -> list[Quarry]:
        """Search the whole heap, in `BUDGET_S` or ``limit_s``; what it had no time to answer.

        What is cut off after the program's own names were followed is not climbed to: only a
        library or C++ can hold it, and a climb would take as much time again.
        """
        places: dict[PlaceOf, list[Quarry]] = defaultdict(list)
        for one in chosen_quarries:
            places[one.place].append(one)
        unexplained = []
        longest_s = BUDGET_S if limit_s is None else limit_s
        slowest_s = 0.0
        with self._whole.measured():
            deadline = Deadline(longest_s / (1 + FOR_LINES), is_fixed=limit_s is not None)
            for place, quarries in places.items():
                if deadline.check() or deadline.remaining_s < slowest_s:
                    unexplained += quarries
                    continue
                began_s = time.thread_time()
                targets = [
                    key for one in quarries for key in (*one.suspect.targets, one.suspect.youngest)
                ]
                targets = list(dict.fromkeys(targets))
                holders = find_holders(
                    targets, limit=_MOST_HOLDERS, place=place, deadline=deadline, in_passing=True
                )
                slowest_s = max(slowest_s, time.thread_time() - began_s)
                by_target = dict(zip(targets, holders, strict=True))
                for one in quarries:
                    common = _in_common([by_target[key] for key in one.suspect.targets])
                    if all(map(_is_cut_off, common)):
                        common = by_target[one.suspect.youngest] or common
                    named = tuple(holder for holder in common if holder.is_named)
                    if named or not deadline.passed:
                        self._answers.append((one, named if deadline.passed else common))
                    elif deadline.names_followed:
                        # None of the program's names leads to it: autocast's cache may have it.
                        self._answers.append((one, tuple(filter(_is_under_autocast, common))))
                        self._say()
                    else:
                        unexplained.append(one)
        return unexplained


def _in_common(answers: Sequence[tuple[Holder, ...]]) -> tuple[Holder, ...]:
    """The holders of several tensors, those of most of them first; each way of holding once.

    Of a tensor whose search was cut off nothing is known: what holds another one comes first.
    """
    ways = Counter(key for answer in answers for key in {way(one.links) for one in answer})
    first: dict[tuple[Hashable, ...], tuple[bool, int, int, Holder]] = {}
    for answer in answers:
        for rank, one in enumerate(answer):
            key = way(one.links)
            first.setdefault(key, (_is_cut_off(one), -ways[key], rank, one))
    by_merit = sorted(first.values(), key=lambda entry: entry[:3])
    return tuple(one for *_, one in by_merit[:_MOST_HOLDERS])


def _is_cut_off(holder: Holder) -> bool:
    return holder.unowned is not None and holder.unowned.cut_off


def _is_under_autocast(holder: Holder) -> bool:
    return holder.unowned is not None and bool(holder.unowned.autocast)
