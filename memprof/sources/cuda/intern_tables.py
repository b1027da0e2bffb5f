"""Rows of a snapshot's own tables as rows of the run's; nothing of torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from memprof.sources.cuda.backward_stacks import BackwardStacks
from memprof.sources.cuda.label_timeline import LabelTimeline
from memprof.sources.cuda.thread_entry_point import entry_of
from memprof.sources.protocol import Interner
from memprof.sources.stacks import is_own
from memprof.trace import (
    EMPTY,
    NOT_RECORDED,
    Action,
    Blocks,
    BlockState,
    Column,
    Events,
    Label,
    Phase,
    State,
    Tables,
)

__all__ = ["InternedTables", "is_machinery", "with_stacks_of"]

_MACHINERY = re.compile(
    r"[/\\]torch[/\\](?:_ops|_compile|_dynamo[/\\]eval_frame|_native[/\\].*)\.py$"
)
"""Where torch calls modes, and kernels of its own that are written in Python (from 2.14 on)."""


def is_machinery(filename: str) -> bool:
    """Whether a file's functions run in threads of autograd's too, which have no other frames."""
    return _MACHINERY.search(filename) is not None


class InternedTables:
    """Rows of a snapshot's own tables as rows of the run's."""

    def __init__(
        self, interner: Interner, tables: Tables, labels: list[Label] | None = None
    ) -> None:
        """Intern everything that the snapshot's tables hold, but for frames of memprof.

        What has no other frame has no stack of the program's: it came from a thread of autograd's.
        A dispatch mode that is on is called there too, with torch's frames around it, and so are
        torch's own kernels that are written in Python.
        ``labels`` are the run's as far as they were looked at before, and grow here.
        """
        self._labels_so_far: list[Label] = [] if labels is None else labels
        own = {row for row, frame in enumerate(tables.frames) if is_own(frame.filename)}
        stacks = tables.stacks
        if own:
            stacks = tuple(tuple(row for row in stack if row not in own) for stack in stacks)
        torchs = {row for row, frame in enumerate(tables.frames) if is_machinery(frame.filename)}
        if torchs:
            stacks = tuple(() if torchs.issuperset(stack) else stack for stack in stacks)
        frames = [
            EMPTY if row in own else interner.frame(f.name, f.filename, f.line)
            for row, f in enumerate(tables.frames)
        ]
        self._stacks = np.asarray(
            [interner.stack(tuple(frames[i] for i in stack)) for stack in stacks], np.int32
        )
        self._interner = interner
        functions = [(f.filename, f.name) for f in tables.frames]
        self._entries = [entry_of([functions[i] for i in stack]) for stack in stacks]
        self._metadata = [label.annotation for label in tables.labels]
        # The last entry stands for NOT_RECORDED (-1).
        self._pools = np.asarray([*map(interner.pool, tables.pools), NOT_RECORDED], np.int32)

    def events(
        self,
        events: Events,
        marks: LabelTimeline,
        device: int,
        passes: BackwardStacks | None = None,
    ) -> Events:
        """Labels are told by the time; metadata that the user gave to torch is their annotation.

        With ``passes`` every thread that runs Python has a stack: it tells the program's threads
        from each other, and what has none came from autograd's, also before the pass reaches the
        first module. It is given that of the line that asked for the pass.
        """
        own_labels = marks.at(events.time_us, device)
        stacks = self._stacks[events.stack]
        if passes is not None:
            ours, theirs = marks.apart()
            beside = np.asarray([marks.is_beside(e) for e in self._entries], np.bool_)[events.stack]
            if theirs.rows:
                own_labels = ours.at(events.time_us, device)
            if beside.any():
                own_thread = theirs.at(events.time_us[beside], device)
                own_labels[beside] = self._beside(own_labels[beside], own_thread)
            # Where no graph is recorded it came from another thread, such as a decoder's.
            bare = (stacks == EMPTY) & ours.had_gradients(events.time_us)
            own_labels[bare] = self._in_backward(own_labels[bare])
            stacks = passes.fill(stacks, events.time_us, bare)
        labelled: Events = _with(
            events,
            stack=stacks,
            label=self._labels(events.label, own_labels),
            pool=self._pools[events.pool],
        )
        return labelled

    def _labels(self, metadata: Column, own_labels: Column) -> Column:
        if not metadata.any():
            return own_labels
        return _by_pair(
            metadata,
            own_labels,
            lambda text, row: (
                self._annotate(self._label(row), self._metadata[text])
                if self._metadata[text]
                else row
            ),
        )

    def _label(self, row: int) -> Label:
        if row >= len(self._labels_so_far):
            self._labels_so_far += self._interner.labels(len(self._labels_so_far))
        return self._labels_so_far[row]

    def _beside(self, loop: Column, own: Column) -> Column:
        """What a thread beside the loop's makes is not the module's that the loop is in."""

        def label(at: int, row: int) -> int:
            step = self._label(at).step
            is_now = row != EMPTY and self._label(row).step == step
            return row if is_now else self._interner.label(step, Phase.OTHER, "", "")

        return _by_pair(loop, own, label)

    def _in_backward(self, rows: Column) -> Column:
        def label(row: int) -> int:
            at = self._label(row)
            phase = Phase.BACKWARD if at.phase is Phase.FORWARD else at.phase
            return self._interner.label(at.step, phase, at.module, at.annotation)

        return _by_value(rows, label)

    def _annotate(self, label: Label, text: str) -> int:
        annotation = f"{label.annotation}/{text}" if label.annotation else text
        return self._interner.label(label.step, label.phase, label.module, annotation)

    def state(self, state: State) -> State:
        """The same state in the run's rows."""
        segments = _with(
            state.segments,
            stack=self._stacks[state.segments.stack],
            pool=self._pools[state.segments.pool],
        )
        blocks = _with(state.blocks, stack=self._stacks[state.blocks.stack])
        return State(segments=segments, blocks=blocks)


def with_stacks_of(blocks: Blocks, events: Events) -> Events:
    """Allocations without a stack get that of their block, if it lives and has one.

    (With ``context="state"`` torch keeps stacks at the blocks only.)
    """
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    newest = dict(zip(events.address[allocs].tolist(), allocs.tolist(), strict=True))
    stack = events.stack.copy()
    for row in np.flatnonzero((blocks.stack != EMPTY) & (blocks.state != BlockState.INACTIVE)):
        event = newest.get(int(blocks.address[row]))
        if event is not None and stack[event] == EMPTY:
            stack[event] = blocks.stack[row]
    result: Events = _with(events, stack=stack)
    return result


def _by_value(rows: Column, row_of: Callable[[int], int]) -> Column:
    """What a function makes of each value, asked once for each that there is."""
    values, at = np.unique(rows, return_inverse=True)
    return np.asarray([row_of(value) for value in values.tolist()], dtype=np.int32)[at.reshape(-1)]


def _by_pair(first: Column, second: Column, row_of: Callable[[int, int], int]) -> Column:
    """The same of pairs of rows: as one number each, which sorts ten times as fast."""
    pairs = (first.astype(np.int64) << 32) | second
    return _by_value(pairs, lambda pair: row_of(pair >> 32, pair & 0xFFFFFFFF))


def _with(columns: Any, **changed: Column) -> Any:
    columns_now = {name: getattr(columns, name) for name in columns.names()}
    return type(columns)(**{**columns_now, **changed})
