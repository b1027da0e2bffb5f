"""When labels change in a window, for recorders that keep times but no labels of ours (CUDA's)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from memprof.cpython.signal_errors import guarded_errors
from memprof.sources.autograd import grad_fn_of
from memprof.sources.cuda.thread_entry_point import NO_ENTRY, Entry, entry_here
from memprof.sources.graph_nodes import most_nodes, note_nodes
from memprof.sources.loop.loop_watch import LoopWatch, annotation_changes
from memprof.sources.loop.thread_state import ThreadPosition
from memprof.trace import EMPTY, Column

__all__ = ["LabelRecorder", "LabelTimeline"]

_MARKED = "memprof"
"""Key in a graph node's metadata: the innermost module has marked it already."""


_EVERY_DEVICE = -1


Mark: TypeAlias = "tuple[int, int, int, Entry, bool]"
"""Microseconds since the Unix epoch, the clock of torch's recorder; row of a label; device of the
thread that made it, -1 for the training loop's; what that thread runs; whether it recorded a graph
then, without which no backward pass follows. A plain tuple, as one is made at every boundary."""


@dataclass(slots=True)
class LabelTimeline:
    """Labels and the times from which they hold.

    Told by the time, events of the backward pass get their labels too, though other threads make
    them. Threads that run side by side (replicas, autograd's own) work on a device each, so theirs
    hold for that one; threads that the program starts beside the loop are told from it by what they
    run.
    """

    rows: list[Mark] = field(default_factory=list)
    loop: set[Entry] = field(default_factory=lambda: {NO_ENTRY})
    """What the threads run in which steps ended."""

    def add(
        self,
        time_us: int,
        label: int,
        device: int = _EVERY_DEVICE,
        entry: Entry = NO_ENTRY,
        *,
        with_gradients: bool = True,
    ) -> None:
        """From this time on the label holds."""
        self.rows.append((time_us, label, device, entry, with_gradients))

    def forget_before(self, time_us: int) -> None:
        """Drop what no event from this time on can be labelled by.

        Of each thread the last mark before it stays. Other threads may add marks meanwhile.
        """
        rows = self.rows[:]
        last = {(row[2], row[3]): at for at, row in enumerate(rows) if row[0] < time_us}
        needed_rows = {*last.values(), *(at for at, row in enumerate(rows) if row[0] >= time_us)}
        self.rows[: len(rows)] = [rows[at] for at in sorted(needed_rows)]

    def is_beside(self, entry: Entry) -> bool:
        """Whether a thread runs beside the loop's: the program's own, and not autograd's."""
        return entry not in self.loop

    def apart(self) -> tuple[LabelTimeline, LabelTimeline]:
        """Those of the loop's thread and of autograd's, and those of threads beside it."""
        rows, loop = self.rows[:], self.loop
        ours = [row for row in rows if row[3] in loop]
        if len(ours) == len(rows):
            return LabelTimeline(rows, loop), LabelTimeline([], loop)
        return LabelTimeline(ours, loop), LabelTimeline(
            [row for row in rows if row[3] not in loop], loop
        )

    def had_gradients(self, time_us: Column) -> Column:
        """Whether the thread of the loop recorded a graph at each time; before a mark it did."""
        rows = [(row[0], row[4]) for row in self.rows if row[2] == _EVERY_DEVICE]
        rows.sort(key=itemgetter(0))
        times = np.asarray([time for time, _ in rows], dtype=np.int64)
        states = np.asarray([True, *(state for _, state in rows)], dtype=np.bool_)
        states_then: Column = states[np.searchsorted(times, time_us, side="right")]
        return states_then

    def at(self, time_us: Column, device: int = 0) -> Column:
        """The label at each time on a device; the empty one before the first mark.

        After a mark of the device's own thread that one holds, up to the loop's next mark; where
        its threads made none, the last of any thread.
        """
        starts = [row[:3] for row in self.rows]
        columns = np.asarray(starts, dtype=np.int64).reshape(-1, 3)
        times, marked, marks = columns[np.argsort(columns[:, 0], kind="stable")].T
        labels = np.append(EMPTY, marked).astype(np.int32)
        by_time: Column = labels[np.searchsorted(times, time_us, side="right")]
        own = np.flatnonzero((marks == device) | (marks == _EVERY_DEVICE))
        if len(own) == len(marks):
            return by_time
        last = np.searchsorted(times[own], time_us, side="right") - 1
        rows = own[np.maximum(last, 0)] if len(own) else np.zeros(len(last), dtype=np.intp)
        by_own = (last >= 0) & (marks[rows] == device)
        return np.asarray(np.where(by_own, labels[rows + 1], by_time))


class LabelRecorder:
    """Marks every boundary that the job crosses in a window: modules, both ways, and optimizers.

    The loop watch calls it when the label of the moment has changed.
    The backward pass is marked from the graph: each module's output begins the module's part of it.
    """

    def __init__(
        self,
        loop_watch: LoopWatch,
        passing: Callable[[int], None] | None = None,
        device: Callable[[], int] | None = None,
    ) -> None:
        """Nothing is hooked before `start`.

        ``passing`` is told the time of each mark, ``device`` tells the calling thread's device.
        """
        import torch

        self.marks = LabelTimeline()
        self._device = device or (lambda: _EVERY_DEVICE)
        self._loop = 0
        self._loop_entry = NO_ENTRY
        self._own = threading.local()
        self._passing = passing or (lambda _: None)
        self._loop_watch = loop_watch
        self._hooks: ExitStack | None = None
        self._task = -1
        self._has_gradients = torch.is_grad_enabled
        self._is_compiling = torch.compiler.is_compiling
        self._graph_task = torch._C._current_graph_task_id
        self._queue_callback = torch.autograd.Variable._execution_engine.queue_callback
        self._tensor = torch.Tensor
        self._plain = (torch.Tensor, torch.nn.Parameter)

    def start(self) -> None:
        """Begin with no marks but one for this moment."""
        self.stop()
        self.marks = LabelTimeline()
        self._own = threading.local()
        self._in_loop()  # a window opens where steps end
        self._loop_watch.watch_modules()
        self._hooks = ExitStack()
        self._hooks.callback(self._loop_watch.unwatch_modules)
        loop_watch = self._loop_watch
        # Not hooks on optimizers: torch goes through them while a step's end closes a window.
        loop_watch.on_entry.append(self._module_began)
        self._hooks.callback(loop_watch.on_entry.remove, self._module_began)
        for changes in (loop_watch.crossings, annotation_changes):
            changes.append(self._guarded_mark)
            self._hooks.callback(changes.remove, self._guarded_mark)
        loop_watch.on_exit.append(self._module_ended)
        self._hooks.callback(loop_watch.on_exit.remove, self._module_ended)
        self.mark()

    def stop(self) -> None:
        """Take the hooks away; those on nodes of a living graph do nothing any more."""
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            hooks.close()

    def step_began(self) -> None:
        """Steps end in the calling thread: it is the training loop's, and in no step's middle."""
        if self._hooks is not None and threading.get_ident() != self._loop:
            self._in_loop()
        self.mark()

    def mark(self) -> None:
        """The calling thread's label holds from now on."""
        if self._hooks is not None and not self._is_compiling():
            self._mark(self._loop_watch.place().row)

    def _mark(self, label: int) -> None:
        now_us = time.time_ns() // 1000
        if threading.get_ident() == self._loop:
            device, entry = _EVERY_DEVICE, self._loop_entry
        else:
            device, entry = self._device(), self._entry()
        self.marks.rows.append((now_us, label, device, entry, self._has_gradients()))
        self._passing(now_us)

    def _in_loop(self) -> None:
        self._loop_entry = self._entry()
        self._loop = threading.get_ident()
        self.marks.loop.add(self._loop_entry)

    def _entry(self) -> Entry:
        """What the calling thread runs, looked up once a window."""
        entry: Entry | None = getattr(self._own, "entry", None)
        if entry is None:
            entry = self._own.entry = entry_here()
        return entry

    def _module_began(self, place: ThreadPosition) -> None:
        """Called by hooks on modules, which torch.compile does not see: nothing is traced here."""
        if self._hooks is None:
            return
        try:
            self._mark(place.row)
        except guarded_errors():  # a missing mark is a wrong label, not a broken job
            self.stop()

    def _module_ended(self, place: ThreadPosition, output: Any) -> None:
        if self._hooks is None:
            return
        try:
            self._mark(place.row)
            if type(output) is self._tensor:  # as nearly always: no code of the program can run
                self._mark_backward(output)
            elif output is not None:
                self._watch_backward(output)
        except guarded_errors():  # as above
            self.stop()

    def _watch_backward(self, output: Any) -> None:
        outputs = output if isinstance(output, (list, tuple)) else (output,)
        self._loop_watch.guard.each(self._mark_backward, outputs)

    def _mark_backward(self, one: Any) -> None:
        is_tensor = type(one) in self._plain or issubclass(type(one), self._plain[0])
        node = grad_fn_of(one) if is_tensor and most_nodes(1) else None
        if node is not None:
            note_nodes(1)
            metadata = node.metadata
            if _MARKED not in metadata:
                metadata[_MARKED] = True
                node.register_prehook(self._backward_reached)

    def _backward_reached(self, *_: Any) -> None:
        """On autograd's thread: the gradient of a module's output is there."""
        try:
            self.mark()
            task = self._graph_task()
            if task != self._task and self._hooks is not None:
                self._task = task
                self._queue_callback(self._guarded_mark)
        except guarded_errors():  # as in `_guard`, which costs half a microsecond
            self.stop()

    def _guarded_mark(self) -> None:
        self._guard(self.mark)

    def _guard(self, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except guarded_errors():  # a missing mark is a wrong label, not a broken job
            self.stop()
