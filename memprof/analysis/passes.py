"""Forward and backward passes that keep more than they need: gradients, graphs nobody uses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memprof.analysis.suspicion import Pattern, Suspicion
from memprof.source_code.grad_mode import without_gradients
from memprof.trace import Action, Category, Phase
from memprof.views.peak_without import Cuts
from memprof.views.window import Bools, Ints, Window

__all__ = ["passes"]

_MOST_STEPS = 0.6
_KEPT_MODULES = 3
_KEPT_SHARE = 0.4
"""Of the bytes that a forward pass makes: with gradients on, most are there when it ends."""


def passes(window: Window) -> Iterator[Suspicion]:
    """What the passes of a step keep beyond their need."""
    yield from _held_gradients(window)
    yield from _idle_gradients(window)
    yield from _evaluation_graph(window)
    yield from _retained_graph(window)


def _held_gradients(window: Window) -> Iterator[Suspicion]:
    """Gradients of earlier steps that are there when a backward pass begins, in most steps."""
    begins = _backward_begins(window)
    if len(begins) < 3:
        return
    lives = window.lives
    crossing = window.freed_in > window.made_in  # the others cannot be there in a later step
    # Made elsewhere than in a backward pass it is a buffer that gradients are views of, and meant.
    crossing &= window.phase == Phase.BACKWARD
    gradients = np.flatnonzero((window.category == Category.GRADIENT) & crossing)
    if not len(gradients):
        return
    held = np.zeros(len(gradients), dtype=np.int64)
    renewed = _renewed(window)
    rows, start, end = [], [], []
    for step, event in begins.items():
        alive = (lives.alloc[gradients] < window.first_event[step]) & (
            lives.free[gradients] > event
        )
        held += alive
        there = gradients[alive]
        rows.append(there)
        start.append(np.full(len(there), window.first_event[step] - 1))
        keys = zip(window.module[there].tolist(), lives.requested[there].tolist(), strict=True)
        end.append(np.array([renewed.get((step, *key), event) for key in keys], dtype=np.int64))
    kept = _regular(window, gradients, held, len(begins))
    if not len(kept):
        return
    cuts = Cuts(np.concatenate(rows), np.concatenate(start), np.concatenate(end))
    mask = np.zeros(len(lives), dtype=bool)
    mask[kept] = True
    yield Suspicion(
        Pattern.HELD_GRADIENTS,
        window.main_site(mask),
        kept,
        0.75,
        "are gradients of the step before, there while the next forward pass runs",
        window.bytes_of(mask & window.at_peak),
        window.replayed(cuts),
        {"forever": bool(window.stays[kept].mean() > 0.5)},
    )


def _idle_gradients(window: Window) -> Iterator[Suspicion]:
    """Gradients that are done with when the peak comes, in a forward pass after the backward one.

    As in a validation at the end of a step, where `zero_grad` comes at the beginning of the next.
    """
    peak, lives = window.peak.event, window.lives
    if not window.is_phase(peak, Phase.FORWARD):
        return
    busy = np.isin(window.phase_of_event, [int(Phase.BACKWARD), int(Phase.OPTIMIZER)])
    steps = window.step_of_event[:-1]
    last = np.full(int(steps.max()) + 2, -1, dtype=np.int64)
    np.maximum.at(last, steps[busy], np.flatnonzero(busy))
    step = int(steps[peak])
    if not 0 <= last[step] < peak:
        return
    begins = _backward_begins(window)
    renewed = np.array([begins.get(int(s) + 1, window.events) for s in window.made_in])
    gradients = (window.category == Category.GRADIENT) & (window.phase == Phase.BACKWARD)
    rows = np.flatnonzero(gradients & (window.made_in >= 0) & (lives.free <= renewed))
    rows = rows[lives.free[rows] > last[window.made_in[rows]]]
    at_peak = rows[window.at_peak[rows] & (window.made_in[rows] == step)]
    if not len(at_peak):
        return
    mask = np.zeros(len(lives), dtype=bool)
    mask[at_peak] = True
    yield Suspicion(
        Pattern.HELD_GRADIENTS,
        window.main_site(mask),
        rows,
        0.7,
        "are gradients that the step is done with, there while another forward pass runs",
        window.bytes_of(mask),
        window.replayed(window.ended(rows, last[window.made_in[rows]])),
    )


def _backward_begins(window: Window) -> dict[int, int]:
    """The first event of the first backward pass of every step but the first."""
    found: dict[int, int] = {}
    for event in np.flatnonzero(window.phase_of_event == Phase.BACKWARD).tolist():
        found.setdefault(int(window.step_of_event[event]), event)
    first = min(found, default=0)
    return {step: event for step, event in found.items() if step > first}


def _renewed(window: Window) -> dict[tuple[int, int, int], int]:
    """When a gradient's new value has been added to it, by step, module and bytes.

    Without the old gradient, the new value would have become the gradient itself.
    """
    lives = window.lives
    new = (window.phase == Phase.BACKWARD) & ~window.owned & (lives.free < window.events)
    rows = np.flatnonzero(new & (window.module > 0))
    keys = zip(
        window.made_in[rows].tolist(),
        window.module[rows].tolist(),
        lives.requested[rows].tolist(),
        strict=True,
    )
    return dict(zip(keys, lives.free[rows].tolist(), strict=True))


def _regular(window: Window, gradients: Ints, held: Ints, steps: int) -> Ints:
    """Gradients that are held in most steps: by one long life, or by a life in every step."""
    long = held >= _MOST_STEPS * steps
    stacks = window.lives.stack[gradients]
    by_stack = np.bincount(stacks, weights=held)
    every = window.lives.stack[window.category == Category.GRADIENT]
    made = np.bincount(every, minlength=len(by_stack))[: len(by_stack)]
    of_each_step = (held > 0) & (by_stack >= _MOST_STEPS * made)[stacks]
    # Micro-batches: a life that ends after a few steps is an accumulation, and meant.
    freed = window.freed_in[gradients] - window.made_in[gradients]
    to_the_end = (window.lives.free[gradients] == window.events) | (long & window.stays[gradients])
    meant: Bools = (freed > 1) & ~to_the_end
    regular: Ints = gradients[(long | of_each_step) & ~meant]
    return regular


def _evaluation_graph(window: Window) -> Iterator[Suspicion]:
    """Forward passes with gradients on, which no backward pass follows before the next."""
    lives = window.lives
    kept: list[int] = []
    ends: list[int] = []
    brief = window.freed_in - window.made_in < 2  # else it is a cache, or kept on purpose
    for first, last in _unused_forwards(window):
        low, high = np.searchsorted(lives.alloc, [first, last + 1])  # rows are in this order
        rows = np.arange(low, high)
        alive = (lives.free[rows] > last) & ~window.owned[rows] & brief[rows]
        made = int(lives.size[rows].sum())
        rows = rows[alive]
        if len(set(window.module[rows].tolist()) - {0}) < _KEPT_MODULES:
            continue
        if lives.size[rows].sum() < _KEPT_SHARE * made:
            continue  # results of several modules, and nothing of what lies between them
        if without_gradients(window.stack(int(rows[0]))):
            continue
        after = np.append(lives.alloc[rows[1:]], last)
        output = len(rows) - 1
        kept += rows[:output].tolist()
        ends += after[:output].tolist()
    if not kept:
        return
    rows = np.array(kept, dtype=np.int64)
    saving = window.replayed(window.ended(rows, np.array(ends)))
    mask = np.zeros(len(lives), dtype=bool)
    mask[rows] = True
    at_peak = mask & window.at_peak
    yield Suspicion(
        Pattern.EVALUATION_GRAPH,
        window.main_site(mask),
        rows,
        0.75,
        "are activations that a forward pass keeps for a backward pass that never comes",
        window.bytes_of(at_peak) or saving.bytes,
        saving,
    )


def _unused_forwards(window: Window) -> Iterator[tuple[int, int]]:
    """First and last event of forward passes that no backward pass follows before the next one."""
    is_alloc = window.trace.events.action == Action.ALLOC
    in_module = np.array([bool(label.module) for label in window.trace.tables.labels])
    phase = window.phase_of_event
    events = np.flatnonzero(is_alloc)
    inside = (phase[events] == Phase.FORWARD) & in_module[window.trace.events.label[events]]
    change = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8)))
    backward = np.flatnonzero((phase == Phase.BACKWARD) & is_alloc)
    runs = [
        (int(events[a]), int(events[b - 1])) for a, b in zip(change[::2], change[1::2], strict=True)
    ]
    for number, (first, last) in enumerate(runs):
        until = runs[number + 1][0] if number + 1 < len(runs) else window.events
        at = int(np.searchsorted(backward, last))
        if at == len(backward) or (backward[at] > until and not _follows(window, last)):
            yield first, last


def _follows(window: Window, event: int) -> bool:
    """Whether a backward pass comes later in the same step: the loss may be a sum of passes."""
    step = window.step_of_event[event]
    later = window.phase_of_event[event + 1 :][window.step_of_event[event + 1 : -1] == step]
    return bool((later == Phase.BACKWARD).any())


def _retained_graph(window: Window) -> Iterator[Suspicion]:
    """Activations that outlive the step's last backward pass, to be freed in the next step."""
    lives = window.lives
    ends: dict[int, int] = {}
    for event in np.flatnonzero(window.phase_of_event == Phase.BACKWARD).tolist():
        ends[int(window.step_of_event[event])] = event
    activation = np.flatnonzero((window.category == Category.ACTIVATION) & (window.made_in >= 0))
    last = np.array([ends.get(int(s), -1) for s in window.made_in[activation]], dtype=np.int64)
    over = (last >= 0) & (lives.free[activation] > last)
    over &= window.freed_in[activation] == window.made_in[activation] + 1
    modules = window.module[activation]
    if len(set(modules[over].tolist()) - {0}) < _KEPT_MODULES:
        return
    rows, at = activation[over], last[over]
    saving = window.replayed(window.ended(rows, at))
    mask = np.zeros(len(lives), dtype=bool)
    mask[rows] = True
    yield Suspicion(
        Pattern.RETAINED_GRAPH,
        window.main_site(mask),
        rows,
        0.7,
        "are activations that stay after the backward pass, until the next step replaces them",
        window.bytes_of(mask & window.at_peak) or saving.bytes,
        saving,
    )
