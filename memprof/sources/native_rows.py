"""Rows that the native part wrote: their columns, and the labels of where they were made."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from memprof.sources.boundaries import Boundaries, annotation_changes
from memprof.sources.labels import LabelRows
from memprof.sources.protocol import Interner
from memprof.sources.threadstate import NO_TASK, BackwardPass
from memprof.trace import NOT_RECORDED, Column, Phase

__all__ = ["ROW", "RowLabels", "Rows"]

ROW = np.dtype(
    [
        ("time_ns", "i8"),
        ("address", "u8"),
        ("size", "i8"),
        ("node", "i8"),
        ("stream", "u8"),
        ("action", "i4"),
        ("stack", "i4"),
        ("label", "i4"),
        ("task", "i4"),
        ("epoch", "i4"),
        ("thread", "i4"),
        ("device", "i4"),
        ("pool", "i4"),
        ("metadata", "i4"),
        ("unused", "i4"),
    ]
)
"""As `Row` in ``memprof/native/rows.h``, where each column is explained."""
_IN_GRAPH = -2
"""Instead of a graph task: no place of the program's is within the backward pass under way."""

Rows = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


class RowLabels:
    """Tells each thread's place to the native part as it changes, and gives rows their labels.

    A row carries what its own thread said last, and during a backward pass the graph's node that
    ran; so labels hold for every thread, and for autograd's own.
    """

    def __init__(
        self, interner: Interner, boundaries: Boundaries, tell: Callable[[int, int], int]
    ) -> None:
        """``tell`` is the native part's ``label``."""
        self.failure = ""
        self._interner = interner
        self._boundaries = boundaries
        self._tell = tell
        self._rows = LabelRows(interner)
        self._hooks: ExitStack | None = None
        self._loop_ident = 0
        self._marks: tuple[list[int], list[int]] = ([], [])
        """Times and labels of the loop's thread, for threads that say nothing themselves."""
        self._passed: set[int] = set()
        """Epochs in which a backward pass has run."""

    def start(self) -> None:
        """Follow the places of every thread from now on; the calling one is the loop's."""
        self.stop()
        self._marks = ([], [])
        self._passed = set()
        self._boundaries.watch_modules()
        self._hooks = ExitStack()
        self._hooks.callback(self._boundaries.unwatch_modules)
        boundaries = self._boundaries
        for changes in (boundaries.on_entry, boundaries.crossings, annotation_changes):
            changes.append(self.crossed)
            self._hooks.callback(changes.remove, self.crossed)
        boundaries.on_exit.append(self._left)
        self._hooks.callback(boundaries.on_exit.remove, self._left)
        self.step_began()

    def stop(self) -> None:
        """Take the hooks away; safe to call twice."""
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            hooks.close()

    def step_began(self) -> None:
        """Another step from now on: the calling thread is the one of the training loop."""
        self._loop_ident = threading.get_ident()
        self.crossed()

    def crossed(self) -> None:
        """The calling thread is somewhere else from now on."""
        try:
            place = self._boundaries.place()
            self._tell(place.row, _IN_GRAPH if type(place) is BackwardPass else place.task)
            if threading.get_ident() == self._loop_ident:
                self._marks[0].append(time.time_ns())
                self._marks[1].append(place.row)
        except Exception as error:  # noqa: BLE001 - a missing label, not a broken job
            self.failure = f"a boundary was missed: {type(error).__name__}: {error}"

    def _left(self, _output: Any) -> None:
        self.crossed()

    def of(self, rows: Rows) -> Column:
        """The label of each row."""
        label = rows["label"].astype(np.int64)
        label = self._of_silent(rows, label)
        in_graph = rows["task"] != NO_TASK
        label = self._after_backward(rows, label, in_graph)
        if bool(in_graph.any()):
            label[in_graph] = self._in_graph(rows[in_graph], label[in_graph])
        found: Column = label.astype(np.int32)
        return found

    def annotated(self, label: Column, texts: Sequence[str]) -> Column:
        """The labels with what the program gave to torch as their annotation, where it did."""
        annotated: Column = label.copy()
        for row in np.flatnonzero(np.asarray([bool(text) for text in texts])).tolist():
            at = self._rows.of(int(label[row]))
            annotated[row] = self._interner.label(at.step, at.phase, at.module, texts[row])
        return annotated

    def _of_silent(self, rows: Rows, label: Ints) -> Ints:
        """Of threads that crossed no boundary: the loop's step, and without a stack its place."""
        silent = rows["epoch"] == 0
        times, labels = self._marks
        if silent.any() and times:
            at = np.searchsorted(np.asarray(times), rows["time_ns"][silent], side="right") - 1
            loop = np.asarray(labels, dtype=np.int64)[np.maximum(at, 0)]
            is_python = rows["stack"][silent] != 0
            beside = self._moved(loop, Phase.OTHER, [""] * len(loop))
            label[silent] = np.where(is_python, beside, loop)
        self._marks = (times[-1:], labels[-1:])
        return label

    def _after_backward(self, rows: Rows, label: Ints, in_graph: npt.NDArray[np.bool_]) -> Ints:
        """What follows a backward pass in the same place is no part of the loss any more."""
        epochs = rows["epoch"]
        where = np.flatnonzero(in_graph)[::-1]  # so that the first of each epoch stays
        first = dict(zip(epochs[where].tolist(), where.tolist(), strict=True))
        first |= dict.fromkeys(self._passed, -1)
        if not first:
            return label
        begun = np.asarray(list(first), dtype=np.int64)
        order = np.argsort(begun)
        begun, start = begun[order], np.asarray(list(first.values()), dtype=np.int64)[order]
        at = np.minimum(np.searchsorted(begun, epochs), len(begun) - 1)
        after = (begun[at] == epochs) & (np.arange(len(rows)) > start[at]) & ~in_graph
        after &= self._rows.phases(label) == Phase.FORWARD
        after &= np.asarray([not m for m in self._modules(label)], dtype=np.bool_)
        label[after] = self._moved(label[after], Phase.OTHER, [""] * int(after.sum()))
        self._passed = {int(begun[-1])}
        return label

    def _in_graph(self, rows: Rows, label: Ints) -> Ints:
        """Of the node that ran; one that accumulates gradients belongs to the one before it."""
        known = np.flatnonzero(rows["node"] >= 0)
        node = rows["node"].copy()
        if len(known):
            last = known[np.maximum(np.searchsorted(known, np.arange(len(rows)), "right") - 1, 0)]
            same = (rows["task"][last] == rows["task"]) & (last <= np.arange(len(rows)))
            node = np.where(same, rows["node"][last], NOT_RECORDED)
        numbers, which = np.unique(node, return_inverse=True)
        modules = [self._boundaries.module_of_node(number) for number in numbers.tolist()]
        return self._moved(label, Phase.BACKWARD, [modules[i] for i in which.reshape(-1).tolist()])

    def _moved(self, label: Ints, phase: Phase, modules: Sequence[str]) -> Ints:
        """The labels of the same step and annotation, with another phase and module."""
        moved: dict[tuple[int, str], int] = {}
        for key in set(zip(label.tolist(), modules, strict=True)):
            at = self._rows.of(key[0])
            moved[key] = self._interner.label(at.step, phase, key[1], at.annotation)
        pairs = zip(label.tolist(), modules, strict=True)
        return np.asarray([moved[pair] for pair in pairs], dtype=np.int64)

    def _modules(self, label: Ints) -> list[str]:
        rows, which = np.unique(label, return_inverse=True)
        modules = [self._rows.of(row).module for row in rows.tolist()]
        return [modules[i] for i in which.reshape(-1).tolist()]
