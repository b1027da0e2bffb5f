"""large-evaluation: a model evaluates many times as much at once as it learns from in a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.forward_passes import runs_within
from memprof.rules.large_tensor import large_tensor
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_TIMES = 4
"""A batch of an evaluation may be two or three times one of training for a good reason."""
_LEAST_SAVING = 0.3
"""Of the peak."""


@dataclass(frozen=True, slots=True, eq=False)
class LargeBatch(Match):
    """What one line of a module makes there, and where it learns."""

    evaluated_bytes: int = 0
    learned_bytes: int = 0


class LargeEvaluation(WasteRule[LargeBatch]):
    """`model(validation_images)` of the whole set, between steps of a batch each."""

    name = "large-evaluation"
    summary = "a model evaluates many times as much at once as a training step takes"
    fixes = ("smaller_batch",)
    yields_to = ("evaluation-graph",)
    is_general = True  # smaller batches take longer: what nobody needs comes first

    def matches(self, window: Window) -> Iterator[LargeBatch]:
        """The largest tensor, made by a module where it saves nothing, and in steps it saves less.

        Only where the peak would be much lower without those passes.
        """
        large = large_tensor(window)
        if large is None or not window.module[large.row]:
            return
        learning, rows = _by_passes(window)
        if large.row not in rows:
            return
        learned = _alike(window, large.row, learning)
        evaluated = int(window.lives.requested[large.row])
        if not learned or evaluated < _LEAST_TIMES * learned:
            return
        rows_given = window.batch_sizes
        if rows_given is not None and 0 < rows_given.evaluated <= rows_given.learned:
            return  # fewer rows, and larger: whole images, where crops are learned from
        saving = window.replayed(window.whole(rows))
        if window.share(saving.bytes) < _LEAST_SAVING:
            return
        there = rows[window.at_peak[rows]]
        yield LargeBatch(
            row=large.row,
            rows=there,
            nbytes=int(window.lives.size[there].sum()),
            saving=saving,
            evaluated_bytes=evaluated,
            learned_bytes=learned,
        )

    def title(self, match: LargeBatch) -> str:
        """Say how many times as much."""
        times = match.evaluated_bytes // match.learned_bytes
        return f"are made to evaluate {times} times as much at once as a step learns from"

    def advice(self, match: LargeBatch, case: Case) -> Iterator[Advice]:
        """Evaluate in batches as large as those of training."""
        why = (
            f"A line of the model makes {format_bytes(match.evaluated_bytes)} here, and "
            f"{format_bytes(match.learned_bytes)} in a training step: evaluate in batches of that "
            "size."
        )
        outside = (p for frame, p in case.frames if frame.name.rpartition(".")[2] != "forward")
        remains = match.learned_bytes / match.evaluated_bytes
        yield Advice("smaller_batch", why, next(outside, case.site), remains=remains)


def _by_passes(window: Window) -> tuple[Ints, Ints]:
    """What forward passes make that save something for a backward pass; and what others make."""
    in_module = np.array([bool(label.module) for label in window.trace.tables.labels])
    learning, others = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for first, last, _ in runs_within(window, in_module):
        low, high = np.searchsorted(window.lives.alloc, [first, last + 1])
        rows = np.arange(low, high)
        saves = (window.category[rows] == Category.ACTIVATION).any()
        (learning if saves else others).append(rows[~window.has_owner[rows]])
    return np.concatenate(learning), np.concatenate(others)


def _alike(window: Window, row: int, learning: Ints) -> int:
    """The most bytes of what the same module makes by the same line in passes that learn."""
    lives = window.lives
    alike = learning[window.module[learning] == window.module[row]]
    line = window.stack(row)[:1]
    stacks = [
        stack
        for stack in np.unique(lives.stack[alike]).tolist()
        if window.trace.stack(stack)[:1] == line
    ]
    alike = alike[np.isin(lives.stack[alike], stacks)]
    return int(lives.requested[alike].max(initial=0))


RULE = LargeEvaluation()
