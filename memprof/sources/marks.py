"""When labels change in a window, for recorders that keep times but no labels of ours (CUDA's)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np

from memprof.sources.autograd import grad_fn_of
from memprof.sources.boundaries import Boundaries, annotation_changes
from memprof.sources.entries import NO_ENTRY, Entry, entry_here
from memprof.trace import EMPTY, Column

__all__ = ["MarkKeeper", "Marks"]

_MARKED = "memprof"
"""Key in a graph node's metadata: the innermost module has marked it already."""


_EVERY_DEVICE = -1


@dataclass(slots=True)
class Marks:
    """Labels and the times from which they hold.

    Times are microseconds since the Unix epoch, the clock of torch's recorder. Told by the time,
    events of the backward pass get their labels too, though other threads make them. Threads that
    run side by side (replicas, autograd's own) work on a device each, so theirs hold for that one;
    threads that the program starts beside the loop are told from it by what they run.
    """

    time_us: list[int] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    device: list[int] = field(default_factory=list)
    """The device of the thread that made the mark; -1 from the thread of the training loop."""
    entry: list[Entry] = field(default_factory=list)
    """What that thread runs."""
    with_gradients: list[bool] = field(default_factory=list)
    """Whether that thread recorded a graph then, without which no backward pass follows."""
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
        self.time_us.append(time_us)
        self.label.append(label)
        self.device.append(device)
        self.entry.append(entry)
        self.with_gradients.append(with_gradients)

    def forget_before(self, time_us: int) -> None:
        """Drop what no event from this time on can be labelled by.

        Of each thread the last mark before it stays. Other threads may add marks meanwhile: each
        list loses the same rows of its beginning in one piece.
        """
        count = min(map(len, self._columns()))
        times = self.time_us[:count]
        last = {
            (self.device[row], self.entry[row]): row for row in range(count) if times[row] < time_us
        }
        rows = sorted({*last.values(), *(row for row in range(count) if times[row] >= time_us)})
        for column in self._columns():
            column[:count] = [column[row] for row in rows]

    def _columns(self) -> tuple[list[Any], ...]:
        return self.time_us, self.label, self.device, self.entry, self.with_gradients

    def is_beside(self, entry: Entry) -> bool:
        """Whether a thread runs beside the loop's: the program's own, and not autograd's."""
        return entry not in self.loop

    def apart(self) -> tuple[Marks, Marks]:
        """Those of the loop's thread and of autograd's, and those of threads beside it."""
        beside = [self.is_beside(entry) for entry in self.entry]
        return self._chosen([not at for at in beside]), self._chosen(beside)

    def _chosen(self, chosen: Sequence[bool]) -> Marks:
        return Marks(
            list(compress(self.time_us, chosen)),
            list(compress(self.label, chosen)),
            list(compress(self.device, chosen)),
            list(compress(self.entry, chosen)),
            list(compress(self.with_gradients, chosen)),
            self.loop,
        )

    def had_gradients(self, time_us: Column) -> Column:
        """Whether the thread of the loop recorded a graph at each time; before a mark it did."""
        rows = [row for row, device in enumerate(self.device) if device == _EVERY_DEVICE]
        rows.sort(key=self.time_us.__getitem__)
        times = np.asarray([self.time_us[row] for row in rows], dtype=np.int64)
        states = np.asarray([True, *(self.with_gradients[row] for row in rows)], dtype=np.bool_)
        found: Column = states[np.searchsorted(times, time_us, side="right")]
        return found

    def at(self, time_us: Column, device: int = 0) -> Column:
        """The label at each time on a device; the empty one before the first mark.

        After a mark of the device's own thread that one holds, up to the loop's next mark; where
        its threads made none, the last of any thread.
        """
        order = np.argsort(np.asarray(self.time_us, dtype=np.int64), kind="stable")
        times = np.asarray(self.time_us, dtype=np.int64)[order]
        marks = np.asarray(self.device, dtype=np.int64)[order]
        labels = np.asarray([EMPTY, *np.asarray(self.label, dtype=np.int32)[order]], np.int32)
        found: Column = labels[np.searchsorted(times, time_us, side="right")]
        own = np.flatnonzero((marks == device) | (marks == _EVERY_DEVICE))
        if len(own) == len(marks):
            return found
        last = np.searchsorted(times[own], time_us, side="right") - 1
        rows = own[np.maximum(last, 0)] if len(own) else np.zeros(len(last), dtype=np.intp)
        by_own = (last >= 0) & (marks[rows] == device)
        return np.asarray(np.where(by_own, labels[rows + 1], found))


class MarkKeeper:
    """Marks every boundary that the job crosses in a window: modules, both ways, and optimizers.

    The boundaries call it when the label of the moment has changed.
    The backward pass is marked from the graph: each module's output begins the module's part of it.
    """

    def __init__(
        self,
        boundaries: Boundaries,
        passing: Callable[[int], None] | None = None,
        device: Callable[[], int] | None = None,
    ) -> None:
        """Nothing is hooked before `start`.

        ``passing`` is told the time of each mark, ``device`` tells the calling thread's device.
        """
        self.marks = Marks()
        self._device = device or (lambda: _EVERY_DEVICE)
        self._loop = 0
        self._own = threading.local()
        self._passing = passing or (lambda _: None)
        self._boundaries = boundaries
        self._hooks: ExitStack | None = None
        self._task = -1

    def start(self) -> None:
        """Begin with no marks but one for this moment."""
        self.stop()
        self.marks = Marks()
        self._own = threading.local()
        self._in_loop()  # a window opens where steps end
        self._boundaries.watch_modules()
        self._hooks = ExitStack()
        self._hooks.callback(self._boundaries.unwatch_modules)
        boundaries = self._boundaries
        # Not hooks on optimizers: torch goes through them while a step's end closes a window.
        for changes in (boundaries.on_entry, boundaries.crossings, annotation_changes):
            changes.append(self._guarded_mark)
            self._hooks.callback(changes.remove, self._guarded_mark)
        boundaries.on_exit.append(self._module_ended)
        self._hooks.callback(boundaries.on_exit.remove, self._module_ended)
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
        if self._hooks is not None and not _is_compiling():
            now_us = time.time_ns() // 1000
            in_loop = threading.get_ident() == self._loop
            device = _EVERY_DEVICE if in_loop else self._device()
            self.marks.add(
                now_us,
                self._boundaries.label(),
                device,
                self._entry(),
                with_gradients=_has_gradients(),
            )
            self._passing(now_us)

    def _in_loop(self) -> None:
        self._loop = threading.get_ident()
        self.marks.loop.add(self._entry())

    def _entry(self) -> Entry:
        """What the calling thread runs, looked up once a window."""
        entry: Entry | None = getattr(self._own, "entry", None)
        if entry is None:
            entry = self._own.entry = entry_here()
        return entry

    def _module_ended(self, output: Any) -> None:
        self._guarded(self.mark)
        self._guarded(self._watch_backward, output)

    def _watch_backward(self, output: Any) -> None:
        if _is_compiling() or self._hooks is None:
            return
        outputs = output if isinstance(output, (list, tuple)) else (output,)
        self._boundaries.unread.each(self._mark_backward, outputs)

    def _mark_backward(self, one: Any) -> None:
        import torch

        node = grad_fn_of(one) if issubclass(type(one), torch.Tensor) else None
        if node is not None and _MARKED not in node.metadata:
            node.metadata[_MARKED] = True
            node.register_prehook(self._backward_reached)

    def _backward_reached(self, *_: Any) -> None:
        """On autograd's thread: the gradient of a module's output is there."""
        self._guarded(self.mark)
        self._guarded(self._watch_end)

    def _watch_end(self) -> None:
        if self._hooks is None:
            return
        import torch

        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._guarded_mark)

    def _guarded_mark(self) -> None:
        self._guarded(self.mark)

    def _guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except Exception:  # noqa: BLE001 - a missing mark is a wrong label, not a broken job
            self.stop()


def _has_gradients() -> bool:
    import torch

    return torch.is_grad_enabled()


def _is_compiling() -> bool:
    import torch

    return torch.compiler.is_compiling()
