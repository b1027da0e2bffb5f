"""Activations that are kept for gradients that nobody uses: where they begin, what they cost."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from memprof.trace import Frame, Phase
from memprof.views.peak_without import Cuts
from memprof.views.window import Ints, Window

__all__ = ["line_of_its_own", "without_graph"]


def without_graph(window: Window, rows: Ints, graph: Ints) -> Cuts:
    """No lifetimes in ``rows``, and activations that are gone when the next one is made.

    ``graph`` is in the order in which they were made.
    """
    removals = window.whole(rows)
    if not len(graph):
        return removals
    last = window.lives.alloc[graph[-1:]]
    brief = window.ended_at(graph, np.append(window.lives.alloc[graph[1:]], last))
    return Cuts(
        np.concatenate([removals.rows, brief.rows]),
        np.concatenate([removals.start, brief.start]),
        np.concatenate([removals.end, brief.end]),
    )


def line_of_its_own(window: Window, rows: Ints, modules: Iterable[int]) -> Frame | None:
    """The user's outermost line that all these tensors, and none of those modules', came by.

    Further in lie lines of the modules themselves, which others may be called by as well.
    """
    stacks = [window.trace.stack(stack) for stack in np.unique(window.lives.stack[rows]).tolist()]
    shared = [
        frames[0]
        for frames in zip(*(reversed(stack) for stack in stacks), strict=False)
        if len(set(frames)) == 1
    ]
    others = np.isin(window.module, list({*modules} - {0})) & (window.phase == Phase.FORWARD)
    of_others = {
        frame
        for stack in np.unique(window.lives.stack[others]).tolist()
        for frame in window.trace.stack(stack)
    }
    own = (frame for frame in window.user_frames(tuple(shared)) if frame not in of_others)
    return next(own, None)
