"""Forward passes of a step, and the peak with them checkpointed or each with a backward pass.

The peaks are replays of the recorded lifetimes, in every step alike. What is freed earlier is cut
out of them, and what would be made again or earlier is put in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from memprof.source_code.program import Place, place_of
from memprof.trace import EMPTY, Action, Category, Frame, Phase
from memprof.views.peak_without import Cuts, Saving
from memprof.views.window import Bools, Ints, Window

__all__ = [
    "Passes",
    "block_names",
    "checkpointed",
    "forward_passes",
    "kept_beyond_pass",
    "one_at_a_time",
    "runs_within",
]

_NEARLY_ALL = 0.98
"""Of what is repeated: a few numbers that no stack is known of may be there less often."""
_FEW_ROWS = 2
"""Activations a block, below which single blocks leave nothing to make again."""


@dataclass(frozen=True, slots=True, eq=False)
class Passes:
    """Several forward passes through the same modules in the step of the peak."""

    number: int
    row: int
    """The lifetime whose line and stack stand for all of their activations."""
    rows: Ints
    """The step's activations that are there at the peak."""
    beginning: tuple[int, int, int]
    """Stack and module of the first tensors that a pass makes, and how many of them each makes."""
    calls: tuple[Place, ...]
    """The user's statements that call them in a loop, innermost first."""


def runs_within(window: Window, of_label: Bools) -> Iterator[tuple[int, int, int]]:
    """First and last allocation of each run of them in forward passes, and the one after it.

    A run is what is made one after the other under labels that ``of_label`` marks. What comes after
    the last one is the window's end.
    """
    events = window.trace.events
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    inside = (window.phase_of_event[allocs] == Phase.FORWARD) & of_label[events.label[allocs]]
    change = np.flatnonzero(np.diff(np.concatenate([[False], inside, [False]]).astype(np.int8)))
    following = np.append(allocs, window.events)
    for begin, end in zip(change[::2].tolist(), change[1::2].tolist(), strict=True):
        yield int(allocs[begin]), int(allocs[end - 1]), int(following[end])


@lru_cache(maxsize=1)  # two rules ask, and the repetitions are counted in Python
def forward_passes(window: Window) -> Passes | None:
    """The passes that one line runs in a loop, with their activations there at the peak together.

    None where the step of the peak has one pass, or where most of its activations are of others.
    """
    if window.peak.event < 0:
        return None
    pass_mask = window.made_in == window.step_of_event[window.peak.event]
    pass_mask &= window.category == Category.ACTIVATION
    # What was gone before any of those at the peak were made is of other graphs.
    oldest = window.lives.alloc[pass_mask & window.at_peak].min(initial=window.events)
    pass_mask &= window.lives.free > oldest
    number, rows, first = _repetitions(window, np.flatnonzero(pass_mask & (window.module > 0)))
    sizes = window.lives.size
    # One line may well make two tensors (`table(x) + arange(n)`); repeated passes repeat the most.
    if number < 2:
        return None
    losses = _repeated(window, np.flatnonzero(pass_mask & (window.module == 0)), number)
    if 2 * int(sizes[rows].sum() + sizes[losses].sum()) < window.bytes_of(pass_mask):
        return None
    there = np.flatnonzero(pass_mask & window.at_peak)
    calls = _calls_in_loops(window.stack(int(rows[0])))
    if not len(there) or not calls:
        return None
    mask = np.zeros(len(window.lives), dtype=bool)
    mask[rows] = True
    stack, module = int(window.lives.stack[first]), int(window.module[first])
    of_first = (window.lives.stack[rows] == stack) & (window.module[rows] == module)
    beginning = stack, module, max(1, int(of_first.sum()) // number)
    return Passes(number, window.main_site(mask), there, beginning, calls)


def _repetitions(window: Window, rows: Ints) -> tuple[int, Ints, int]:
    """Number of forward passes in the step, the rows that they made, and the first row of one.

    A pass is what makes most of the bytes again by the same stacks in the same modules; the first
    row is the earliest that is made so, or -1 where nothing is made twice. A line that runs several
    times in a pass does so a multiple of that. An operator with several results makes them at once:
    that is one time.
    """
    events = window.trace.events
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    runs = np.cumsum(np.diff(events.stack[allocs], prepend=-1) != 0)
    run = runs[np.searchsorted(allocs, window.lives.alloc[rows])]
    keys = list(zip(window.lives.stack[rows].tolist(), window.module[rows].tolist(), strict=True))
    times = Counter(key for key, _ in set(zip(keys, run.tolist(), strict=True)))
    of_row = np.array([times[key] for key in keys], dtype=np.int64)
    sizes = window.lives.size[rows]
    shared = {t: int(sizes[of_row % t == 0].sum()) for t in set(times.values()) if t > 1}
    most = max(shared.values(), default=0)
    passes = max((t for t in shared if shared[t] >= _NEARLY_ALL * most), default=1)
    repeated = rows[of_row % passes == 0]
    first = int(repeated[window.lives.alloc[repeated].argmin()]) if passes > 1 else -1
    return passes, repeated, first


def _repeated(window: Window, rows: Ints, times: int) -> Ints:
    """Those that lines outside all modules made a multiple of so many times: a loss of each pass.

    What has no stack was made by no line.
    """
    stacks = window.lives.stack[rows]
    _, of_row, counts = np.unique(stacks, return_inverse=True, return_counts=True)
    repeated: Ints = rows[(counts[of_row.reshape(-1)] % times == 0) & (stacks != EMPTY)]
    return repeated


def _calls_in_loops(stack: tuple[Frame, ...]) -> tuple[Place, ...]:
    """The user's statements on a stack that are in a loop, innermost first."""
    places = map(place_of, stack)
    return tuple(place for place in places if place is not None and place.loop is not None)


def block_names(window: Window) -> list[str]:
    """Per module: the repeated block that it is in; its root where it is in none."""
    return [_block(name) for name in window.owners.module.names]


def _block(module: str) -> str:
    """The shortest numbered prefix of a path: ``GPT.blocks.3`` of ``GPT.blocks.3.mlp``."""
    parts = module.split(".")
    cut = next((i for i, part in enumerate(parts) if part.isdigit() or "#" in part), None)
    return parts[0] if cut is None else ".".join(parts[: cut + 1])


def checkpointed(window: Window, beginning: tuple[int, int, int] | None = None) -> Saving:
    """With the output of each block kept, and the rest made again in its backward pass.

    Blocks of one operator each are taken together: √n of n at a time (Chen et al. 2016). With a
    ``beginning`` (of `Passes`) each pass is a block.
    """
    rows: list[Ints] = []
    start: list[Ints] = []
    end: list[Ints] = []
    backward = np.flatnonzero(window.phase_of_event == Phase.BACKWARD)
    free = window.lives.free
    steps = _blocks_of_steps(window) if beginning is None else _passes_of_steps(window, *beginning)
    for blocks in steps:
        if not blocks:  # a step of which nothing was kept for a backward pass
            continue
        frees = np.sort(np.concatenate([free[block] for block in blocks]))
        for block in blocks:
            over = int(window.lives.alloc[block[-1]])  # its output is made last, and stays
            at = int(np.searchsorted(backward, over))
            if at == len(backward) or len(block) < _FEW_ROWS:
                continue
            # The blocks behind it are done when the last free before its own first one is.
            own = int(free[block].min())
            before = int(np.searchsorted(frees, own)) - 1
            again = max(int(backward[at]), int(frees[before]) if before >= 0 else -1)
            rows.append(block[:-1])
            start.append(np.full(len(block) - 1, over))
            end.append(np.full(len(block) - 1, again))
    return _replay(window, rows, start, end)


def _blocks_of_steps(window: Window) -> Iterator[list[Ints]]:
    """For every pass the activations of each block, in the order in which they were made."""
    names = block_names(window)
    numbers = np.unique(names, return_inverse=True)[1]
    repeated = np.array([name != name.split(".", maxsplit=1)[0] or "#" in name for name in names])
    mask = (window.category == Category.ACTIVATION) & (window.module > 0)
    if (mask & repeated[window.module]).any():
        mask &= repeated[window.module]
    activations = np.flatnonzero(mask & (window.made_in >= 0))
    for rows in _by_passes(window, activations):
        block = numbers[window.module[rows]]
        order = np.unique(block, return_index=True)[1]
        rank = np.zeros(len(names), dtype=np.int64)
        rank[block[np.sort(order)]] = np.arange(len(order))
        together = 1 if len(rows) >= _FEW_ROWS * len(order) else round(len(order) ** 0.5)
        segment = rank[block] // together
        yield [rows[segment == one] for one in np.unique(segment)]


def _by_passes(window: Window, activations: Ints) -> Iterator[Ints]:
    """Activations by step; by backward pass, where a step has several to add up gradients.

    Then none of one pass is left as the next begins. Else a graph is gone through more than once.
    """
    lives = window.lives
    begins = np.flatnonzero(np.diff(window.phase_of_event == Phase.BACKWARD, prepend=False))[::2]
    for step in np.unique(window.made_in[activations]):
        rows = activations[window.made_in[activations] == step]
        after = np.searchsorted(begins, lives.alloc[rows])
        passes = [rows[after == number] for number in np.unique(after)]
        is_over = all(
            lives.free[one].max() < lives.alloc[following].min()
            for one, following in pairwise(passes)
        )
        yield from passes if is_over else [rows]


def _passes_of_steps(window: Window, stack: int, module: int, times: int) -> Iterator[list[Ints]]:
    """The same by passes, of which each begins where ``stack`` makes a tensor in ``module``."""
    activations = np.flatnonzero(window.category == Category.ACTIVATION)
    for begins, in_pass in _beginnings(window, stack, module, times):
        rows = activations[in_pass[activations]]
        number = np.searchsorted(begins, window.lives.alloc[rows], side="right")
        yield [rows[number == one] for one in np.unique(number)]


def _beginnings(
    window: Window, stack: int, module: int, times: int
) -> Iterator[tuple[Ints, Bools]]:
    """For every step the events at which its passes begin, and whether it made each lifetime.

    Each pass makes so many of the tensors by which it is known.
    """
    lives = window.lives
    marks = np.flatnonzero((lives.stack == stack) & (window.module == module) & (lives.alloc >= 0))
    for step in np.unique(window.made_in[marks]):
        yield lives.alloc[marks[window.made_in[marks] == step]][::times], window.made_in == step


def one_at_a_time(window: Window, beginning: tuple[int, int, int]) -> Saving:
    """With a backward pass after each forward pass, and not one for the sum of their losses.

    ``beginning`` is that of `Passes`. The gradients are there from the first backward pass on.
    """
    lives, freed = window.lives, window.freed_by == Phase.BACKWARD
    gradients = (window.category == Category.GRADIENT) & (window.phase == Phase.BACKWARD)
    rows: list[Ints] = []
    start: list[Ints] = []
    end: list[Ints] = []
    for begins, in_pass in _beginnings(window, *beginning):
        own = np.flatnonzero(in_pass & freed & ~gradients & ~window.has_owner)
        following = np.searchsorted(begins, lives.alloc[own], side="right")
        # An input is there before the pass that it is for begins.
        following += window.category[own] == Category.INPUT
        own, following = own[following < len(begins)], following[following < len(begins)]
        is_longer = lives.free[own] >= begins[following]
        rows.append(own[is_longer])
        start.append(begins[following[is_longer]] - 1)
        end.append(lives.free[own[is_longer]])
        if len(begins) > 1:
            own = np.flatnonzero(in_pass & gradients)
            rows.append(own)
            start.append(lives.alloc[own])
            end.append(np.full(len(own), int(begins[1]) - 1))
    return _replay(window, rows, start, end)


def _replay(window: Window, rows: list[Ints], start: list[Ints], end: list[Ints]) -> Saving:
    if not rows:
        return Saving(window.peak.bytes, window.peak.bytes)
    return window.replayed(Cuts(np.concatenate(rows), np.concatenate(start), np.concatenate(end)))


def kept_beyond_pass(window: Window, *, to_its_end: bool = False) -> Bools:
    """What modules within a model make in a pass without a backward pass, and leave behind it.

    ``to_its_end``: also what goes with the pass' output before anything else is made.
    """
    lives = window.lives
    names = [label.module for label in window.trace.tables.labels]
    candidate = (window.module > 0) & ~window.has_owner & (window.freed_by != Phase.BACKWARD)
    candidate &= window.phase == Phase.FORWARD
    # What is there while another model's backward pass runs is of its graph by all that is known;
    # but a pass of which nothing is freed by a backward pass has none.
    of_graph = window.category == Category.ACTIVATION
    freed_backward = of_graph & (window.freed_by == Phase.BACKWARD)
    inner = np.array(["." in name for name in window.owners.module.names], dtype=bool)
    candidate &= inner[window.module]
    kept = np.zeros(len(lives), dtype=bool)
    for root in sorted({name.partition(".")[0] for name in names if name}):
        inside = np.array([name.partition(".")[0] == root for name in names], dtype=bool)
        for first, last, following in runs_within(window, inside):
            low, high = np.searchsorted(lives.alloc, [first, last + 1])
            rows = np.arange(low, high)
            own = candidate[rows] & (lives.free[rows] > (last if to_its_end else following))
            if freed_backward[rows].any():
                own &= ~of_graph[rows]
            kept[rows[own]] = True
    return kept
