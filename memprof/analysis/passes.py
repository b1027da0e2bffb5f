"""Forward and backward passes that keep more than they need: gradients, graphs nobody uses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memprof.analysis.gradmode import without_gradients
from memprof.analysis.savings import Cuts
from memprof.analysis.scene import Bools, Ints, Scene
from memprof.analysis.suspicion import Pattern, Suspicion
from memprof.trace import Action, Category, Phase

__all__ = ["passes"]

_MOST_STEPS = 0.6
_KEPT_MODULES = 3
_KEPT_SHARE = 0.4
"""Of the bytes that a forward pass makes: with gradients on, most are there when it ends."""


def passes(scene: Scene) -> Iterator[Suspicion]:
    """What the passes of a step keep beyond their need."""
    yield from _held_gradients(scene)
    yield from _idle_gradients(scene)
    yield from _evaluation_graph(scene)
    yield from _retained_graph(scene)


def _held_gradients(scene: Scene) -> Iterator[Suspicion]:
    """Gradients of earlier steps that are there when a backward pass begins, in most steps."""
    begins = _backward_begins(scene)
    if len(begins) < 3:
        return
    lives = scene.lives
    crossing = scene.freed_in > scene.made_in  # the others cannot be there in a later step
    # Made elsewhere than in a backward pass it is a buffer that gradients are views of, and meant.
    crossing &= scene.phase == Phase.BACKWARD
    gradients = np.flatnonzero((scene.category == Category.GRADIENT) & crossing)
    if not len(gradients):
        return
    held = np.zeros(len(gradients), dtype=np.int64)
    renewed = _renewed(scene)
    rows, start, end = [], [], []
    for step, event in begins.items():
        alive = (lives.alloc[gradients] < scene.first_event[step]) & (lives.free[gradients] > event)
        held += alive
        there = gradients[alive]
        rows.append(there)
        start.append(np.full(len(there), scene.first_event[step] - 1))
        keys = zip(scene.module[there].tolist(), lives.requested[there].tolist(), strict=True)
        end.append(np.array([renewed.get((step, *key), event) for key in keys], dtype=np.int64))
    kept = _regular(scene, gradients, held, len(begins))
    if not len(kept):
        return
    cuts = Cuts(np.concatenate(rows), np.concatenate(start), np.concatenate(end))
    mask = np.zeros(len(lives), dtype=bool)
    mask[kept] = True
    yield Suspicion(
        Pattern.HELD_GRADIENTS,
        scene.main_site(mask),
        kept,
        0.75,
        "are gradients of the step before, there while the next forward pass runs",
        scene.bytes_of(mask & scene.at_peak),
        scene.replayed(cuts),
    )


def _idle_gradients(scene: Scene) -> Iterator[Suspicion]:
    """Gradients that are done with when the peak comes, in a forward pass after the backward one.

    As in a validation at the end of a step, where `zero_grad` comes at the beginning of the next.
    """
    peak, lives = scene.peak.event, scene.lives
    if not scene.is_phase(peak, Phase.FORWARD):
        return
    busy = np.isin(scene.phase_of_event, [int(Phase.BACKWARD), int(Phase.OPTIMIZER)])
    steps = scene.step_of_event[:-1]
    last = np.full(int(steps.max()) + 2, -1, dtype=np.int64)
    np.maximum.at(last, steps[busy], np.flatnonzero(busy))
    step = int(steps[peak])
    if not 0 <= last[step] < peak:
        return
    begins = _backward_begins(scene)
    renewed = np.array([begins.get(int(s) + 1, scene.events) for s in scene.made_in])
    gradients = (scene.category == Category.GRADIENT) & (scene.phase == Phase.BACKWARD)
    rows = np.flatnonzero(gradients & (scene.made_in >= 0) & (lives.free <= renewed))
    rows = rows[lives.free[rows] > last[scene.made_in[rows]]]
    at_peak = rows[scene.at_peak[rows] & (scene.made_in[rows] == step)]
    if not len(at_peak):
        return
    mask = np.zeros(len(lives), dtype=bool)
    mask[at_peak] = True
    yield Suspicion(
        Pattern.HELD_GRADIENTS,
        scene.main_site(mask),
        rows,
        0.7,
        "are gradients that the step is done with, there while another forward pass runs",
        scene.bytes_of(mask),
        scene.replayed(scene.ended(rows, last[scene.made_in[rows]])),
    )


def _backward_begins(scene: Scene) -> dict[int, int]:
    """The first event of the first backward pass of every step but the first."""
    found: dict[int, int] = {}
    for event in np.flatnonzero(scene.phase_of_event == Phase.BACKWARD).tolist():
        found.setdefault(int(scene.step_of_event[event]), event)
    first = min(found, default=0)
    return {step: event for step, event in found.items() if step > first}


def _renewed(scene: Scene) -> dict[tuple[int, int, int], int]:
    """When a gradient's new value has been added to it, by step, module and bytes.

    Without the old gradient, the new value would have become the gradient itself.
    """
    lives = scene.lives
    new = (scene.phase == Phase.BACKWARD) & ~scene.owned & (lives.free < scene.events)
    rows = np.flatnonzero(new & (scene.module > 0))
    keys = zip(
        scene.made_in[rows].tolist(),
        scene.module[rows].tolist(),
        lives.requested[rows].tolist(),
        strict=True,
    )
    return dict(zip(keys, lives.free[rows].tolist(), strict=True))


def _regular(scene: Scene, gradients: Ints, held: Ints, steps: int) -> Ints:
    """Gradients that are held in most steps: by one long life, or by a life in every step."""
    long = held >= _MOST_STEPS * steps
    stacks = scene.lives.stack[gradients]
    by_stack = np.bincount(stacks, weights=held)
    every = scene.lives.stack[scene.category == Category.GRADIENT]
    made = np.bincount(every, minlength=len(by_stack))[: len(by_stack)]
    of_each_step = (held > 0) & (by_stack >= _MOST_STEPS * made)[stacks]
    # Micro-batches: a life that ends after a few steps is an accumulation, and meant.
    freed = scene.freed_in[gradients] - scene.made_in[gradients]
    to_the_end = (scene.lives.free[gradients] == scene.events) | (long & scene.stays[gradients])
    meant: Bools = (freed > 1) & ~to_the_end
    regular: Ints = gradients[(long | of_each_step) & ~meant]
    return regular


def _evaluation_graph(scene: Scene) -> Iterator[Suspicion]:
    """Forward passes with gradients on, which no backward pass follows before the next."""
    lives = scene.lives
    kept: list[int] = []
    ends: list[int] = []
    brief = scene.freed_in - scene.made_in < 2  # else it is a cache, or kept on purpose
    for first, last in _unused_forwards(scene):
        low, high = np.searchsorted(lives.alloc, [first, last + 1])  # rows are in this order
        rows = np.arange(low, high)
        alive = (lives.free[rows] > last) & ~scene.owned[rows] & brief[rows]
        made = int(lives.size[rows].sum())
        rows = rows[alive]
        if len(set(scene.module[rows].tolist()) - {0}) < _KEPT_MODULES:
            continue
        if lives.size[rows].sum() < _KEPT_SHARE * made:
            continue  # results of several modules, and nothing of what lies between them
        if without_gradients(scene.stack(int(rows[0]))):
            continue
        after = np.append(lives.alloc[rows[1:]], last)
        output = len(rows) - 1
        kept += rows[:output].tolist()
        ends += after[:output].tolist()
    if not kept:
        return
    rows = np.array(kept, dtype=np.int64)
    saving = scene.replayed(scene.ended(rows, np.array(ends)))
    mask = np.zeros(len(lives), dtype=bool)
    mask[rows] = True
    at_peak = mask & scene.at_peak
    yield Suspicion(
        Pattern.EVALUATION_GRAPH,
        scene.main_site(mask),
        rows,
        0.75,
        "are activations that a forward pass keeps for a backward pass that never comes",
        scene.bytes_of(at_peak) or saving.bytes,
        saving,
    )


def _unused_forwards(scene: Scene) -> Iterator[tuple[int, int]]:
    """First and last event of forward passes that no backward pass follows before the next one."""
    is_alloc = scene.trace.events.action == Action.ALLOC
    in_module = np.array([bool(label.module) for label in scene.trace.tables.labels])
    phase = scene.phase_of_event
    events = np.flatnonzero(is_alloc)
    inside = (phase[events] == Phase.FORWARD) & in_module[scene.trace.events.label[events]]
    change = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8)))
    backward = np.flatnonzero((phase == Phase.BACKWARD) & is_alloc)
    runs = [
        (int(events[a]), int(events[b - 1])) for a, b in zip(change[::2], change[1::2], strict=True)
    ]
    for number, (first, last) in enumerate(runs):
        until = runs[number + 1][0] if number + 1 < len(runs) else scene.events
        at = int(np.searchsorted(backward, last))
        if at == len(backward) or (backward[at] > until and not _follows(scene, last)):
            yield first, last


def _follows(scene: Scene, event: int) -> bool:
    """Whether a backward pass comes later in the same step: the loss may be a sum of passes."""
    step = scene.step_of_event[event]
    later = scene.phase_of_event[event + 1 :][scene.step_of_event[event + 1 : -1] == step]
    return bool((later == Phase.BACKWARD).any())


def _retained_graph(scene: Scene) -> Iterator[Suspicion]:
    """Activations that outlive the step's last backward pass, to be freed in the next step."""
    lives = scene.lives
    ends: dict[int, int] = {}
    for event in np.flatnonzero(scene.phase_of_event == Phase.BACKWARD).tolist():
        ends[int(scene.step_of_event[event])] = event
    activation = np.flatnonzero((scene.category == Category.ACTIVATION) & (scene.made_in >= 0))
    last = np.array([ends.get(int(s), -1) for s in scene.made_in[activation]], dtype=np.int64)
    over = (last >= 0) & (lives.free[activation] > last)
    over &= scene.freed_in[activation] == scene.made_in[activation] + 1
    modules = scene.module[activation]
    if len(set(modules[over].tolist()) - {0}) < _KEPT_MODULES:
        return
    rows, at = activation[over], last[over]
    saving = scene.replayed(scene.ended(rows, at))
    mask = np.zeros(len(lives), dtype=bool)
    mask[rows] = True
    yield Suspicion(
        Pattern.RETAINED_GRAPH,
        scene.main_site(mask),
        rows,
        0.7,
        "are activations that stay after the backward pass, until the next step replaces them",
        scene.bytes_of(mask & scene.at_peak) or saving.bytes,
        saving,
    )
