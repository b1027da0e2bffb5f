"""What a failure between windows held, told by the recorded step that is like it.

Stacks, labels, categories and the request are put where torch says nothing of them; which step is
like it, and which block is which, is found next door.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from memprof.analysis.likeness import SMALL, Likeness, segment_of
from memprof.trace import (
    EMPTY,
    NOT_RECORDED,
    Blocks,
    BlockState,
    Column,
    Label,
    SegmentKind,
    Tables,
    Trace,
)

__all__ = ["told_by"]

Ints = npt.NDArray[np.int64]


def told_by(alike: Likeness, failed: Trace, event: int) -> Trace:
    """The failure with stacks, labels and categories of the recorded step, where it has none.

    What the step itself made counts as made in the step that failed. The request is the one that
    was recorded, where torch would have wanted the same segment for it.
    """
    names = _Relabelled(failed.tables, failed.label(int(failed.events.label[event])))
    blocks = _with_kept(alike, names, _with_the_step(alike, names, alike.state.blocks))
    state = replace(alike.state, blocks=blocks)
    trace = alike.moment.seen.trace
    label, size = failed.events.label.copy(), failed.events.size.copy()
    label[event] = names.of_request(int(trace.events.label[alike.moment.event]))
    size[event] = _asked(alike, int(size[event]))
    return replace(
        failed,
        events=replace(failed.events, label=label, size=size),
        tables=names.tables(),
        start=state if failed.start is not None else None,
        end=state if failed.end is not None else None,
    )


def _asked(alike: Likeness, told: int) -> int:
    """The recorded request, unless a free block would have served it or it is another one."""
    blocks, segments = alike.state.blocks, alike.state.segments
    kind = SegmentKind.SMALL if told <= SMALL else SegmentKind.LARGE
    serving = np.isin(segments.kind, (kind, SegmentKind.UNKNOWN))[blocks.segment]
    free = blocks.size[serving & (blocks.state == BlockState.INACTIVE)].max(initial=0)
    wanted = segment_of(np.array([alike.asked, told]))
    return alike.asked if wanted[0] == wanted[1] and alike.asked > free else told


def _with_the_step(alike: Likeness, names: _Relabelled, blocks: Blocks) -> Blocks:
    rows = np.flatnonzero(alike.block >= 0)
    of, lives = alike.block[rows], alike.moment.seen.line.lives
    own = alike.moment.made_in[rows] == alike.step
    labels = np.where(own, names.moved(lives.label[rows]), lives.label[rows])
    return _told(blocks, of, lives.stack[rows], labels, alike.moment.seen.owners.category.of[rows])


def _with_kept(alike: Likeness, names: _Relabelled, blocks: Blocks) -> Blocks:
    """With what lines left behind since; in which steps is not known."""
    of = np.flatnonzero((alike.kept >= 0) & (blocks.stack == EMPTY))
    rows, lives = alike.kept[of], alike.moment.seen.line.lives
    category = alike.moment.seen.owners.category.of[rows]
    return _told(blocks, of, lives.stack[rows], names.undated(lives.label[rows]), category)


def _told(blocks: Blocks, rows: Ints, stack: Column, label: Column, category: Column) -> Blocks:
    return replace(
        blocks,
        stack=_filled(blocks.stack, rows, stack),
        label=_filled(blocks.label, rows, label),
        category=_filled(blocks.category, rows, category),
    )


def _filled(column: Column, rows: Ints, values: Ints) -> Column:
    """The column with values in those of the rows that have none."""
    filled: Column = column.copy()
    empty = filled[rows] == EMPTY
    filled[rows[empty]] = values[empty]
    return filled


class _Relabelled:
    """Labels of the recorded step as they are in the one that failed."""

    def __init__(self, tables: Tables, request: Label) -> None:
        self._tables, self._request = tables, request
        self._labels = list(tables.labels)
        self._dated: dict[tuple[int, int], int] = {}

    def moved(self, rows: Column) -> Ints:
        """The rows for labels of the failed step."""
        return np.array([self._row(row, self._request.step) for row in rows.tolist()], np.int64)

    def undated(self, rows: Column) -> Ints:
        """The rows for labels that name no step."""
        return np.array([self._row(row, NOT_RECORDED) for row in rows.tolist()], np.int64)

    def _row(self, row: int, step: int) -> int:
        if (row, step) not in self._dated:
            self._dated[row, step] = len(self._labels)
            self._labels.append(self._labels[row]._replace(step=step))
        return self._dated[row, step]

    def of_request(self, row: int) -> int:
        """For the failed request, which knows no module between windows: that of the other."""
        label, own = self._labels[row], self._request
        phase = own.phase if own.module else label.phase
        self._labels.append(own._replace(phase=phase, module=own.module or label.module))
        return len(self._labels) - 1

    def tables(self) -> Tables:
        """All labels."""
        return replace(self._tables, labels=tuple(self._labels))
