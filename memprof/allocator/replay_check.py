"""Replays of recorded traces: how exactly the model retells what the allocator did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from memprof.allocator.explain_releases import ReleaseCause, ReleaseRun
from memprof.allocator.guided_replay import Doubt, Guide
from memprof.allocator.rounding import round_size
from memprof.allocator.settings import INTERVALS, AllocatorSettings, recorded_settings
from memprof.allocator.undo import Beginning, beginning
from memprof.allocator.versions import TieBreak, tie_break_of
from memprof.trace import Action, BlockState, State, Trace

__all__ = [
    "MODELLED",
    "Replay",
    "first_guess",
    "inferred_settings",
    "replay_recorded",
    "retold",
]


_TRIAL = 20_000
"""Events over which rules are compared before the whole trace is replayed under the best."""

MODELLED = "no caching allocator was there: addresses and segments come from the model itself"
"""What is said of traces that were laid out (CPU tensors)."""


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """How the model retold one device's trace."""

    device: str
    events: int
    settings: AllocatorSettings
    tie_break: TieBreak
    rows: npt.NDArray[np.int64]
    """Index of every ``ALLOC`` event."""
    predicted: npt.NDArray[np.int64]
    """The address that the model predicts for each; `NOT_RECORDED` where it has none."""
    doubts: dict[int, Doubt]
    """Events that do not count as exact, and why."""
    new_segments: int
    """``SEGMENT_ALLOC`` and ``SEGMENT_MAP`` events, …"""
    new_segments_predicted: int
    """… and those with the right size at the right event."""
    released_segments: int
    """``SEGMENT_FREE`` and ``SEGMENT_UNMAP`` events, …"""
    released_segments_predicted: int
    """… and those of the right segment at the right event."""
    released_segments_undetermined: int
    """Those whose turn depends on an age or order from before the trace began."""
    releases: tuple[ReleaseRun, ...]
    recorded_peak_reserved: int
    peak_reserved: int
    peak_allocated: int
    notes: tuple[str, ...]

    @property
    def allocs(self) -> int:
        """Recorded allocations."""
        return len(self.rows)

    @property
    def undetermined(self) -> int:
        """Allocations whose place the recording does not determine."""
        return sum(doubt is not Doubt.WRONG for doubt in self.doubts.values())

    @property
    def wrong(self) -> int:
        """Allocations that the model puts elsewhere without an excuse."""
        return len(self.doubts) - self.undetermined

    @property
    def exact(self) -> int:
        """Allocations that the model puts where the allocator put them."""
        return self.allocs - len(self.doubts)

    def reasons(self) -> dict[str, int]:
        """How many allocations are not exact, by reason."""
        return dict(Counter(doubt.value for doubt in self.doubts.values()))


def replay_recorded(
    trace: Trace, settings: AllocatorSettings | None = None, tie_break: TieBreak | None = None
) -> Replay:
    """Replay a trace under the settings it ran with.

    Args:
        trace: recorded (or modelled) on one device.
        settings: those that the trace records where left out.
        tie_break: that of ``trace.torch_version`` where left out; where this is not known, every
            rule is tried until one places everything.
    """
    settings = settings or inferred_settings(trace)
    begin, rule, guide = retold(trace, settings, tie_break)
    return _result(trace, begin, settings, rule, guide)


def retold(
    trace: Trace, settings: AllocatorSettings, tie_break: TieBreak | None = None
) -> tuple[Beginning, TieBreak, Guide]:
    """The state that a trace began in, the rule that fits it best, and the model at its end."""
    begin = beginning(trace, settings)
    best: Guide | None = None
    best_rule = TieBreak.ADDRESS
    rules = [tie_break] if tie_break else _candidates(trace)
    for rule in _by_trial(trace, begin, settings, rules):
        guide = _guide_of(trace, begin, settings, rule)
        if best is None or guide.misses < best.misses:
            best, best_rule = guide, rule
        if not guide.misses:
            break
    assert best is not None  # there is always a candidate
    return begin, best_rule, best


def _by_trial(
    trace: Trace, begin: Beginning, settings: AllocatorSettings, rules: list[TieBreak]
) -> list[TieBreak]:
    """The rules, those that explain the beginning of a long trace best first."""
    if len(rules) == 1 or len(trace.events) <= _TRIAL:
        return rules
    pools = {row: pool for row, pool in begin.pool_of_event.items() if row < _TRIAL}
    begin = replace(begin, pool_of_event=pools)
    head = replace(trace, events=trace.events.take(slice(0, _TRIAL)))
    misses: dict[TieBreak, int] = {}
    for rule in rules:
        guide = Guide(head, begin, settings, rule)
        guide.advance()
        misses[rule] = guide.misses
        if not guide.misses:
            break
    return sorted(rules, key=lambda rule: misses.get(rule, len(trace.events)))


def _guide_of(trace: Trace, begin: Beginning, settings: AllocatorSettings, rule: TieBreak) -> Guide:
    guide = Guide(trace, begin, settings, rule)
    guide.advance()
    if not guide.learned_ties or guide.allocator.counts_blocks:
        return guide
    # Once more with the order of the segments as it turned out; what showed it stays in doubt.
    again = Guide(trace, begin, settings, rule, guide.learned_ties)
    again.advance()
    if len(again.doubts) > len(guide.doubts):
        return guide
    by_start_order = {r: d for r, d in guide.doubts.items() if d is Doubt.START_ORDER}
    again.doubts.update(by_start_order)
    return again


def _candidates(trace: Trace) -> list[TieBreak]:
    """The rule of the torch that wrote the trace, then the others unless it is known for sure."""
    version_rule = tie_break_of(trace.torch_version)
    if version_rule is not None and not trace.torch_version.endswith("+"):
        return [version_rule]
    first = version_rule or TieBreak.ADDRESS
    likely = (TieBreak.ADDRESS, TieBreak.OLDEST_SEGMENT, TieBreak.OLDEST_BLOCK)
    return [first, *(rule for rule in likely if rule is not first)]


def inferred_settings(trace: Trace) -> AllocatorSettings:
    """The recorded settings, with what they leave out told by the trace itself.

    Whether segments expand shows in the segments; ``roundup_power2_divisions``, which torch up to
    2.1 does not record, in the sizes of blocks.
    """
    settings = recorded_settings(trace.settings)
    settings = replace(settings, expandable_segments=_expands(trace, settings))
    if "roundup_power2_divisions" not in trace.settings and not any(settings.roundup_divisions):
        divisions = _divisions(trace.end or trace.start or State())
        settings = replace(settings, roundup_divisions=(divisions,) * INTERVALS)
    return settings


def _expands(trace: Trace, settings: AllocatorSettings) -> bool:
    """Whether segments expanded when the trace began.

    The recorded setting is that of the dump: it may have been switched before, or be of no effect
    (on Windows). What the default pool did first in the trace tells more, then what it holds.
    """
    events = trace.events
    new = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)) & (events.pool <= 0)
    if new.any():
        return bool(events.action[new][0] == Action.SEGMENT_MAP)
    segments = (trace.end or trace.start or State()).segments
    default = segments.expandable[segments.pool <= 0]
    if len(default) and (default.all() or not default.any()):
        return bool(default[0])
    return settings.expandable_segments


def _divisions(state: State) -> int:
    """The uniform ``roundup_power2_divisions`` that the blocks in use agree with; 0 if default."""
    blocks = state.blocks
    used = (blocks.state != BlockState.INACTIVE) & (blocks.requested > 0) & (blocks.size < 1 << 20)
    pairs = set(zip(blocks.requested[used].tolist(), blocks.size[used].tolist(), strict=True))
    for divisions in (0, 1, 2, 4, 8, 16, 32, 64):
        table = (divisions,) * INTERVALS
        if all(round_size(requested, table) == size for requested, size in pairs):
            return divisions
    return 0


def _result(
    trace: Trace, begin: Beginning, settings: AllocatorSettings, rule: TieBreak, guide: Guide
) -> Replay:
    releases = tuple(guide.releases)
    return Replay(
        device=trace.device,
        events=len(trace.events),
        settings=settings,
        tie_break=rule,
        rows=np.flatnonzero(trace.events.action == Action.ALLOC),
        predicted=np.array(guide.predicted, dtype=np.int64),
        doubts=guide.doubts,
        new_segments=guide.new_segments,
        new_segments_predicted=guide.new_segments_predicted,
        released_segments=sum(run.last - run.first for run in releases),
        released_segments_predicted=sum(run.predicted for run in releases),
        released_segments_undetermined=sum(
            run.last - run.first - run.predicted
            for run in releases
            if ReleaseCause.AGE in run.causes or ReleaseCause.ORDER in run.causes
        ),
        releases=releases,
        recorded_peak_reserved=_recorded_peak_reserved(trace, begin),
        peak_reserved=guide.allocator.peak_reserved,
        peak_allocated=guide.allocator.peak_allocated,
        notes=tuple(_notes(trace, begin, guide)),
    )


def _recorded_peak_reserved(trace: Trace, begin: Beginning) -> int:
    events = trace.events
    gained = np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    released = np.isin(events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    change = np.where(gained, events.size, 0) - np.where(released, events.size, 0)
    return begin.state.reserved + max(int(np.cumsum(change).max(initial=0)), 0)


def _notes(trace: Trace, begin: Beginning, guide: Guide) -> list[str]:
    notes = [MODELLED] if trace.modelled else []
    if trace.reordered:
        notes.append("the events were not in the order of their times and were sorted")
    if begin.contradictions:
        notes.append(
            f"{begin.contradictions} events contradict the final state: events are missing, were "
            "recorded on another allocator, or the file was not written by one"
        )
    if len(begin.state.blocks):
        notes.append(
            "the trace begins in the middle: recording began late, or its ring overflowed; "
            f"{int((begin.state.blocks.state != 0).sum())} live blocks were rebuilt from its end"
        )
    if begin.assumed.any():
        notes.append(
            f"{int(begin.assumed.sum())} blocks that were live at the start may be up to 1 MiB "
            "larger than what was asked for them: nothing in the trace shows it"
        )
    if guide.switches:
        notes.append(
            "expandable segments were switched on or off at event "
            + ", ".join(map(str, guide.switches))
        )
    return notes


def first_guess(trace: Trace) -> tuple[Beginning, Guide]:
    """The state that a trace began in, and the model there, under the likeliest rule.

    For what a wrong tie-break hardly changes: pictures of segments, sums over them.
    """
    settings = inferred_settings(trace)
    begin = beginning(trace, settings)
    return begin, Guide(trace, begin, settings, _candidates(trace)[0])
