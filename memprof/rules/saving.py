"""Bytes that a remedy saves: from a replay of the recorded lifetimes without the tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from memprof.rules.case import Case
from memprof.rules.finding import Kind, RuleFinding
from memprof.trace import EMPTY, Phase
from memprof.views.examination import DeviceExamination
from memprof.views.peak_without import Cuts, Saving, replayed
from memprof.views.window import Window

__all__ = ["at_overall_peak", "is_per_step", "saving_of", "survivors"]

Ints = npt.NDArray[np.int64]

_LEAST_COPY = 1 << 16
_LEAST_COPIES = 4
"""Times that what is kept was copied as a whole, before that is known."""
_SAME_SHARE = 0.05
"""By how much the copy's share of what is kept may differ from time to time."""


def saving_of(finding: RuleFinding, window: Window | None) -> tuple[int, Saving | None]:
    """Bytes saved (a step for growth, else off the peak), and the peaks where a replay tells.

    Growth in ``window`` is replayed with every tensor freed as the step after its own begins.
    What is made anew and larger in each step is as small as it was the first time.
    """
    if finding.match is not None and finding.match.saving is not None:
        saving = finding.match.saving.overall
        return saving.bytes, saving
    if not is_per_step(finding):
        return finding.bytes, None
    return round(finding.bytes_per_step), _without_survivors(finding, window)


def is_per_step(finding: RuleFinding) -> bool:
    """Whether the bytes that a change saves are those of each step."""
    has_own = finding.match is not None and finding.match.saving is not None
    return not has_own and finding.kind not in (Kind.WASTE, Kind.FRAGMENTATION)


def at_overall_peak(saving: Saving, case: Case) -> Saving:
    """``saving`` of growth in one window, at the highest peak that was recorded or counted.

    Growth goes on after a window, at its rate, to a peak of which a later window or the counters
    tell; what that has more than the growth stays. After the change the window's own peak is there
    as well.
    """
    finding, window, device = case.finding, case.window, case.device
    if window is None or device is None:
        return saving
    overall = device.peak_allocated
    if overall <= saving.before or not saving.bytes or finding.growth.is_replaced:
        return saving
    steps_on = _step_of_highest(device) - _step_of_peak(window)
    saved = max(0, saving.bytes + round(finding.bytes_per_step * steps_on))
    return Saving(overall, max(saving.after, overall - saved))


def survivors(finding: RuleFinding, window: Window) -> Ints:
    """Rows of ``window`` that the growth of ``finding`` consists of, in the order of their making.

    What was let go of since, as by a container that is full, had been kept as well.
    """
    lives = window.lives
    rows = np.flatnonzero(np.isin(lives.alloc, finding.evidence.allocs))
    stacks = np.setdiff1d(lives.stack[rows], EMPTY)
    alike = np.flatnonzero(np.isin(lives.stack, stacks) & (lives.alloc >= 0))
    rows = np.union1d(rows, alike)
    return rows[np.argsort(lives.alloc[rows], kind="stable")]


def _step_of_peak(window: Window) -> int:
    """The step of the highest bytes of a window; -1 where no step had begun."""
    at = window.line.peak_allocated.event
    return int(window.step_of_event[at]) if 0 <= at < len(window.step_of_event) else -1


def _step_of_highest(device: DeviceExamination) -> int:
    """The step in which a device had the most bytes."""
    highest = max(device.windows, key=lambda one: one.line.peak_allocated.bytes)
    steps = device.steps
    if len(steps) and steps.peak_allocated.max() > highest.line.peak_allocated.bytes:
        return int(steps.last[int(steps.peak_allocated.argmax())])
    return _step_of_peak(highest)


def _without_survivors(finding: RuleFinding, window: Window | None) -> Saving | None:
    if window is None or finding.evidence.window < 0 or not len(finding.evidence.allocs):
        return None
    if finding.growth.is_replaced:
        rows = np.flatnonzero(np.isin(window.lives.alloc, finding.evidence.allocs))
        return replayed(window.line, _growth_of_replaced(window, rows))
    rows = survivors(finding, window)
    ends = np.searchsorted(window.step_of_event[:-1], window.made_in[rows] + 1)
    ends = np.minimum(ends, _made_again(window, rows))
    cuts = Cuts.ended_at(window.line, rows, ends)
    copies, gone = _copies(window, rows)
    cuts = Cuts(
        np.concatenate([rows, copies]),
        np.concatenate([cuts.start, window.lives.alloc[copies]]),
        np.concatenate([cuts.end, window.lives.free[copies]]),
        np.concatenate([window.lives.size[rows], gone]),
    )
    # The peak of the whole window: growth is not over once the first steps are.
    return replayed(window.line, cuts)


def _copies(window: Window, kept: Ints) -> tuple[Ints, Ints]:
    """Temporaries that are made of all that is ``kept`` by then, and the bytes that each loses.

    Such as `torch.cat` of a list that becomes ever longer: each time it takes the same share of
    what is kept. Without the growth it is as large as it was the first time.
    """
    lives = window.lives
    large = np.unique(lives.stack[lives.size >= _LEAST_COPY])
    is_brief = (lives.free < window.events) | (window.made_in == window.made_in.max(initial=-1))
    is_other = (lives.alloc >= 0) & is_brief & np.isin(lives.stack, large)
    is_other[kept] = False
    rows = np.flatnonzero(is_other)
    rows = rows[np.lexsort((lives.alloc[rows], window.made_in[rows], lives.stack[rows]))]
    if not len(rows) or not len(kept):
        return rows[:0], rows[:0]
    stack, step = lives.stack[rows], window.made_in[rows]
    first = np.flatnonzero(np.append(True, (np.diff(stack) != 0) | (np.diff(step) != 0)))
    total = np.add.reduceat(lives.size[rows], first)
    before = np.searchsorted(lives.alloc[kept], lives.alloc[rows[first]])
    there = np.append(0, np.cumsum(lives.size[kept]))[before]
    gone = np.zeros(len(rows), dtype=np.int64)
    of_group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(rows))))
    for one in np.unique(stack[first]).tolist():
        groups = np.flatnonzero((stack[first] == one) & (there > 0))
        if len(groups) < _LEAST_COPIES or there[groups[-1]] < 2 * there[groups[0]]:
            continue
        share = total[groups] / there[groups]
        # The first may be made beside others of its size, and a window end amid the last.
        if np.abs(share[1:-1] / np.median(share) - 1).max() > _SAME_SHARE:
            continue
        inside = np.isin(of_group, groups)
        least = total[groups].min() / total[of_group[inside]]
        gone[inside] = (lives.size[rows[inside]] * (1 - least)).astype(np.int64)
    return rows[gone > 0], gone[gone > 0]


def _made_again(window: Window, rows: Ints) -> Ints:
    """For each row, where its stack makes the next after a backward pass that followed it.

    A step may have several passes. What a pass saved is gone with its backward pass, and at the
    latest when the same line makes as much for the next one. The events, where none does so.
    """
    lives, never = window.lives, window.events
    is_backward = np.append(window.phase_of_event == Phase.BACKWARD, False)
    over = np.flatnonzero(is_backward[:-1] & ~is_backward[1:])
    made = lives.alloc[rows]
    done = np.append(over, never)[np.searchsorted(over, made)]
    ends = np.full(len(rows), never, dtype=np.int64)
    for stack in np.unique(lives.stack[rows]).tolist():
        of_stack = np.flatnonzero(lives.stack[rows] == stack)
        makes = np.append(np.sort(made[of_stack]), never)
        ends[of_stack] = makes[np.searchsorted(makes[:-1], done[of_stack])]
    return ends


def _growth_of_replaced(window: Window, last: Ints) -> Cuts:
    """What the tensors of each step have more than those of the first, of the same stacks."""
    lives = window.lives
    rows = np.flatnonzero(np.isin(lives.stack, lives.stack[last]) & (lives.alloc >= 0))
    size = lives.size[rows]
    steps, step = np.unique(window.made_in[rows], return_inverse=True)
    of_step = np.bincount(step, weights=size, minlength=len(steps))
    share = np.maximum(0.0, 1 - of_step[0] / np.maximum(1, of_step))
    gone = (size * share[step]).astype(np.int64)
    return replace(Cuts.whole(window.line, rows), bytes=gone)
