"""CPU tensors as a source: a dispatch mode sees them come, weak references see them go."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from memprof.cpython.signal_errors import guarded_errors, is_of_signal
from memprof.cpython.thread_clock import thread_ns
from memprof.records import (
    DeviceInfo,
    DoubleResults,
    KeptResults,
    LabelledRows,
    LargeValues,
    OperatorGraph,
    OverlapCopies,
)
from memprof.sources.cpu.dispatch_mode import (
    LEFT_ON_NOTE,
    Watch,
    direct_overload,
    leave_soon,
    pop_left,
    skip_in_dynamo,
    spoils_compiled,
)
from memprof.sources.cpu.double_precision import DoublePrecisionWatch, double_types
from memprof.sources.cpu.event_batch import Batch
from memprof.sources.cpu.find_storages import StorageSearch, cpu_storages, objects_with_tensors
from memprof.sources.cpu.gradient_sums import GradientSums
from memprof.sources.cpu.kept_results import KeptResultsWatch
from memprof.sources.cpu.labelled_rows import LabelledRowsWatch, likelihoods
from memprof.sources.cpu.large_values import LEAST_BYTES, LargeValuesWatch
from memprof.sources.cpu.last_reads import LastReadsWatch
from memprof.sources.cpu.live_storages import ROW, LiveStorages, LivingStorages, StorageReference
from memprof.sources.cpu.operator_graph import OperatorGraphWatch
from memprof.sources.cpu.other_threads import OtherThreads
from memprof.sources.cpu.overlap_copies import LEAST_BYTES as LEAST_COPY
from memprof.sources.cpu.overlap_copies import OverlapCopiesWatch
from memprof.sources.cpu.sampled_time import SampledTime
from memprof.sources.cpu.thread_modes import ThreadModes
from memprof.sources.cpu.throttle import Throttle
from memprof.sources.guarded_access import plain_attributes
from memprof.sources.loop.line_turns import FrameChains, LineTurns
from memprof.sources.loop.loop_watch import Listener, LoopWatch
from memprof.sources.loop.main_thread import passes_on
from memprof.sources.loop.torch_compile import is_used
from memprof.sources.operator_origins import OperatorOrigins
from memprof.sources.owners.saved_tensors import SavedForBackward
from memprof.sources.owners.tensor_owners import (
    MOST_OPTIMIZERS,
    WHOLE,
    Owner,
    gradient_storages,
    gradients,
    owned_tensors,
    owners,
    tensors_in,
)
from memprof.sources.protocol import Chunk, Counters, Interner, LastRead
from memprof.sources.stacks import StackCapture
from memprof.trace import EMPTY, NOT_RECORDED, Category, Phase, State

__all__ = ["CpuSource"]

_DEVICE = "cpu"
_JUDGING = 0.02
"""Share of the time that looking for owners between drains may take."""
_COUNTING = 0.01
"""Likewise of looking for all tensors between windows, where nobody sees new ones being made."""
_LONGEST_COUNT_S = 0.25
"""A program with so many objects that they take longer is not held up like that again."""
_NO_TENSORS = frozenset((type(None), bool, int, float, complex))
"""What operators return that give no tensor back."""
_MODE_US = 4.5
"""What torch takes to call a mode that does nothing, for one operator (`docs/overhead.md`)."""
MANY, PATIENCE_NS = 50_000, 100_000_000
"""Events that wait, some 10 MB, and the time that they may, before the tracker is told."""
_SPOILS_COMPILED = (
    "torch.compile is used, and before torch 2.9 a compiled program is compiled anew "
    "where it is watched: tensors of the CPU were not seen from then on"
)
_BESIDE_CUDA = (
    "the job uses CUDA: tensors of the CPU were not watched from then on, because watching them "
    "would change what autograd does on the device; name cpu in track(sources=…) to have both"
)
_PASSING = (Category.UNKNOWN, Category.TEMPORARY)


class CpuSource(Listener):
    """Records the memory of CPU tensors; addresses are those of the storages."""

    name = "cpu"
    is_timed = True
    """What operators cost is measured here, see `take_spent_us`."""

    def __init__(
        self, interner: Interner, loop_watch: LoopWatch, *, beside_cuda: bool = True
    ) -> None:
        """Without ``beside_cuda`` nothing is watched once the job has initialised CUDA.

        Under a dispatch mode autograd sums gradients that meet at a node out of place, and takes
        other formulas: the job's own peak on the device, and bits of its gradients, would differ.
        """
        self._beside_cuda = beside_cuda
        self._cuda_hook: Callable[[], None] | None = None
        self._has_cuda_begun = False
        self._has_recorded = False
        self._interner = interner
        self._loop_watch = loop_watch
        self._stacks = StackCapture(interner)
        self._live = LiveStorages(loop_watch.place)
        self._watch: Watch | None = None
        self._thread_modes: ThreadModes | None = None
        self._thread = 0
        self._pid = 0
        self._events = 0
        self._steps: dict[int, int] = defaultdict(int)
        self._since = 0
        self._notes: list[str] = []
        self._at_loss = False
        self._waits = False
        """A step is over once an operator has run, see `LoopWatch.waits`."""
        self._chains = FrameChains()
        self._line_turns = LineTurns(self._chains.places)
        self._follows_lines = self._has_turned = False
        self._guard = loop_watch.guard
        self._search = StorageSearch(loop_watch.guard)
        self._saved_for_backward = SavedForBackward(loop_watch.label_of)
        self._other_threads = OtherThreads()
        self._opaque: set[str] = set()
        self._aside = False
        self._at_leisure = Throttle(_JUDGING)
        self._now_and_then = Throttle(_COUNTING)
        self._total = NOT_RECORDED
        self._counting_us = 0.0
        self._may_count = True
        self._is_undecided = True
        self._operators = SampledTime(_MODE_US)
        self._doubles = DoublePrecisionWatch(self._live.references)
        self._labelled = LabelledRowsWatch(self._live.references)
        self._kept_results = KeptResultsWatch(self._live.references, self._stack_at)
        self._large_values = LargeValuesWatch(self._live)
        self._last_reads = LastReadsWatch(self._live)
        self._graph = OperatorGraphWatch(self._live)
        self._sums = GradientSums(self._live)
        self._overlap_copies = OverlapCopiesWatch()
        self._likelihoods: frozenset[int] = frozenset()
        self.on_full: Callable[[], None] | None = None
        """Called within an operator when many events wait, or have waited for long."""
        self._told_ns = 0
        self._origins: OperatorOrigins | None = None

    def devices(self) -> Sequence[DeviceInfo]:
        """The CPU; none where nothing was ever watched because the job had begun to use CUDA."""
        if self._aside and not self._has_recorded:
            return []
        info = DeviceInfo(
            device=_DEVICE, name="CPU", backend="cpu", recorder="operators", compiled=is_used()
        )
        return [info]

    def open(self) -> None:
        """Check that torch can be watched here."""
        import torch
        import torch.utils._python_dispatch

        self._pid = os.getpid()
        if not self._beside_cuda and not self._steps_aside():
            self._cuda_hook = self._cuda_began
            torch.cuda._lazy_call(self._cuda_hook)

    def close(self) -> None:
        """Undo `open`; leaves no mode and no weak reference."""
        hook, self._cuda_hook = self._cuda_hook, None
        if hook is not None:
            import torch

            calls = getattr(torch.cuda, "_queued_calls", [])
            calls[:] = [entry for entry in calls if entry[0] is not hook]
        self._stop()
        pop_left()
        self._large_values.clear()
        self._live.clear()

    def counters(self) -> Sequence[Counters]:
        """Bytes of the known storages; outside a window they are looked for now and then."""
        pop_left()
        if self._watch is not None:
            self._watch.renew()
        if self._leave_if_due() and not self._has_recorded:
            return []
        if not self._recording:
            self._total = NOT_RECORDED
            if self._may_count and self._has_recorded and not self._steps_aside():
                self._now_and_then(self._count)
            total = self._total
            return [Counters(device=_DEVICE, allocated=total, active=total, requested=total)]
        self._at_leisure(self._keep_up)
        self._guard.each(self._large_values.reach, (self._loop_watch.step,))
        live = self._live
        self._sums.settle()
        peak, live.peak = live.peak, live.bytes
        return [
            Counters(
                device=_DEVICE,
                allocated=live.bytes,
                peak_allocated=peak,
                active=live.bytes,
                requested=live.bytes,
            )
        ]

    def _count(self) -> None:
        if os.getpid() != self._pid:
            return
        began_ns = thread_ns()
        with plain_attributes():
            self._find(self._search.everything())
        self._total = self._live.bytes
        took_s = (thread_ns() - began_ns) / 1e9
        self._counting_us += took_s * 1e6
        self._may_count = took_s < _LONGEST_COUNT_S

    def begin_window(self) -> Mapping[str, State]:
        """Find the tensors that are there, then see every new one."""
        if os.getpid() != self._pid or self._steps_aside():
            return {}
        self._events = 0
        self._steps.clear()
        self._has_recorded = True
        self._look(thorough=True)
        for reference in self._live.counted_references():
            reference.event = NOT_RECORDED
            reference.handed, reference.handed_label = reference.category, reference.label
        state = self._live.state()
        self._is_undecided = self._search.reads_saved
        self._at_leisure.reset()
        self._start()
        return {_DEVICE: state}

    def living(self, device: str = _DEVICE) -> LivingStorages:  # noqa: ARG002 - there is one
        """The storages that are alive, each counted once; columns, they hold nothing."""
        return LivingStorages.of(self._live.counted_references())

    def pending_events(self) -> int:
        """Rows that wait; a freed tensor makes two events of one row."""
        return len(self._live.rows) * 3 // (ROW * 2)

    def drain(self) -> Sequence[Chunk]:
        """Events since the last drain, each allocation with its owner as far as it is known."""
        if self._watch is None:
            return []
        skip_in_dynamo()
        if not self._aside:
            self._look(thorough=False)
        self._sums.settle()
        batch = Batch(self._live.take_rows(), self._events, self._saved_for_backward)
        living = [
            reference
            for reference in self._live.counted_references()
            if batch.first_serial <= reference.serial
        ]
        for reference in living:
            reference.event = batch.event_of(reference.serial)
        last_reads = self._last_reads.take(batch)
        chunk = batch.chunk(_DEVICE, living, self._live.counted_references())
        if last_reads and not is_used():  # compiled code reads unseen
            chunk = msgspec.structs.replace(chunk, last_reads=last_reads)
        self._events += len(chunk.events)
        return [chunk]

    def living_reads(self) -> Mapping[str, Sequence[LastRead]]:
        """When what lives at a window's end was read last; asked after the last `drain`."""
        if self._watch is None or self._aside or is_used():
            return {}
        return {_DEVICE: self._last_reads.living(self._events)}

    def take_spent_us(self) -> float:
        """What watching took since the last call: operators by samples, and counting."""
        counting_us, self._counting_us = self._counting_us, 0.0
        return self._operators.take_us() + counting_us

    def observations(
        self,
    ) -> Sequence[
        DoubleResults | LabelledRows | KeptResults | LargeValues | OverlapCopies | OperatorGraph
    ]:
        """What is known beyond events since the last call."""
        return [
            *self._doubles.take(_DEVICE),
            *self._labelled.take(_DEVICE),
            *self._large_values.take(_DEVICE),
            *self._overlap_copies.take(_DEVICE),
            *(() if is_used() else self._kept_results.take(_DEVICE)),  # compiled code reads unseen
            *(() if is_used() else self._graph.take(_DEVICE)),  # likewise
        ]

    def end_window(self) -> Mapping[str, State]:
        """Stop; what is alive stays known until it dies."""
        if self._watch is None:
            return {}
        if os.getpid() == self._pid and not self._aside:
            self._guard.each(LargeValuesWatch.look, (self._large_values,))
        self._stop()
        if os.getpid() != self._pid:
            return {}
        if not self._aside:  # else what was made since then would be there without an event
            self._look(thorough=True)
        return {_DEVICE: self._live.state()}

    def notes(self) -> Sequence[str]:
        """What was not seen."""
        notes, self._notes = [*self._notes, *self._loop_watch.notes()], []
        if self._live.failure:
            notes.append(self._live.failure)
            self._live.failure = ""
        if not self._recording:  # once a window, when all is known
            notes += self._other_threads.notes()
        return notes

    # Listener of the loop watch.

    def backward_began(self) -> None:
        """What the forward pass left alive is kept for the backward pass."""
        self._at_loss = False
        self._mark_kept(Phase.FORWARD)

    def backward_ended(self) -> None:
        """Gradients are where they belong; some programs drop them before the step's end."""
        with plain_attributes():
            self._judge(gradients(self._loop_watch, self._search.differentiated))
            if self._made_in_backward():  # gradients of tensors that nobody has seen yet?
                self._search.young()
                self._judge(gradients(self._loop_watch, self._search.differentiated))
        self._at_loss = self._waits = self._loop_watch.waits

    def recompute_ended(self) -> None:
        """What a recomputed forward pass left alive is kept for the backward pass under way."""
        self._mark_kept(Phase.BACKWARD)

    def forward_ended(self, *, with_gradients: bool) -> None:
        """From here to the backward pass a loss is computed, which reads targets."""
        self._at_loss, self._waits = with_gradients, False

    def optimizer_begins(self, optimizer: Any) -> None:
        """An optimizer in a backward hook steps before the backward pass ends."""
        self._at_loss = False
        self._steps[id(optimizer)] += 1
        with plain_attributes():
            if self._steps[id(optimizer)] <= WHOLE and len(self._steps) <= MOST_OPTIMIZERS:
                self._judge(owners(self._loop_watch, self._search.differentiated))
            elif self._has_new_gradients(optimizer):
                self._judge(gradients(self._loop_watch, self._search.differentiated))

    def outermost_call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002
        """Tensors that go into a model and were not made by one are its input."""
        own_thread = threading.get_ident() == self._thread
        if self._leave_if_due():
            return
        self._since = min(self._since, next(self._live.serials))
        self._kept_results.call_begins()
        if not own_thread:
            self._other_threads.note_call()
            if self._thread_modes is not None:
                self._thread_modes.join()
        tensors = list(tensors_in((args, kwargs), self._guard))
        with plain_attributes():
            self._search.differentiated.see(tensors)
        self._guard.each(self._goes_in, tensors)

    def _goes_in(self, tensor: Any) -> None:
        for storage in cpu_storages(tensor, self._guard):
            reference = self._note_unseen(storage)
            if reference is not None:
                self._mark_input(reference)

    @property
    def _recording(self) -> bool:
        return self._watch is not None and not self._aside

    def _steps_aside(self) -> bool:
        """Whether nothing is to be watched any more, for the sake of the job."""
        if not self._aside:
            why = ""
            if not self._beside_cuda and (self._has_cuda_begun or _uses_cuda()):
                why = _BESIDE_CUDA
            elif spoils_compiled():
                why = _SPOILS_COMPILED
            if why:
                self._aside = True
                self._notes.append(why)
        return self._aside

    def _leave_if_due(self) -> bool:
        """Step aside in the middle of a window too; whether nothing is watched any more.

        What was seen so far stays as it is, and ends of tensors are noted until the window's end.
        """
        was_aside = self._aside
        if self._steps_aside() and not was_aside and self._watch is not None:
            self._watch.pop()
            self._close_thread_modes()
            if not spoils_compiled():  # it leaves for CUDA: what it built so far will move there
                self._judge_uncalled()
        return self._aside

    def _judge_uncalled(self) -> None:
        """Name the parameters of a model that nobody has called, as no call will come here."""
        import torch

        with plain_attributes():
            parameters = [one for one in objects_with_tensors() if type(one) is torch.nn.Parameter]
            self._guard.each(self._is_parameter, parameters)

    def _is_parameter(self, parameter: Any) -> None:
        for storage in cpu_storages(parameter, self._guard):
            reference = self._live.references.get(storage._cdata)
            if reference is not None and reference.category == Category.UNKNOWN:
                reference.category = Category.PARAMETER

    def _cuda_began(self) -> None:
        """Run by torch right after it initialised CUDA, before anything was allocated there."""
        try:
            if self._cuda_hook is not None and os.getpid() == self._pid:
                self._has_cuda_begun = True  # torch says so of itself only after these calls
                self._leave_if_due()
        except guarded_errors() as error:  # torch would raise it into the job
            self._notes.append(f"the CPU was watched on beside CUDA: {error!r}")

    def compilation_began(self) -> None:
        """torch.compile is about to trace a function, in the calling thread."""
        self._leave_if_due()

    def _start(self) -> None:
        self._thread = threading.get_ident()
        self._line_turns.interrupt()
        self._follows_lines, self._has_turned = self._loop_watch.follows_lines, False
        self._loop_watch.keeps_frames = self._loop_watch.sees_operators = True
        self._loop_watch.watch_modules()
        self._loop_watch.listeners.append(self)
        self._loop_watch.compilations.append(self.compilation_began)
        skip_in_dynamo()
        self._origins = self._origins or OperatorOrigins()
        self._origins.start()
        self._kept_results.clear()
        self._large_values.begin()
        self._last_reads.clear()
        self._graph.begin()
        self._live.record(True)
        self._live.peak = self._live.bytes
        self._since = next(self._live.serials)
        pop_left()
        self._watch = Watch(self._dispatch())
        self._watch.push()
        self._thread_modes = ThreadModes(self._dispatch(own=False))
        self._thread_modes.open()

    def _close_thread_modes(self) -> None:
        if self._thread_modes is not None:
            self._thread_modes.close()
            self._thread_modes = None

    def _stop(self) -> None:
        if self._watch is None:
            return
        self._close_thread_modes()
        if not self._watch.pop() and self._watch.is_elsewhere:
            self._notes.append(LEFT_ON_NOTE)
        self._watch = None
        self._live.record(False)
        self._live.take_rows()
        self._sums.clear()
        self._loop_watch.listeners.remove(self)
        self._loop_watch.compilations.remove(self.compilation_began)
        self._loop_watch.unwatch_modules()
        self._loop_watch.keeps_frames = self._loop_watch.sees_operators = False

    @passes_on
    def _dispatch(self, *, own: bool = True) -> Any:  # noqa: PLR0915
        """What is called for every operator; ``own``: of the thread that the window began in."""
        import torch

        tensor, parameter = torch.Tensor, torch.nn.Parameter
        plain = (tensor,)
        disabled = torch._C._disabled_torch_dispatch_impl
        below = torch._C._len_torch_dispatch_stack  # torch's own modes, which a subclass expects
        overload = direct_overload()
        reference_of = self._live.references.get
        note, frame_here = self._note_result, sys._getframe
        parts = self._origins.parts if own and self._origins is not None else frozenset()
        operators = self._operators
        doubles, wide = self._doubles, double_types()
        large_values, overlap_copies = self._large_values, self._overlap_copies
        live = self._live
        reads, with_reads = self._last_reads, self._last_reads.followed
        graph = self._graph
        self._likelihoods = likelihoods()
        conversion, addition = torch.ops.aten._to_copy.default, torch.ops.aten.add.Tensor
        sums = self._sums
        followed, see = self._kept_results.nodes, self._see_kept

        # One function, since a call would cost each operator as much as the rest does.
        def dispatch(  # noqa: PLR0912, PLR0915
            _mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            """Run an operator as it would be run, note what it returns, and return that."""
            if (
                types
                and types != plain
                and any(t.__torch_dispatch__ is not disabled for t in types)
                and not below()
            ):
                return NotImplemented  # a subclass goes first; its inner operators come back here
            over = False
            # Not `frame_here(1)`: on a thread of autograd's own there is no frame above this one.
            call = func._op if type(func) is overload else func
            timed = operators.began()
            if timed:
                timed = operators.pause(timed)
            out = call(*args, **kwargs) if kwargs else call(*args)
            if timed:
                timed = operators.resume(timed)
            try:
                kind = type(out)
                if kind is tensor or kind is parameter:
                    storage = out.untyped_storage()
                    reference = reference_of(storage._cdata)
                    if (reference is None or reference.size != storage.nbytes()) and out.is_cpu:
                        new = note(storage, frame_here(0).f_back, func, args, own)
                        if new is not None:
                            if func is addition:
                                sums.see(new, args, frame_here(0).f_back)
                            if func is conversion or out.dtype in wide:
                                doubles.see(args, out, new)
                            if own and new.size >= LEAST_BYTES:
                                large_values.add(new, out, func, args)
                                if new.size >= LEAST_COPY:
                                    overlap_copies.see(args, new)
                    elif id(func) in parts:
                        self._note_part(frame_here(0).f_back, func, args)
                elif kind not in _NO_TENSORS:
                    self._note_results(out, frame_here(0).f_back, func, args, own)
                if with_reads:  # what `LastReadsWatch.see` does, since a call costs as much again
                    try:
                        is_of_graph = False
                        for value in args:
                            kind = type(value)
                            if kind is tensor or kind is parameter:
                                reference = reference_of(value.untyped_storage()._cdata)
                                if reference is not None:
                                    reference.read = live.newest
                                    if reference.node is not None:
                                        is_of_graph = True
                                    if reference.part < 1:
                                        reads.note_part(reference, value, func, args, out)
                            elif kind not in _NO_TENSORS:
                                is_of_graph |= reads.see((value,), func, args, out)
                        if kwargs:
                            is_of_graph |= reads.see(kwargs.values(), func, args, out)
                        if is_of_graph:
                            graph.see(func, args, kwargs, out)
                    except guarded_errors():  # a sparse one has no storage
                        graph.lose(with_reads)
                        reads.clear()
                if followed:
                    see(func, args, kwargs, out, frame_here(0).f_back)
                if self._at_loss and own:
                    over = self._mark_inputs(args)
            except guarded_errors() as error:  # the job goes on whatever happens here
                self._without_storage(error, out, frame_here(0).f_back, func, args, own)
            if timed:
                operators.end(timed)
                try:
                    self._tell_if_full()
                except Exception as error:  # noqa: BLE001 - also what comes as it is entered
                    self._not_told(func, error)
            if over or self._has_turned:
                self._step_is_over(with_pass=over)
            return out

        return dispatch

    def _step_is_over(self, *, with_pass: bool) -> None:
        """A step ends behind the operator that has run, which was the first after it."""
        self._has_turned = False
        if with_pass:
            self._loop_watch.end_without_call()
        else:
            self._loop_watch.line_turned(*self._line_turns.line)
        leave_soon()

    def _tell_if_full(self) -> None:
        """Time passes in a program that has no steps too, and its events fill the memory."""
        now_ns = time.monotonic_ns()
        try:
            waits = now_ns - self._told_ns >= PATIENCE_NS or self.pending_events() >= MANY
            if self._sums.waits:  # its rows stay together; the next operator is soon there
                return
            if self.on_full is not None and self._watch is not None and waits:
                self._told_ns = now_ns
                self.on_full()
                leave_soon()
        except guarded_errors() as error:  # as above
            note = f"limits were not looked at: {type(error).__name__}: {error}"
            if note not in self._opaque:
                self._opaque.add(note)
                self._notes.append(note)

    def _not_seen(self, func: Any, error: Exception) -> None:
        """Say once an operator whose result has no storage or could not be looked at."""
        name = str(func)
        if name not in self._opaque:
            self._opaque.add(name)
            if not isinstance(error, (NotImplementedError, RuntimeError)):
                self._notes.append(f"the result of {name} was not seen: {error}")

    def _not_told(self, func: Any, error: Exception) -> None:
        """Pass on what a handler of a signal raised; keep the rest from the program.

        A stack that is full has no room to look which it was.
        """
        if not isinstance(error, RecursionError) and is_of_signal(error):
            raise error
        self._not_seen(func, error)

    def _without_storage(
        self, error: Exception, out: Any, frame: Any, func: Any, args: Any, own: bool
    ) -> None:
        """Note the parts of a sparse result; say of another once that it could not be looked at."""
        try:
            is_sparse = isinstance(error, NotImplementedError) and getattr(out, "is_sparse", False)
            if is_sparse and out.is_cpu:
                self._note_results(out, frame, func, args, own)
                return
        except guarded_errors() as inner:  # as above
            error = inner
        self._not_seen(func, error)

    def _note_results(self, out: Any, frame: Any, func: Any, args: Any, own: bool) -> None:
        for tensor in tensors_in(out, self._guard, 2):
            for storage in cpu_storages(tensor, self._guard):
                self._note_result(storage, frame, func, args, own)
        if id(func) in self._likelihoods:
            self._labelled.see(args, out)
        if own and self._origins is not None and id(func) in self._origins.parts:
            self._note_part(frame, func, args)

    def _note_part(self, frame: Any, func: Any, args: Any) -> None:
        """Remember the line of a view whose backward pass will allocate."""
        origins = self._origins
        if origins is not None and origins.is_in_graph(args):
            place = self._loop_watch.place()
            stack = self._stacks.capture(frame, place) if frame is not None else EMPTY
            origins.of(place, frame, stack, func, args)

    def _note_result(
        self, storage: Any, frame: Any, func: Any, args: Any, own: bool
    ) -> StorageReference | None:
        """Note what an operator gave back, with the line that it comes of."""
        live = self._live
        reference = live.references.get(storage._cdata)
        if reference is not None and not live.refresh(reference, storage):
            return reference
        if self._sums.waits:
            self._sums.settle()
        place = self._loop_watch.place()
        stack = self._stacks.capture(frame, place) if frame is not None else EMPTY
        if own and self._follows_lines:
            self._follow_line(frame)
        origin, origins = EMPTY, self._origins
        if origins is not None:
            if own:
                origin = origins.of(place, frame, stack, func, args)
            else:
                origins.note_other_thread(args)
        # The operator that shows that a step is over belongs to the next one.
        label = self._loop_watch.next_label() if own and self._has_turned else place.row
        new = live.add(storage, stack, label, origin)
        if new is not None:
            self._kept_results.add(new)
            if own and self._last_reads.add(new):
                self._graph.add(new, func, args)
        return new

    def _see_kept(self, func: Any, args: Any, kwargs: Any, out: Any, frame: Any) -> None:
        try:
            given = (*args, *kwargs.values()) if kwargs else args
            self._kept_results.see(func, given, out, frame)
        except BaseException:
            self._kept_results.clear()  # of what was missed nothing is said
            raise

    def _stack_at(self, frame: Any) -> int:
        place = self._loop_watch.place()
        return self._stacks.capture(frame, place) if frame is not None else EMPTY

    def _follow_line(self, frame: Any) -> None:
        """Look whether a loop came round in which nothing but operators run."""
        self._follows_lines = self._loop_watch.follows_lines
        if self._follows_lines:
            self._has_turned |= self._line_turns.sees(self._chains.key(frame))

    def _note_unseen(self, storage: Any) -> StorageReference | None:
        """A storage that no operator showed, as of now: what is known of it, None without bytes."""
        live = self._live
        reference = live.references.get(storage._cdata)
        if reference is not None and not live.refresh(reference, storage):
            return reference
        return live.add(storage, EMPTY, self._loop_watch.place().row)

    def _has_new_gradients(self, optimizer: Any) -> bool:
        """Whether one that the optimizer will use was not there when the backward pass ended."""
        reference_of = self._live.references.get
        references = (reference_of(s._cdata) for s in gradient_storages(optimizer, self._guard))
        return any(
            reference is not None and reference.category != Category.GRADIENT
            for reference in references
        )

    def _made_in_backward(self) -> bool:
        """Whether the last backward pass left something that has no owner."""
        label_of = self._loop_watch.label_of
        return any(
            not reference.category and label_of(reference.label).phase == Phase.BACKWARD
            for reference in self._live.latest(self._since)
        )

    def _mark_kept(self, phase: Phase) -> None:
        label_of = self._loop_watch.label_of
        for reference in self._live.latest(self._since):
            if not reference.category and label_of(reference.label).phase == phase:
                reference.category = Category.ACTIVATION
        if phase == Phase.FORWARD:
            self._since = next(self._live.serials)

    def _mark_inputs(self, args: Any) -> bool:
        """Note what a loss reads; True where a step is over instead."""
        if self._waits:
            self._at_loss = self._waits = False
            return True
        for tensor in tensors_in(args, self._guard, 2):
            for storage in cpu_storages(tensor, self._guard):
                reference = self._live.references.get(storage._cdata)
                if reference is not None:
                    self._mark_input(reference)
        return False

    def _mark_input(self, reference: StorageReference) -> None:
        if reference.category == Category.UNKNOWN:
            label = self._loop_watch.label_of(reference.label)
            if label.phase in (Phase.OTHER, Phase.UNKNOWN) and not label.module:
                reference.category = Category.INPUT

    def _look(self, *, thorough: bool) -> None:
        """Find what nobody saw being made, and give everything its owner as far as it has one."""
        self._loop_watch.label()  # a backward pass that has ended is noticed here
        suspects = []
        if self._search.reads_saved:
            suspects = self._saved_for_backward.suspects(
                self._live.counted_references(), self._loop_watch.step
            )
        with plain_attributes():
            if thorough:
                storages = self._search.everything()
            else:
                storages = self._search.recent(
                    thorough=self._saved_for_backward.undecided(suspects)
                )
            self._find(storages)
            if thorough:  # a gradient that Python has never looked at is no object yet
                owning = owned_tensors(self._loop_watch, self._search.differentiated)
                self._find(s for _, one in owning for s in cpu_storages(one, self._guard))
            self._judge(owners(self._loop_watch, self._search.differentiated))
        self._saved_for_backward.decide(suspects, self._search.saved)

    def _keep_up(self) -> None:
        """At a step's end: learn whose it is while it is there; it may die before a drain."""
        if self._is_undecided:
            suspects = self._saved_for_backward.suspects(
                self._live.counted_references(), self._loop_watch.step
            )
            if self._saved_for_backward.undecided(suspects):
                self._is_undecided = False
                self._look(thorough=True)
                return
        with plain_attributes():
            self._judge(owners(self._loop_watch, self._search.differentiated))

    def _judge(self, owner_of: Mapping[int, Owner]) -> None:
        """Give every storage that has an owner its category and its owner's module."""
        reference_of, label_in = self._live.references.get, self._loop_watch.label_in
        for key, (category, module) in owner_of.items():
            reference = reference_of(key)
            if reference is not None:
                reference.category = category
                reference.label = label_in(reference.label, module)

    def _find(self, tensors: Iterable[Any]) -> None:
        """Note the storages that no operator showed (C++ made them, or another thread did)."""
        self._guard.each(self._note_storage, tensors)
        if self._recording:
            self._other_threads.look(self._thread)

    def _note_storage(self, storage: Any) -> None:
        live = self._live
        reference = live.references.get(storage._cdata)
        if reference is not None and not live.refresh(reference, storage):
            return
        label = self._loop_watch.label() if self._recording else EMPTY
        reference = live.add(storage, EMPTY, label)
        if reference is not None and self._recording:
            self._other_threads.add_storage(storage)


def _uses_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_initialized())
