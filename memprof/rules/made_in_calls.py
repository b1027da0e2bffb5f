"""What some lines make one after another, call by call, and what of it a single function spares."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import takewhile

import numpy as np

from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import Frame, Phase
from memprof.views.stacks import made_at_lines
from memprof.views.window import Bools, Ints, Window

__all__ = ["spared_by_one_function"]

_ACTIVATIONS = "/torch/nn/modules/activation.py"
_LEAST_OF_LARGEST = 0.5
"""Of the largest that a call makes: a mean or a deviation for each row is smaller."""


def spared_by_one_function(
    window: Window,
    lines: Mapping[str, Collection[int]],
    *,
    keeps_input: bool = True,
    is_loss: bool = False,
) -> Ints:
    """What would not be made if one function of torch computed what some lines do.

    Of each call's results that is all but the last, and so it is of the gradients of its backward
    pass. A loss keeps the first that waits for the backward pass instead, and besides the last
    gradient that of what it computes. Results of layers that the lines call are left
    alone.

    Args:
        window: where they were recorded.
        lines: the lines, by their file.
        keeps_input: whether the lines keep their input for the backward pass, as the function does;
            else it keeps that in place of one more result.
        is_loss: whether what the lines return is reduced to a number.
    """
    lives = window.lives
    is_backward = window.phase == Phase.BACKWARD
    made = np.zeros(len(lives), dtype=bool)
    for filename, own in lines.items():
        made |= made_at_lines(window, filename, own)
    made &= (lives.alloc >= 0) & ~is_backward
    made &= ~np.isin(lives.stack, _of_layers(window, np.unique(lives.stack[made])))
    rows, call = _in_calls(window, made)
    stays = _last_of(call)
    if is_loss:
        waits = window.freed_by[rows] == Phase.BACKWARD
        stays = np.zeros(len(rows), dtype=bool)
        stays[waits] = _first_of(call[waits])
    if not keeps_input:
        stays |= _first_of(call)
    frames = window.owners.sites.frames
    on = np.array([frame.line in lines.get(frame.filename, ()) for frame in frames])
    gradients, of_call = _in_calls(window, on[window.origin_site] & is_backward)
    is_last = _last_of(of_call)
    if is_loss and len(gradients):  # what is there as the last is made is what that comes of
        made_last = lives.alloc[gradients[is_last]][np.cumsum(is_last) - is_last]
        is_last |= lives.free[gradients] >= made_last
    spared: Ints = np.concatenate([rows[~stays], gradients[~is_last]])
    return spared[~window.has_owner[spared]]


def _of_layers(window: Window, stacks: Ints) -> list[int]:
    """Stacks of what a module makes that is no activation."""
    return [
        stack
        for stack in stacks.tolist()
        if (inside := _inside(window.trace.stack(stack)))
        and any("_call_impl" in frame.name for frame in inside)
        and not inside[0].filename.replace("\\", "/").endswith(_ACTIVATIONS)
    ]


def _inside(stack: tuple[Frame, ...]) -> list[Frame]:
    """The frames of torch within the program's own line."""
    return list(takewhile(lambda one: frame_kind(one.filename) is FrameKind.TORCH, stack))


def _last_of(call: Ints) -> Bools:
    """Which is the last of its call, in numbers of calls that stand beside one another."""
    last: Bools = np.append(call[1:] != call[:-1], [True])[: len(call)]
    return last


def _first_of(call: Ints) -> Bools:
    """Which is the first."""
    return _last_of(call[::-1])[::-1]


def _in_calls(window: Window, made: Bools) -> tuple[Ints, Ints]:
    """Large tensors of each call, in order, and the number of the call of each.

    A call is what the lines make one after another.
    """
    lives = window.lives
    order = np.argsort(lives.alloc, kind="stable")
    order = order[lives.alloc[order] >= 0]
    is_made = made[order]
    rows = order[is_made]
    if not len(rows):
        return rows, rows
    starts = is_made & ~np.concatenate([[False], is_made[:-1]])
    call = np.cumsum(starts)[is_made] - 1
    largest = np.zeros(call[-1] + 1, dtype=np.int64)
    np.maximum.at(largest, call, lives.requested[rows])
    is_full = lives.requested[rows] >= _LEAST_OF_LARGEST * largest[call]
    return rows[is_full], call[is_full]
