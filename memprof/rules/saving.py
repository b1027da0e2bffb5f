"""Bytes that a remedy saves: from a replay of the recorded lifetimes without the tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from memprof.rules.case import Case
from memprof.rules.finding import Kind, RuleFinding
from memprof.trace import EMPTY, NOT_RECORDED, SURVIVOR_AGE, Phase
from memprof.views.examination import DeviceExamination
from memprof.views.peak_without import Cuts, Saving, replayed
from memprof.views.stacks import made_likewise
from memprof.views.window import Window

__all__ = ["at_overall_peak", "is_per_step", "saving_of", "survivors"]

Ints = npt.NDArray[np.int64]

_OF_EVERY_CALL = ("remove_hook",)
"""Fixes of what keeps results of every call of a module, also of calls that few steps have."""
_LEAST_COPY = 1 << 16
"""Bytes of the largest tensor of a line that may copy what is kept: less saves nothing."""
_LEAST_COPIES = 4
"""Times that what is kept was copied as a whole, before that is known."""
_NEARLY_EACH = 0.9
"""Of the steps, that make more than the one before, where they make ever more."""
_SAME_SHARE = 0.05
"""Of the largest copy, by which one may differ from its share of what is kept."""


def saving_of(finding: RuleFinding, window: Window | None, fix: str) -> tuple[int, Saving | None]:
    """Bytes that a fix saves (a step for growth, else off the peak), and the peaks by a replay.

    Growth in ``window`` is replayed with every tensor freed as the step after its own begins.
    What is made anew and larger in each step is as small as it was the first time.
    """
    if finding.match is not None and finding.match.saving is not None:
        saving = finding.match.saving.overall
        return saving.bytes, saving
    if not is_per_step(finding):
        return finding.bytes, None
    return round(finding.bytes_per_step), _without_survivors(finding, window, fix)


def is_per_step(finding: RuleFinding) -> bool:
    """Whether the bytes that a change saves are those of each step."""
    has_own = finding.match is not None and finding.match.saving is not None
    return not has_own and finding.kind not in (Kind.WASTE, Kind.FRAGMENTATION)


def at_overall_peak(saving: Saving, case: Case) -> Saving:
    """``saving`` of growth in one window, at the highest peak that was recorded or counted.

    Growth goes on after a window, at its rate, to a peak of which a later window or the counters
    tell; by no more than what is allocated at the ends of steps rises in between. What else that
    peak has stays, and so does the window's own peak after the change.
    """
    finding, window, device = case.finding, case.window, case.device
    if window is None or device is None:
        return saving
    overall = device.peak_allocated
    if finding.growth.is_replaced:
        return _with_growth_before(saving, finding, window, device)
    if overall <= saving.before or not saving.bytes:
        return saving
    since, until = _step_of_peak(window), _step_of_highest(device)
    grown = round(finding.bytes_per_step * (until - since))
    if until > since:
        grown = min(grown, _risen_between(device, since, until, unknown=grown))
    saved = max(0, saving.bytes + grown)
    return Saving(overall, max(saving.after, overall - saved))


def _with_growth_before(
    saving: Saving, finding: RuleFinding, window: Window, device: DeviceExamination
) -> Saving:
    """The saving of what is made anew and larger, with its growth before the window.

    In the window it would be as small as it was the first time there.
    """
    steps = window.step_of_event
    first = int(steps[0]) if len(steps) else -1
    if not 0 <= finding.first_step < first:
        return saving
    grown = round(finding.bytes_per_step * (first - finding.first_step))
    grown = min(grown, _risen_between(device, finding.first_step, first, unknown=0))
    return Saving(saving.before, max(0, saving.after - grown))


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


def _with_other_calls(window: Window, rows: Ints) -> Ints:
    """The rows, and what is kept that the same lines made for other callers."""
    alike = made_likewise(window, rows) & (window.lives.alloc >= 0)
    alike &= window.freed_in - window.made_in > SURVIVOR_AGE
    rows = np.union1d(rows, np.flatnonzero(alike))
    return rows[np.argsort(window.lives.alloc[rows], kind="stable")]


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


def _risen_between(device: DeviceExamination, since: int, until: int, *, unknown: int) -> int:
    """Bytes by which what is allocated at the ends of steps rises from one up to another.

    From before the first of them, to the most by the last; ``unknown`` where that was not counted.
    """
    with_figures = device.steps.allocated != NOT_RECORDED
    allocated, numbers = device.steps.allocated[with_figures], device.steps.last[with_figures]
    if not len(numbers) or until > numbers[-1]:
        return unknown
    before = max(0, int(np.searchsorted(numbers, since)) - 1)
    after = int(np.searchsorted(numbers, until)) + 1
    return int(allocated[before:after].max(initial=allocated[before]) - allocated[before])


def _without_survivors(finding: RuleFinding, window: Window | None, fix: str) -> Saving | None:
    if window is None or finding.evidence.window < 0 or not len(finding.evidence.allocs):
        return None
    if finding.growth.is_replaced:
        return replayed(window.line, _growth_of_replaced(finding, window))
    rows = survivors(finding, window)
    if fix in _OF_EVERY_CALL:
        rows = _with_other_calls(window, rows)
    ends = np.searchsorted(window.step_of_event[:-1], window.made_in[rows] + 1)
    ends = np.minimum(ends, _made_again(window, rows))
    cuts = Cuts.ended_at(window.line, rows, ends)
    copies, gone = _copies(window, rows)
    more, surplus = _ever_more(window, rows)
    alloc, free, size = window.lives.alloc, window.lives.free, window.lives.size
    cuts = Cuts(
        np.concatenate([rows, copies, rows[more]]),
        np.concatenate([cuts.start, alloc[copies], alloc[rows[more]]]),
        np.concatenate([cuts.end, free[copies], np.minimum(cuts.start, free[rows])[more]]),
        np.concatenate([size[rows], gone, surplus]),
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
    is_first = np.append(True, (np.diff(stack) != 0) | (np.diff(step) != 0))
    first = np.flatnonzero(is_first)
    total = np.add.reduceat(lives.size[rows], first)
    there = _there_at(window, kept, lives.alloc[rows[first]])
    least = total.copy()
    """Of each stack and step, what is left without the growth."""
    bounds = np.flatnonzero(np.append(True, np.diff(stack[first]) != 0))
    for low, high in pairwise([*bounds.tolist(), len(first)]):
        steps = slice(low, high)
        known = (there[steps] > 0) & (total[steps] > 0)
        totals, kept_then = total[steps][known], there[steps][known]
        if len(totals) < _LEAST_COPIES or kept_then[-1] < 2 * kept_then[0]:
            continue
        # The first may be made beside others of its size, and a window end amid the last.
        if _is_proportional(totals[1:-1], kept_then[1:-1]):
            least[steps][known] = totals.min()
    of_row = np.cumsum(is_first) - 1
    gone = (lives.size[rows] * (1 - least / np.maximum(1, total))[of_row]).astype(np.int64)
    return rows[gone > 0], gone[gone > 0]


def _there_at(window: Window, rows: Ints, events: Ints) -> Ints:
    """Bytes of ``rows`` that are there at each of some events."""
    lives = window.lives
    freed = rows[np.argsort(lives.free[rows], kind="stable")]
    made = np.append(0, np.cumsum(lives.size[rows]))
    gone = np.append(0, np.cumsum(lives.size[freed]))
    before = np.searchsorted(lives.alloc[rows], events)
    there: Ints = made[before] - gone[np.searchsorted(lives.free[freed], events)]
    return there


def _is_proportional(totals: Ints, kept: Ints) -> bool:
    """Whether some bytes are a share of what is kept, and of what was there before all of it."""
    share = (totals[-1] - totals[0]) / max(1, int(kept[-1] - kept[0]))
    if share <= 0:
        return False
    before = np.median(totals - share * kept)
    return bool(np.abs(totals - before - share * kept).max() <= _SAME_SHARE * totals.max())


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
    for of_stack in _of_each_stack(window, rows):
        makes = np.append(made[of_stack], never)
        ends[of_stack] = makes[np.searchsorted(makes[:-1], done[of_stack])]
    return ends


def _of_each_stack(window: Window, rows: Ints) -> Iterator[Ints]:
    """For each stack the places in ``rows`` of what it made, as it made it."""
    stack = window.lives.stack[rows]
    order = np.lexsort((window.lives.alloc[rows], stack))
    bounds = np.flatnonzero(np.append(len(rows) > 0, np.diff(stack[order]) != 0))
    for low, high in pairwise([*bounds.tolist(), len(rows)]):
        yield order[low:high]


def _ever_more(window: Window, rows: Ints) -> tuple[Ints, Ints]:
    """Places in ``rows`` of what a step makes beyond what the first did, and how much of each.

    Where steps make ever more tensors: each of the hooks that were left so far keeps a result of
    its own of every pass. Without them each step makes as many as the first.
    """
    steps, step = np.unique(window.made_in[rows], return_inverse=True)
    made = np.bincount(step, minlength=len(steps))
    # A window may end amid the last.
    rises = np.diff(made[:-1]) > 0
    if len(steps) < _LEAST_COPIES or rises.mean() < _NEARLY_EACH or made.max() < 2 * made[0]:
        return rows[:0], rows[:0]
    surplus = window.lives.size[rows] * (made[step] - made[0]) // made[step]
    places = np.flatnonzero(surplus > 0)
    return places, surplus[places]


def _growth_of_replaced(finding: RuleFinding, window: Window) -> Cuts:
    """What the tensors of each step have more than those of the first, of the same lines.

    Of the finding's own stacks as well what had grown before the window began.
    """
    lives = window.lives
    last = np.flatnonzero(np.isin(lives.alloc, finding.evidence.allocs))
    held = max(1, _in_last_step(window, last))
    grown, of_one = finding.bytes / held, finding.bytes_per_step / held
    own = np.isin(lives.stack, lives.stack[last])
    rows = np.flatnonzero(np.isin(window.site, window.site[last]) & (lives.alloc >= 0))
    gone = np.zeros(len(rows), dtype=np.int64)
    for of_stack in _of_each_stack(window, rows):
        size, made_in = lives.size[rows[of_stack]], window.made_in[rows[of_stack]]
        steps, step = np.unique(made_in, return_inverse=True)
        of_step = np.bincount(step, weights=size, minlength=len(steps))
        least = of_step[0]
        if own[rows[of_stack][0]]:
            least = min(least, of_step[-1] * max(1 - grown, of_one))
        share = np.maximum(0.0, 1 - least / np.maximum(1, of_step))
        gone[of_stack] = (size * share[step]).astype(np.int64)
    return replace(Cuts.whole(window.line, rows), bytes=gone)


def _in_last_step(window: Window, rows: Ints) -> int:
    """Bytes of ``rows`` that each stack made in its last step."""
    size, made_in = window.lives.size[rows], window.made_in[rows]
    return sum(
        int(size[of_stack][made_in[of_stack] == made_in[of_stack[-1]]].sum())
        for of_stack in _of_each_stack(window, rows)
    )
