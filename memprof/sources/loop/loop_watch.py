"""Steps, phases, module paths and annotations of the calling thread; nothing about memory."""

from __future__ import annotations

import contextlib
import contextvars
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from types import FrameType
from typing import Any

from memprof.cpython.frame_locals import frame_variable
from memprof.cpython.signal_errors import guarded_errors
from memprof.cpython.thread_clock import READING_NS, thread_ns
from memprof.sources.autograd import any_was_made, node_number
from memprof.sources.cpu.dispatch_mode import pop_left, skip_in_dynamo
from memprof.sources.graph_nodes import keeps_node_objects, longest_walk
from memprof.sources.guarded_access import GuardedAccess
from memprof.sources.loop.backward_passes import BackwardPasses
from memprof.sources.loop.call_places import CallPlaces, is_later_row
from memprof.sources.loop.module_hooks import ModuleHooks
from memprof.sources.loop.module_paths import ModulePaths
from memprof.sources.loop.optimizer_hooks import OptimizerHooks
from memprof.sources.loop.step_detector import Guess, StepDetector
from memprof.sources.loop.thread_state import (
    NO_TASK,
    BackwardPass,
    Call,
    Stepping,
    ThreadPosition,
    Threads,
    ThreadState,
    call_frame,
    drop_ended,
    engine_codes,
    frame_of,
    keywords_of,
)
from memprof.sources.loop.torch_compile import CompileWatch, is_used
from memprof.sources.protocol import Interner
from memprof.sources.training_threads import note_training, take_refusals
from memprof.trace import EMPTY, NOT_RECORDED, Label, Phase

__all__ = ["Listener", "LoopWatch", "annotate", "annotation_changes"]

_UNSEEN_MODULES = (
    "the program uses torch.compile, which would compile again where it finds hooks on modules, as "
    "the program has some or torch is older than 2.5: modules are not watched, so labels have no "
    "modules and inputs are unknown"
)
_TRAINED_BESIDE = (
    "several threads train: gradients and what graphs save were not looked at while another one's "
    "backward pass might have written them, so they may have no owner"
)
_TIMED_CALLS = 16
"""Of so many calls of modules that lie in others one is timed."""
_LONGEST_HOOK_US = 100.0
"""A hook that takes longer has read or written what was recorded, which is measured there."""
_ACCUMULATE_GRAD = 1 << 63
"""Nodes that store into ``.grad`` carry the greatest number; their module is the one before."""

_FORWARD, _BACKWARD = int(Phase.FORWARD), int(Phase.BACKWARD)

_annotation: contextvars.ContextVar[str] = contextvars.ContextVar("memprof", default="")
annotation_changes: list[Callable[[], None]] = []
"""Called in the thread whose annotation has changed; none of them may raise."""


@contextlib.contextmanager
def annotate(name: str) -> Iterator[None]:
    """Name what is allocated inside; nested names are joined by ``/``. Also a decorator."""
    outer = _annotation.get()
    token = _annotation.set(f"{outer}/{name}" if outer else name)
    _annotation_changed()
    try:
        yield
    finally:
        _annotation.reset(token)
        _annotation_changed()


def _annotation_changed() -> None:
    for tell in tuple(annotation_changes):
        tell()


class Listener:
    """Told when a boundary is crossed, in the thread that crosses it; does nothing at any."""

    def backward_began(self) -> None:
        """The first event of a backward pass is about to be labelled."""

    def backward_ended(self) -> None:
        """The first event after a backward pass is about to be labelled."""

    def recompute_ended(self) -> None:
        """A forward pass that activation checkpointing repeated has ended."""

    def forward_ended(self, *, with_gradients: bool) -> None:
        """The outermost module call has ended."""

    def optimizer_begins(self, optimizer: Any) -> None:
        """An optimizer's step is about to run."""

    def outermost_call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called from outside every other module."""


class LoopWatch:
    """Watches torch's global hooks; knows where the calling thread is in the training loop."""

    def __init__(self, interner: Interner) -> None:
        self.modules = ModulePaths()
        self.listeners: list[Listener] = []
        self.guard = GuardedAccess()
        self._interner = interner
        self._known_modules = self.modules.table
        self._threads = Threads()
        self._label_rows = interner.label_rows
        self._labels: dict[int, Label] = {EMPTY: Label()}
        self._optimizers = OptimizerHooks(
            partial(self._guard, self._optimizer_begins),
            partial(self._guard, self._optimizer_ended),
            partial(self._guard, self._optimizer_left_out),
        )
        self._parallel: list[str] = []
        self._log: tuple[list[int], list[str]] = ([], [])
        self._watchers = self._passes = 0
        self.on_entry: list[Callable[[ThreadPosition], None]] = []
        """Called when a module's call has begun, with the thread's `place`: the call."""
        self.on_exit: list[Callable[[ThreadPosition, Any], None]] = []
        """Called when a module's call has ended, with the `place` and what the call returns."""
        self.on_pass: list[Callable[[], None]] = []
        """Called in the thread that asks for a backward pass, before it begins."""
        self.on_pass_over: list[Callable[[], None]] = []
        """And there when it is over, in whatever way."""
        self.sees_operators = False
        """Whether each operator asks for its place, and so tells of backward passes by itself."""
        self._backward_passes = BackwardPasses(
            partial(self._guard, self._pass_began), partial(self._guard, self._pass_ended)
        )
        self.keeps_frames = False
        """Whether places are to know their frames, by which stacks are captured faster."""
        self.compilations: list[Callable[[], None]] = []
        """Called in the thread that begins to compile, before torch.compile traces anything."""
        self._in_python = self._pre_hook(), self._post_hook()
        self._module_hooks = ModuleHooks(*self._in_python)
        self._native: Any = None
        self._compilers = CompileWatch(
            self._compilation_began, self._compilation_ended, lambda: self._guard(skip_in_dynamo)
        )
        self._is_hooked = self._gave_up = False
        self._interruptions = 0
        self._calls = self._calls_timed = 0
        self._timed_us = self._exact_us = self._apart_us = 0.0
        self._is_timing = False
        """A hook of a module is timed, without what is counted in `_apart_us`."""
        self._failure = ""
        self._has_noted_threads = False
        self._on_step: Callable[[int], None] | None = None
        self.on_guess: Callable[[Guess, bool], None] | None = None
        """Told which steps were guessed, and whether they are a single one: see `StepDetector`."""
        self.places = CallPlaces()
        """The lines of the program that guessed steps end at."""
        self._steps = StepDetector(self._on_step_end, self._pass_on_guess)

    @property
    def step(self) -> int:
        """The step under way, from 0."""
        return self._steps.current

    @property
    def trains(self) -> bool:
        """Whether an optimizer or an explicit mark has ended the last step, and not just a call.

        Or a backward pass, where no optimizer has stepped yet: the program may have one of its own.
        """
        return not self._steps.is_guessed or self._steps.ends_with_passes

    @property
    def guess(self) -> Guess | None:
        """The steps at the end that were guessed, so far."""
        return self._steps.guess

    @property
    def waits(self) -> bool:
        """Whether a step is over once an operator has run: see `StepDetector.waits`."""
        return self._steps.waits

    @property
    def follows_lines(self) -> bool:
        """Whether steps may end as loops of operators come round: nothing surer was met."""
        return self._on_step is not None and self._steps.may_end_with_lines

    def line_turned(self, filename: str, line: int) -> None:
        """A loop of operators came round, see `LineTurns.line`."""
        self._guard(lambda: self._steps.line_turned(self.places.of_line(filename, line)))

    def end_without_call(self) -> None:
        """An operator has run after a backward pass that no module call led to."""
        self._guard(self._steps.end_without_call)

    def open(self, on_step: Callable[[int], None]) -> None:
        """Register the hooks; ``on_step(n)`` is called when step ``n`` has ended."""
        import torch

        self._on_step = on_step
        self._steps = StepDetector(self._on_step_end, self._pass_on_guess)
        self._torch_functions(torch)
        self._optimizers.open()
        self._compilers.open()
        self._update_module_hooks()

    def find_existing(self) -> None:
        """Know the modules and optimizers that the program has already, called or not."""
        self._guard(self._find_existing)

    def _find_existing(self) -> None:
        # A recording that begins with its program looks for none.
        from memprof.sources.loop.existing_objects import existing_objects

        roots, optimizers = existing_objects(self.guard)
        self.guard.each(self.modules.path, roots)
        self.guard.each(self._optimizers.optimizers.add, optimizers)

    def close(self) -> None:
        """End a step whose end was still open, remove every hook. Safe to call twice.

        Within a hook of an optimizer those on optimizers stay, doing nothing, until another call.
        """
        if self._on_step is not None:
            self._steps.close()
            self._on_step = None
            self._watchers = 0
        self._update_module_hooks()
        self.unfollow_natively()
        self._compilers.close()
        self._optimizers.close()

    @property
    def counts_calls(self) -> bool:
        """Whether steps end with calls of modules, which are seen where modules are watched."""
        return not (self._steps.explicit or self._steps.optimized)

    def skip(self, steps: int) -> None:
        """Go on ``steps`` further, which ended while nobody counted; nobody is told of them.

        An end that was found before, and whose step was open still, is told first.
        """
        self._steps.skip(steps)
        self._thread().after_forward = False
        self._step_changed()

    def take_spent_us(self) -> float:
        """Time in hooks on modules since the last call, reckoned from those that were timed.

        What the ends of steps take is not in it: it is measured where they are told.
        """
        if self._native is not None:
            self._exact_us += self._native.calls_take_spent() / 1000
        each_us = self._timed_us / self._calls_timed if self._calls_timed else 0.0
        spent_us = self._exact_us + each_us * 2 * self._calls  # one hook before and one after
        self._calls, self._exact_us = 0, 0.0
        return spent_us

    def watch_modules(self) -> None:
        """Keep module paths exact from now on, until `unwatch_modules`; calls may nest.

        Outside of it there is no hook on modules, and their calls end no step.
        """
        self._watchers += 1
        self._update_module_hooks()

    def unwatch_modules(self) -> None:
        """Undo one `watch_modules`."""
        self._watchers = max(0, self._watchers - 1)
        self._update_module_hooks()

    def follow_natively(self, native: Any) -> bool:
        """Have the native part follow calls of modules, and call here where it cannot.

        ``native`` is the module that `memprof.native.load` gives. False: it follows other ones.
        Whoever else is to be called for each of them (`on_entry`, `on_exit`) is not, then.
        """
        from torch import compiler

        known_modules, labels = self.modules.table, self._interner.label_rows
        if not native.calls_begin(
            *self._in_python, known_modules, labels, _annotation, vars(compiler)
        ):
            return False
        thread = self._threads.state
        for number, path in zip(thread.numbers, thread.paths, strict=True):
            native.calls_log(number, path)
        self._native = native
        self._module_hooks.replace(native.calls_before, native.calls_after)
        return True

    def unfollow_natively(self) -> None:
        """Undo `follow_natively`; safe to call twice."""
        if self._native is not None:
            self._module_hooks.replace(*self._in_python)
            thread = self._threads.state
            self._take_over(thread)
            self._log = thread.numbers, thread.paths = self._native.calls_log_here()
            self._exact_us += self._native.calls_take_spent() / 1000
            native, self._native = self._native, None
            native.calls_end()

    def notes(self) -> list[str]:
        """What went wrong since the last call."""
        failure, self._failure = self._failure, ""
        beside = _TRAINED_BESIDE if take_refusals() and not self._has_noted_threads else ""
        self._has_noted_threads |= bool(beside)
        return [*filter(None, (failure, beside)), *self.guard.notes()]

    def optimizers(self) -> list[Any]:
        """Every living optimizer that has stepped."""
        return self._optimizers.optimizers.living()

    @property
    def crossings(self) -> list[Callable[[], None]]:
        """Called when an optimizer's step has begun or ended and the moment's label is its own."""
        return self._optimizers.crossings

    def step_done(self) -> None:
        """An explicit mark; from the first one on, optimizers and modules end no step."""
        self._steps.mark()
        self._update_module_hooks()

    def label(self) -> int:
        """Row of the label of this moment in the calling thread."""
        return self.place().row

    def place(self) -> ThreadPosition:
        """Where the calling thread is, with the row of this moment's label."""
        return self._place(self._thread())

    def _place(self, thread: ThreadState) -> ThreadPosition:
        task = self._graph_task()
        if thread.backward is (task == NO_TASK):
            self._cross(thread)
        calls, optimizers = thread.calls, thread.optimizers
        place: ThreadPosition
        if optimizers and optimizers[-1].task == task and optimizers[-1].depth == len(calls):
            place = optimizers[-1]  # the optimizer itself, no closure's model or backward pass
        elif calls and calls[-1].task == task:  # or recomputed by activation checkpointing
            place = calls[-1]
        else:
            place = self._in_loop(thread) if task == NO_TASK else self._in_backward(thread, task)
        annotation = _annotation.get() or thread.name
        if place.step != self._steps.current or place.annotation != annotation:
            step = self._steps.current
            row = self._label_rows[step, int(place.phase), place.path, annotation]
            # All at once: a handler of a signal may come as the row is looked up.
            place.step, place.annotation, place.row = step, annotation, row
        return place

    def called_at(self) -> tuple[str, int]:
        """File and line that this thread's last call from outside all modules came by."""
        return self.places.line(self._threads.state.called_at)

    def next_label(self) -> int:
        """Row of the label that this place has once the step under way is over."""
        place = self.place()
        path, annotation = place.path, place.annotation
        return self._label_rows[place.step + 1, int(place.phase), path, annotation]

    def label_of(self, row: int) -> Label:
        """The label in a row."""
        label = self._labels.get(row)
        if label is None:
            label = self._labels[row] = self._interner.labels(row)[0]
        return label

    def label_in(self, row: int, module: str) -> int:
        """Row of the label that differs from another one in its module only."""
        label = self.label_of(row)
        if label.module == module:
            return row
        moved = self._interner.label(label.step, label.phase, module, label.annotation)
        self._labels[moved] = Label(label.step, label.phase, module, label.annotation)
        return moved

    def module_of_node(self, number: int) -> str:
        """The module that a graph's node was made in, by its sequence number; -1: no node."""
        return self._module_at(self._threads.state, number) if number >= 0 else ""

    def _thread(self) -> ThreadState:
        """What runs in the calling thread, with all calls of modules that are under way in it."""
        thread: ThreadState = self._threads.state
        if self._native is not None:
            self._take_over(thread)
        return thread

    def _take_over(self, thread: ThreadState) -> None:
        """Calls that the native part has followed; the next ones come here until `_hand_on`."""
        for module_id, path, task in self._native.calls_take() or ():
            call = Call(module_id, path, task, 0)
            call.outer = thread.calls[-1] if thread.calls else None
            thread.calls.append(call)

    def _hand_on(self, thread: ThreadState) -> None:
        """Have the native part follow the calls within the one that the thread is in."""
        calls = thread.calls
        if calls and not self._parallel:
            call = self._place(thread)
            if call is calls[-1]:
                self._native.calls_arm(
                    calls[0].module_id, call.task, call.row, call.step, call.path, call.annotation
                )

    def _log_module(self, thread: ThreadState, number: int, path: str) -> None:
        """Nodes of the thread's graph with this number or more belong to ``path``."""
        if self._native is not None:
            self._native.calls_log(number, path)
        else:
            self._log = thread.log(number, path)

    def _step_changed(self) -> None:
        """Another step is under way: its labels have other rows."""
        if self._native is not None:
            self._native.calls_disarm()

    def _in_loop(self, thread: ThreadState) -> ThreadPosition:
        place = thread.loop
        at_loss = thread.after_forward and thread.passes == self._passes and self._grad_enabled()
        phase = Phase.FORWARD if at_loss else Phase.OTHER
        if phase is not place.phase:
            place.phase, place.step = phase, NOT_RECORDED
        return place

    def _in_backward(self, thread: ThreadState, task: int) -> ThreadPosition:
        place = thread.passing
        if place.task != task:
            engine = frame_of(self._engine, sys._getframe(2))
            if engine:
                note_training()
            else:  # on a thread of autograd's own: a CUDA device's
                self._passes += 1
            place = thread.passing = BackwardPass(place.path, task, engine)
            place.outer = thread.calls[-1] if thread.calls else None
        node = self._current_node() if place.nodes < self._most_nodes else None
        number = node._sequence_nr() if node is not None else NOT_RECORDED
        place.nodes += number != place.running
        place.running = number
        if number != place.number and number < _ACCUMULATE_GRAD:
            place.number = number
            path = self._module_at(thread, number) if node is not None else ""
            if path != place.path:
                place.path, place.step = path, NOT_RECORDED
        return place

    def _module_at(self, thread: ThreadState, number: int) -> str:
        if self._native is not None:
            path: str = self._native.calls_path_at(number)
            return path
        numbers, paths = thread.numbers, thread.paths
        if not numbers:  # a thread of autograd's own runs the graph of another one
            numbers, paths = self._log
        at = bisect_right(numbers, number)
        return paths[at - 1] if at else ""

    def _cross(self, thread: ThreadState) -> None:
        """A backward pass has begun or ended since the thread's last event."""
        thread.backward = not thread.backward
        if thread.backward:
            thread.after_forward = False
            thread.passed_at = self.places.of_backward(sys._getframe(2), self._engine)
            thread.passes_row = is_later_row(sys._getframe(2))
            self._tell(lambda one: one.backward_began())
        else:
            drop_ended(thread.optimizers)
            in_optimizer = bool(thread.optimizers)
            self._guard(self._tell_pass, thread, in_optimizer=in_optimizer)
            self._tell(lambda one: one.backward_ended())

    def _tell_pass(self, thread: ThreadState, *, in_optimizer: bool) -> None:
        self._steps.backward_ended(
            thread.passed_at, in_optimizer=in_optimizer, is_part=thread.passes_row
        )

    def _pass_began(self, roots: Any) -> None:
        """The calling thread calls autograd's engine, within another pass perhaps."""
        self._call_each(self.on_pass)
        thread = self._threads.state
        if self.sees_operators or thread.backward or self._graph_task() != NO_TASK:
            return
        newest = self._sequence() - 1
        if newest > thread.newest_node and not self._steps.optimized:
            # A graph was built since the last pass, and no optimizer has stepped for that one.
            if thread.untold_pass and not self._steps.ends_with_passes:
                self._steps.backward_ended(thread.untold_pass)
            self._steps.end_without_call()
        thread.newest_node, thread.untold_pass = newest, 0
        # Where others were built after the one that is passed, they belong to the same iteration.
        thread.passes_newest = any(node_number(root) >= newest for root in roots)
        self._cross(thread)

    def _pass_ended(self) -> None:
        """Nothing sees the next operator run: at first an optimizer may be what runs next."""
        self._call_each(self.on_pass_over)
        thread = self._threads.state
        if self.sees_operators or not thread.backward or self._graph_task() != NO_TASK:
            return
        thread.backward = False
        drop_ended(thread.optimizers)
        if self._steps.may_end_with_passes:
            self._tell_pass(thread, in_optimizer=bool(thread.optimizers))
            if thread.passes_newest:
                self._steps.end_without_call()
        elif not self._steps.optimized and not thread.optimizers:
            thread.untold_pass = thread.passed_at
        self._tell(lambda one: one.backward_ended())

    def _call_each(self, calls: list[Callable[[], None]]) -> None:
        if calls:
            began_ns = thread_ns()
            for call in tuple(calls):
                self._guard(call)
            self._exact_us += (thread_ns() - began_ns) / 1000

    def _tell(self, tell: Callable[[Listener], None]) -> None:
        """Each listener by itself: what one of them raises keeps it from nobody else.

        Their time is read once for all that follow one another, as the clock asks the kernel.
        """
        for is_metered, listeners in groupby(tuple(self.listeners), _is_metered):
            if is_metered and not self._is_timing:
                for listener in listeners:
                    self._guard(tell, listener)
                continue
            began_ns = thread_ns()
            for listener in listeners:
                self._guard(tell, listener)
            spent_us = (thread_ns() - began_ns) / 1000
            self._apart_us += spent_us
            if not is_metered:
                self._exact_us += spent_us

    def _torch_functions(self, torch: Any) -> None:
        """Functions that are looked up once; private ones may be missing in another version."""
        self._grad_enabled = torch.is_grad_enabled
        missing = []
        graph_task = getattr(torch._C, "_current_graph_task_id", None)
        current_node = getattr(torch._C, "_current_autograd_node", None)
        sequence = getattr(getattr(torch._C, "_autograd", None), "_get_sequence_nr", None)
        if graph_task is None:
            missing.append("the backward phase")
        if current_node is None or sequence is None:
            missing.append("modules in the backward phase")
        self._graph_task = graph_task or (lambda: NO_TASK)
        self._current_node = (sequence and current_node) or (lambda: None)
        self._sequence = sequence or (lambda: 0)
        self._most_nodes = longest_walk() if keeps_node_objects() else sys.maxsize
        self._engine = (*engine_codes(torch), self._backward_passes.code)
        if missing:
            self._failure = f"torch {torch.__version__} does not tell {' nor '.join(missing)}"

    def _update_module_hooks(self) -> None:
        is_needed = self._on_step is not None and self._watchers > 0 and not self._gave_up
        if is_needed and not self._is_hooked:
            if self._compilers.look():
                self._guard(skip_in_dynamo)  # sources that were loaded since
            if is_used() and self._gives_up():
                return
            self._threads = Threads()  # calls that began unseen will end unseen
            if self._native is not None:
                self._native.calls_reset()
            self._parallel.clear()
            self._is_hooked = True
            self._module_hooks.add()
            self._backward_passes.open()
        elif not is_needed and self._is_hooked:
            self._module_hooks.remove()
            self._backward_passes.close()
            self._is_hooked = False

    def _gives_up(self) -> bool:
        """Whether hooks on modules would have compiled programs compiled again: none from now."""
        if not self._gave_up and self._module_hooks.disturb_compiled():
            self._gave_up = True
            self._failure = self._failure or _UNSEEN_MODULES
            self._update_module_hooks()
        return self._gave_up

    def _compilation_began(self) -> None:
        self._guard(skip_in_dynamo)
        for begin in tuple(self.compilations):
            self._guard(begin)
        if self._is_hooked:
            began_ns = thread_ns()
            self._guard(self._gives_up)
            self._exact_us += (thread_ns() - began_ns) / 1000
        self._guard(self._module_hooks.hide)

    def _compilation_ended(self) -> None:
        self._guard(self._module_hooks.show)
        self._interruptions += 1  # other threads' calls may have ended unseen
        if self._native is not None:
            self._native.calls_disarm()

    def _pre_hook(self) -> Callable[[Any, Any], None]:
        from torch.compiler import is_compiling

        def before_module(module: Any, args: Any) -> None:
            if is_compiling():  # a constant to torch.compile, which drops the rest
                return
            self._calls = calls = self._calls + 1
            try:
                if calls % _TIMED_CALLS:
                    self._enter_module(module, args)
                else:
                    self._time_call(self._enter_module, module, args)
            except guarded_errors() as error:  # see `_guard`
                self._note_miss(error)

        return before_module

    def _post_hook(self) -> Callable[[Any, Any, Any], None]:
        from torch.compiler import is_compiling

        def after_module(module: Any, args: Any, output: Any) -> None:  # noqa: ARG001
            if is_compiling():
                return
            try:
                if self._calls % _TIMED_CALLS:
                    self._leave_module(module, output)
                else:
                    self._time_call(self._leave_module, module, output)
            except guarded_errors() as error:  # see `_guard`
                self._note_miss(error)

        return after_module

    def _time_call(self, function: Callable[..., None], *args: Any) -> None:
        began_ns = thread_ns()
        self._calls_timed += 1
        apart_us, within, self._is_timing = self._apart_us, self._is_timing, True
        self._guard(function, *args)
        self._is_timing = within
        spent_ns = thread_ns() - began_ns - READING_NS
        spent_us = max(0.0, spent_ns / 1000 - (self._apart_us - apart_us))
        self._timed_us += min(spent_us, _LONGEST_HOOK_US)

    def _guard(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except guarded_errors() as error:  # the job goes on whatever happens here
            self._note_miss(error)

    def _note_miss(self, error: Exception) -> None:
        self._failure = f"a boundary was missed: {type(error).__name__}: {error}"

    def _enter_module(self, module: Any, args: tuple[Any, ...]) -> None:
        thread: ThreadState = self._threads.state
        if self._native is not None:
            self._take_over(thread)
        calls = thread.calls
        module_id = id(module)
        if thread.interruptions != self._interruptions:
            thread.interruptions = self._interruptions
            _drop_unseen(calls, _caller(sys._getframe(1)))
        is_outermost = not calls or calls[0].module_id == module_id
        if is_outermost:
            kwargs = self._outermost_begins(thread, module, args, _caller(sys._getframe(1)))
        entry = None if self._parallel else self._known_modules.get(module_id)
        path = entry[1] if entry is not None else self._path(module, thread)
        if is_outermost:
            self._tell(lambda one: one.outermost_call(module, args, kwargs))
        frame_id = 0
        if self.keeps_frames:
            frame = _caller(sys._getframe(1))
            frame_id = id(frame.f_back or frame)
        task = self._graph_task()
        call = Call(module_id, path, task, frame_id)
        if calls:
            call.outer = calls[-1]
        calls.append(call)
        self._log_module(thread, self._sequence(), path)
        if type(module).__name__ == "DataParallel":
            self._parallel.append(path)
        if self.on_entry:
            place: ThreadPosition = call
            if thread.optimizers or thread.backward is (task == NO_TASK):
                place = self._place(thread)
            else:  # the same, as short as it can be
                step = call.step = self._steps.current
                annotation = call.annotation = _annotation.get() or thread.name
                phase = _FORWARD if task == NO_TASK else _BACKWARD
                call.row = self._label_rows[step, phase, path, annotation]
            for mark in self.on_entry:
                mark(place)
        if self._native is not None:
            self._hand_on(thread)

    def _outermost_begins(
        self, thread: ThreadState, module: Any, args: tuple[Any, ...], frame: Any
    ) -> dict[str, Any]:
        thread.calls.clear()  # a root below itself: the call before was ended by a Ctrl-C
        drop_ended(thread.optimizers)
        pop_left()
        kwargs = keywords_of(frame)
        if thread.backward and self._graph_task() == NO_TASK:
            self._cross(thread)  # nothing was allocated since the backward pass
        thread.called_at = self.places.of_call(frame.f_back)
        self._steps.call_began(module, continues=any_was_made((args, kwargs)))
        return kwargs

    def _path(self, module: Any, thread: ThreadState) -> str:
        prefix = ""
        if self._parallel and getattr(module, "_is_replica", False):
            prefix = f"{self._parallel[-1]}.module"
        calls = thread.calls
        return self.modules.path(module, calls[-1].module_id if calls else 0, prefix)

    def _leave_module(self, module: Any, output: Any) -> None:
        try:
            self._module_ends(module, output)
        finally:
            if self.on_exit:
                place = self._place(self._thread())
                for mark in tuple(self.on_exit):
                    mark(place, output)
            if self._native is not None:
                self._hand_on(self._threads.state)

    def _module_ends(self, module: Any, output: Any) -> None:
        thread = self._thread()
        calls = thread.calls
        module_id = id(module)
        while calls and calls[-1].module_id != module_id:
            if all(call.module_id != module_id for call in calls):
                return  # it began before the hooks were there
            calls.pop()
        if not calls:
            return
        call = calls.pop()
        if self._parallel and call.path in self._parallel:
            self._parallel.remove(call.path)
        self._log_module(thread, self._sequence(), calls[-1].path if calls else "")
        if call.task != NO_TASK and not (calls and calls[-1].task == call.task):
            self._tell(lambda one: one.recompute_ended())
        elif not calls and call.task == NO_TASK:
            self._outermost_ended(thread, module, output)

    def _outermost_ended(self, thread: ThreadState, module: Any, output: Any) -> None:
        thread.after_forward = output is not None and self._grad_enabled()
        thread.passes = self._passes
        if thread.after_forward:
            note_training()
        self._tell(lambda one: one.forward_ended(with_gradients=thread.after_forward))
        if output is not None and not thread.optimizers:  # a closure is part of the step
            self._steps.call_ended(
                module, with_gradients=thread.after_forward, place=thread.called_at
            )

    def _optimizer_begins(self, optimizer: Any, wrapper: FrameType) -> None:
        self._steps.optimizer_began()
        self._threads.state.after_forward = False
        if self._graph_task() == NO_TASK:
            note_training()
        self._tell(lambda one: one.optimizer_begins(optimizer))
        thread = self._thread()  # another, if a listener has begun a window
        drop_ended(thread.optimizers)
        steady = wrapper.f_back or wrapper
        calls = thread.calls
        stepping = Stepping(self._graph_task(), len(calls), id(wrapper), id(steady))
        stepping.outer = calls[-1] if calls else None
        thread.optimizers.append(stepping)

    def _optimizer_ended(self, optimizer: Any) -> None:
        thread = self._threads.state
        if thread.optimizers:
            thread.optimizers.pop()
        self._steps.optimizer_ended(optimizer, self._sequence())
        self._update_module_hooks()

    def _optimizer_left_out(self, optimizer: Any) -> None:
        """A scaler found infinities: the iteration ends all the same."""
        self._steps.optimizer_began()
        self._threads.state.after_forward = False
        self._steps.optimizer_ended(optimizer, self._sequence())
        self._update_module_hooks()

    def _pass_on_guess(self, guess: Guess, is_merged: bool) -> None:
        if self.on_guess is not None:
            self.on_guess(guess, is_merged)

    def _on_step_end(self, step: int) -> None:
        self._threads.state.after_forward = False
        self._step_changed()
        if self._on_step is None:
            return
        if not self._is_timing:  # the clock asks the kernel
            self._on_step(step)
            return
        began_ns = thread_ns()
        self._on_step(step)
        self._apart_us += (thread_ns() - began_ns) / 1000


def _is_metered(listener: Listener) -> bool:
    """Whether the listener's time is measured by whoever is told by it."""
    return bool(getattr(type(listener), "is_metered", False))


def _caller(frame: FrameType) -> Any:
    """The frame of ``Module._call_impl``, from one of a hook that it has called."""
    file = frame.f_code.co_filename
    while frame.f_back is not None and frame.f_code.co_filename == file:
        frame = frame.f_back
    return call_frame(frame)


def _drop_unseen(calls: list[Call], frame: FrameType | None) -> None:
    """Forget calls whose ends were not seen because the hooks were away for a while.

    ``frame`` is one of ``Module._call_impl``; of those calls that still run there is one, too.
    """
    if not calls or frame is None:
        return
    code, running = frame.f_code, set()
    while frame is not None:
        if frame.f_code is code:
            running.add(id(frame_variable(frame, "self")))
        frame = frame.f_back
    calls[:] = [call for call in calls if call.module_id in running]
