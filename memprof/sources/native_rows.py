"""Rows that the native part wrote: their columns, and the labels of where they were made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from memprof.cpython.signal_errors import guarded_errors
from memprof.sources.label_rows import LabelRows
from memprof.sources.loop.loop_watch import LoopWatch, annotation_changes
from memprof.sources.loop.thread_state import NO_TASK, BackwardPass, ThreadPosition
from memprof.sources.protocol import Interner
from memprof.trace import NOT_RECORDED, Column, Phase

if TYPE_CHECKING:  # a millisecond of a recording's beginning
    import numpy.typing as npt

__all__ = ["ROW", "RowAlarm", "RowLabels", "Rows"]

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
_MARK = np.dtype([("time_ns", "i8"), ("label", "i8")])
"""As `Mark` in ``memprof/native/module.cpp``."""
_IN_GRAPH = -2
"""Instead of a graph task: no place of the program's is within the backward pass under way."""

Rows: TypeAlias = "npt.NDArray[Any]"
Ints: TypeAlias = "npt.NDArray[np.int64]"


class _Places:
    """Tells each thread's place to the native part, once for all sources that read its rows."""

    def __init__(self, loop_watch: LoopWatch, native: Any) -> None:
        self._loop_watch = loop_watch
        self._native = native
        self._tell: Callable[[int, int], int] = native.label
        self._hooks: ExitStack | None = None
        self._followers: tuple[RowLabels, ...] = ()

    def follow(self, labels: RowLabels) -> None:
        """Have ``labels`` know the places of the loop from now on; the calling thread is its."""
        self.hand_out_marks()  # earlier ones are not its own
        self._followers = (*self._followers, labels)
        if self._hooks is None:
            self._native.forget_labels()  # of an earlier window, or of another recording
            self._hooks = self._install_hooks()
        self.step_began()

    def leave(self, labels: RowLabels) -> None:
        """No more for these; without any the hooks are taken away. Safe to call twice."""
        self._followers = tuple(one for one in self._followers if one is not labels)
        if not self._followers and self._hooks is not None:
            hooks, self._hooks = self._hooks, None
            hooks.close()

    def step_began(self) -> None:
        """The calling thread is the one of the training loop."""
        self._native.is_loop()
        self.crossed()

    def hand_out_marks(self) -> None:
        """Give the times and labels of the loop's thread to all who follow it."""
        marks = np.frombuffer(self._native.take_marks(), _MARK)
        if len(marks):
            for labels in self._followers:
                labels.marks = np.concatenate([labels.marks, marks])

    def crossed(self) -> None:
        """The calling thread is somewhere else from now on."""
        self.is_at(None)

    def is_at(self, place: ThreadPosition | None, _output: Any = None) -> None:
        """The calling thread is there from now on; None: the loop watch knows where."""
        try:
            place = place or self._loop_watch.place()
            self._tell(place.row, _IN_GRAPH if type(place) is BackwardPass else place.task)
        except guarded_errors() as error:  # a missing label, not a broken job
            for labels in self._followers:
                labels.failure = f"a boundary was missed: {type(error).__name__}: {error}"

    def _install_hooks(self) -> ExitStack:
        hooks, loop_watch = ExitStack(), self._loop_watch
        loop_watch.watch_modules()
        hooks.callback(loop_watch.unwatch_modules)
        for changes in (loop_watch.crossings, annotation_changes):
            changes.append(self.crossed)
            hooks.callback(changes.remove, self.crossed)
        for calls in (loop_watch.on_entry, loop_watch.on_exit):
            calls.append(self.is_at)
            hooks.callback(calls.remove, self.is_at)
        loop_watch.follow_natively(self._native)
        hooks.callback(loop_watch.unfollow_natively)
        return hooks


_places: WeakValueDictionary[int, _Places] = WeakValueDictionary()
"""By the ``id`` of their loop watch, which they keep alive."""


class RowAlarm:
    """Wakes who waits at it when the native part has written many rows, of any device."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._calls = native.wait_for_rows(-1, 0.0)

    def wait(self, longest_s: float) -> None:
        """Return when many more rows wait, when `wake` was called, or after so long."""
        self._calls = self._native.wait_for_rows(self._calls, longest_s)

    def wake(self) -> None:
        """Wake every one that waits, in all threads."""
        self._native.wake()


class RowLabels:
    """Tells each thread's place to the native part as it changes, and gives rows their labels.

    A row carries what its own thread said last, and during a backward pass the graph's node that
    ran; so labels hold for every thread, and for autograd's own.
    """

    def __init__(self, interner: Interner, loop_watch: LoopWatch, native: Any) -> None:
        """``native`` is the module that `memprof.native.load` gives."""
        self.failure = ""
        self._interner = interner
        self._loop_watch = loop_watch
        self._rows = LabelRows(interner)
        self._places = _places.get(id(loop_watch)) or _Places(loop_watch, native)
        _places[id(loop_watch)] = self._places
        self.marks = np.zeros(0, _MARK)
        """Times and labels of the loop's thread, for threads that say nothing themselves."""
        self._past_nodes: set[int] = set()
        """Epochs in which a backward pass has run."""
        self._turns: list[tuple[int, int]] = []
        """When a loop came round that ended a step, and that step."""

    def start(self) -> None:
        """Follow the places of every thread from now on; the calling one is the loop's."""
        self.stop()
        self.marks = self.marks[:0]
        self._past_nodes = set()
        self._places.follow(self)

    def stop(self) -> None:
        """Follow nothing any more; safe to call twice."""
        self._places.leave(self)

    def step_began(self) -> None:
        """Another step from now on: the calling thread is the one of the training loop."""
        self._places.step_began()

    def crossed(self) -> None:
        """The calling thread is somewhere else from now on."""
        self._places.crossed()

    def turned(self, time_ns: int) -> None:
        """The step under way was over then: what was allocated since belongs to the next one."""
        self._turns.append((time_ns, self._loop_watch.step))

    def of(self, rows: Rows) -> Column:
        """The label of each row."""
        label = rows["label"].astype(np.int64)
        label = self._of_silent(rows, label)
        label = self._of_turns(rows, label)
        in_graph = rows["task"] != NO_TASK
        label = self._after_backward(rows, label, in_graph)
        if bool(in_graph.any()):
            label[in_graph] = self._in_graph(rows[in_graph], label[in_graph])
        labels: Column = label.astype(np.int32)
        return labels

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
        self._places.hand_out_marks()
        marks = self.marks
        if silent.any() and len(marks):
            at = np.searchsorted(marks["time_ns"], rows["time_ns"][silent], side="right") - 1
            loop = marks["label"][np.maximum(at, 0)]
            is_python = rows["stack"][silent] != 0
            beside = self._move(loop, Phase.OTHER)
            label[silent] = np.where(is_python, beside, loop)
        self.marks = marks[-1:].copy()
        return label

    def _of_turns(self, rows: Rows, label: Ints) -> Ints:
        """A turn is noticed behind an operator, by what that has allocated."""
        turns, self._turns = self._turns, []
        for time_ns, step in turns:
            late = np.flatnonzero(rows["time_ns"] >= time_ns)
            late = late[self._rows.steps(label[late]) == step]
            for row in np.unique(label[late]).tolist():
                at = self._rows.of(row)
                moved = self._interner.label(at.step + 1, at.phase, at.module, at.annotation)
                label[late[label[late] == row]] = moved
        return label

    def _after_backward(self, rows: Rows, label: Ints, in_graph: npt.NDArray[np.bool_]) -> Ints:
        """What follows a backward pass in the same place is no part of the loss any more."""
        epochs = rows["epoch"]
        where = np.flatnonzero(in_graph)[::-1]  # so that the first of each epoch stays
        first = dict(zip(epochs[where].tolist(), where.tolist(), strict=True))
        first |= dict.fromkeys(self._past_nodes, -1)
        if not first:
            return label
        start_times = np.asarray(list(first), dtype=np.int64)
        order = np.argsort(start_times)
        start_times, start = (
            start_times[order],
            np.asarray(list(first.values()), dtype=np.int64)[order],
        )
        at = np.minimum(np.searchsorted(start_times, epochs), len(start_times) - 1)
        after = (start_times[at] == epochs) & (np.arange(len(rows)) > start[at]) & ~in_graph
        after &= self._rows.phases(label) == Phase.FORWARD
        after[after] = self._outside_modules(label[after])
        label[after] = self._move(label[after], Phase.OTHER)
        self._past_nodes = {int(start_times[-1])}
        return label

    def _in_graph(self, rows: Rows, label: Ints) -> Ints:
        """Of the node that ran; one that accumulates gradients belongs to the one before it."""
        in_graph = np.flatnonzero(rows["node"] >= 0)
        node = rows["node"].copy()
        if len(in_graph):
            last = in_graph[
                np.maximum(np.searchsorted(in_graph, np.arange(len(rows)), "right") - 1, 0)
            ]
            same = (rows["task"][last] == rows["task"]) & (last <= np.arange(len(rows)))
            node = np.where(same, rows["node"][last], NOT_RECORDED)
        numbers, which = np.unique(node, return_inverse=True)
        modules = [self._loop_watch.module_of_node(number) for number in numbers.tolist()]
        names = list(dict.fromkeys(modules))
        place = {name: at for at, name in enumerate(names)}
        module = np.asarray([place[name] for name in modules], dtype=np.int64)
        return self._move(label, Phase.BACKWARD, names, module[which.reshape(-1)])

    def _move(
        self, label: Ints, phase: Phase, modules: Sequence[str] = ("",), module: Ints | int = 0
    ) -> Ints:
        """The labels of the same step and annotation, with another phase and module.

        ``module`` has for each label its row in ``modules``.
        """
        pairs, which = np.unique(label * len(modules) + module, return_inverse=True)
        moved = []
        for pair in pairs.tolist():
            row, name = divmod(pair, len(modules))
            at = self._rows.of(row)
            moved.append(self._interner.label(at.step, phase, modules[name], at.annotation))
        labels: Ints = np.asarray(moved, dtype=np.int64)[which.reshape(-1)]
        return labels

    def _outside_modules(self, label: Ints) -> npt.NDArray[np.bool_]:
        outside: npt.NDArray[np.bool_] = self._rows.modules(label) == 0
        return outside
