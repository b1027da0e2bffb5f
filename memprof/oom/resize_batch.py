"""How bytes follow the batch: which part of every allocation grows with it, and the trace resized.

Measured between steps of different batches where a trace has them, else assumed of what forward
and backward passes make. What a smaller batch is worth is for a replay to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from memprof.allocator import Workload
from memprof.oom.stale_blocks import Moment
from memprof.trace import Action, Category, Phase
from memprof.views.steps import ooms

__all__ = ["BatchSlope", "batch_slope", "of_the_passes", "resized", "share_of_request"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_PASSES = (int(Phase.FORWARD), int(Phase.BACKWARD))
_MADE_BY_PASSES = (int(Category.TEMPORARY), int(Category.UNKNOWN))
_DIFFERENT = 0.05
"""Share of the compared bytes by which two steps of different batches must differ, and of the batch
itself: what is less says nothing of a batch much smaller."""
_LEAST_SHARE = 0.5
"""Part of the inputs' bytes (of all, where none is known) that another batch must have changed."""
_ALIKE = 0.1
"""How far the change of one allocation may be from that of the batch, relative to it."""
_MOST_ATTEMPTS = 64
"""Steps and failed tries of them that are looked at for another batch; the last ones."""
_LEAST_MATCHED = 3
"""Allocations that must differ before they are called the batch's doing."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchSlope:
    """What of a recorded program follows its batch."""

    share: Floats
    """For every event the part of its bytes that is proportional to the batch: 0 to 1."""
    batch: Floats
    """For every event the batch of its step, relative to that of the failed one."""
    ratio: float
    """The batch that it was measured against, relative to the failed one; 1 where none was."""
    measured: tuple[int, int] | None
    """The steps whose batches differed; None where all that passes make was taken to follow it."""
    live: int
    """Bytes alive at the moment that follow the batch: 1 % of them is saved by 1 % of the batch."""

    def factors(self, batch: float) -> Floats:
        """By what to multiply each event's size so that no step has more than ``batch``."""
        capped = np.minimum(1.0, batch / self.batch)
        factors: Floats = 1 - self.share * (1 - capped)
        return factors


def resized(workload: Workload, factors: Floats) -> Workload:
    """The program with every request that many times as large, rounded up to whole bytes."""
    asks = np.isin(workload.events.action, (Action.ALLOC, Action.OOM))
    size = workload.events.size.copy()
    size[asks] = np.maximum(np.ceil(size[asks] * factors[: len(size)][asks]), 1).astype(np.int64)
    return replace(workload, events=replace(workload.events, size=size))


def of_the_passes(moment: Moment) -> Mask:
    """Which lifetimes forward and backward passes made: not the model, its gradients, its state.

    What has the very size of a parameter, or half of it, is taken for a gradient or a cast copy of
    it, so it is left out: better to promise too little of a smaller batch than too much.
    """
    lives, owners = moment.window.lives, moment.window.owners
    category, phase = owners.category.of, owners.phase.of
    mine = category == int(Category.ACTIVATION)
    mine |= np.isin(category, _MADE_BY_PASSES) & np.isin(phase, _PASSES)
    weights = np.unique(lives.requested[category == int(Category.PARAMETER)])
    copies = np.isin(lives.requested, np.concatenate([weights, weights // 2]))
    in_passes: Mask = mine & ~copies & (lives.alloc >= 0) & (lives.alloc <= moment.event)
    return in_passes


def batch_slope(moment: Moment) -> BatchSlope | None:
    """What follows the batch up to a failed request; None where nothing is known to."""
    lives, events = moment.window.lives, moment.window.trace.events
    inputs = moment.window.owners.category.of == int(Category.INPUT)
    follows = of_the_passes(moment) | (inputs & (lives.alloc >= 0))
    rows = np.flatnonzero((lives.alloc >= 0) & (lives.alloc <= moment.event))
    rows = rows[np.argsort(lives.alloc[rows])]
    share = np.zeros(len(lives))
    share[follows] = 1.0
    calls = _Calls.of(moment, rows)
    batch, ratio, measures = calls.measure(share, inputs)
    of_event = np.zeros(len(events))
    of_event[lives.alloc[rows]] = share[rows]
    of_event[moment.event] = share_of_request(moment, share)
    live = int((share * lives.size)[moment.alive].sum())
    if not live and not of_event[moment.event]:
        return None
    return BatchSlope(of_event, batch, ratio, measures, live)


def share_of_request(moment: Moment, share: Floats) -> float:
    """What holds of the failed request: the same as of the last that its stack or place served.

    ``share`` has a figure for every lifetime. A request without any like it is the passes' where
    its label says so.
    """
    lives, trace = moment.window.lives, moment.window.trace
    earlier_rows = np.flatnonzero((lives.alloc >= 0) & (lives.alloc < moment.event))
    row = int(trace.events.label[moment.event])
    for alike in (lives.stack == trace.events.stack[moment.event], lives.label == row):
        matches = earlier_rows[alike[earlier_rows]]
        if len(matches):
            return float(share[matches[-1]])
    return float(int(trace.label(row).phase) in _PASSES)


@dataclass(frozen=True, slots=True, eq=False)
class _Calls:
    """Allocations numbered within their attempt at a step, to find the same ones in another.

    An attempt ends with a step or with a failed request: who searches for a batch size tries one
    step many times.
    """

    moment: Moment
    rows: Ints
    """Lifetimes made up to the moment, in their order."""
    key: Ints
    """Stack, phase, module, and the how-manieth of these in its attempt."""
    attempt: Ints
    """Of each row, never falling."""
    attempts: Ints
    """Of each event."""

    @classmethod
    def of(cls, moment: Moment, rows: Ints) -> _Calls:
        lives, events = moment.window.lives, moment.window.trace.events
        failed = np.zeros(len(events), dtype=np.int64)
        failed[ooms(moment.window.trace)] = 1
        pairs = np.stack([moment.steps, np.cumsum(failed) - failed], 1)
        attempts = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
        attempt, place = attempts[lives.alloc[rows]], _places(moment)[rows]
        number = _number_within(attempt * (int(place.max(initial=0)) + 1) + place)
        return cls(moment, rows, place * (len(lives) + 1) + number, attempt, attempts)

    def measure(self, share: Floats, inputs: Mask) -> tuple[Floats, float, tuple[int, int] | None]:
        """Every event's batch, and the measured parts put into ``share``.

        Beside it the other batch that they were measured at, and the steps.
        """
        batch = np.ones(len(self.attempts))
        now = int(self.attempts[self.moment.event])
        best: tuple[float, int] | None = None
        for other in np.unique(self.attempt[self.attempt != now])[-_MOST_ATTEMPTS:].tolist():
            ratio = self._ratio(*self._match(now, other), share, inputs)
            batch[self.attempts == other] = ratio
            if ratio != 1 and (best is None or abs(np.log(ratio)) > abs(np.log(best[0]))):
                best = ratio, other
        if best is None:
            return batch, 1.0, None
        ratio, other = best
        self._learn(share, *self._match(now, other), ratio)
        steps = self.moment.steps
        steps_compared = int(steps[int(np.argmax(self.attempts == other))]), self.moment.step
        return batch, ratio, steps_compared

    def _match(self, now: int, other: int) -> tuple[Ints, Ints]:
        """Places in ``rows`` of what is the same allocation of the program in two attempts."""
        own, others = (slice(*np.searchsorted(self.attempt, [a, a + 1])) for a in (now, other))
        _, first, second = np.intersect1d(
            self.key[own], self.key[others], assume_unique=True, return_indices=True
        )
        return first + own.start, second + others.start

    def _ratio(self, own: Ints, others: Ints, share: Floats, inputs: Mask) -> float:
        """The other batch relative to this one: by inputs, else by what most allocations say.

        1 where nothing shows another batch: what differs is little, or differs as by chance.
        """
        passes = share[self.rows[own]] > 0
        rows, other_rows = self.rows[own[passes]], self.rows[others[passes]]
        requested = np.maximum(self.moment.window.lives.requested, 1)
        mine, theirs = requested[rows], requested[other_rows]
        differ = mine != theirs
        if differ.sum() < _LEAST_MATCHED or abs(theirs - mine).sum() < _DIFFERENT * mine.sum():
            return 1.0
        both_inputs = inputs[rows] & inputs[other_rows]
        asks = both_inputs if both_inputs.any() else np.ones(len(mine), dtype=bool)
        if mine[asks & differ].sum() < _LEAST_SHARE * mine[asks].sum():
            return 1.0
        mine, theirs = mine[asks & differ], theirs[asks & differ]
        ratio = float(theirs.sum() / mine.sum() if both_inputs.any() else np.median(theirs / mine))
        if abs(ratio - 1) < _DIFFERENT or not (both_inputs.any() or _agree(theirs / mine, ratio)):
            return 1.0
        return ratio

    def _learn(self, share: Floats, own: Ints, others: Ints, ratio: float) -> None:
        """What did not change with the batch does not follow it; the rest as much as it did."""
        requested = np.maximum(self.moment.window.lives.requested, 1)
        changes = 1 - requested[self.rows[others]] / requested[self.rows[own]]
        shares = np.clip(changes / (1 - ratio), 0.0, 1.0)
        order = np.argsort(self.key[own])
        keys = self.key[own][order]
        place = np.minimum(np.searchsorted(keys, self.key), len(keys) - 1)
        same_key = keys[place] == self.key
        share[self.rows[same_key]] = shares[order][place[same_key]]


def _agree(ratios: Floats, ratio: float) -> bool:
    """Whether most allocations changed as the batch did, or by its square as attention does."""
    change = ratio - 1
    linear = np.abs(ratios - ratio) <= _ALIKE * abs(change)
    squared = np.abs(ratios - ratio**2) <= _ALIKE * abs(ratio**2 - 1)
    return bool(np.mean(linear | squared) > _LEAST_SHARE)


def _places(moment: Moment) -> Ints:
    """A number for the stack, phase and module of every lifetime."""
    trace, lives = moment.window.trace, moment.window.lives
    names = [(int(label.phase), label.module) for label in trace.tables.labels]
    index = {name: number for number, name in enumerate(dict.fromkeys(names))}
    module = np.array([index[name] for name in names], dtype=np.int64)[lives.label]
    return np.asarray(lives.stack.astype(np.int64) * len(index) + module)


def _number_within(groups: Ints) -> Ints:
    """For each entry how many equal ones come before it."""
    order = np.argsort(groups, kind="stable")
    sorted_groups = groups[order]
    first = np.searchsorted(sorted_groups, sorted_groups, side="left")
    number = np.empty(len(groups), dtype=np.int64)
    number[order] = np.arange(len(groups)) - first
    return number
