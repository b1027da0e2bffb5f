"""What happens while a tracker records: steps, windows, limits, drains, samples; all guarded.

The tracker opens and closes it; it knows nothing of context managers and exit handlers.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from memprof.cpython.signal_errors import guarded_errors
from memprof.cpython.thread_clock import thread_us
from memprof.errors import MemprofError
from memprof.log import LOG
from memprof.record.options import Options
from memprof.record.output import Output
from memprof.record.process import Rank, header, now_us
from memprof.record.recording import Recording
from memprof.record.source_selection import Ticks, event_sources, reading_sources
from memprof.record.unseen_code import UnseenCode
from memprof.record.window_schedule import End, OverheadMeter, StepCost, WindowSchedule
from memprof.records import (
    DeviceInfo,
    Finding,
    GuessedSteps,
    Header,
    Readings,
    WindowRecord,
)
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.loop.main_thread import Beat, MainThread
from memprof.sources.loop.step_detector import Guess, Sign
from memprof.sources.protocol import Counters, Interner, ReadingSource
from memprof.trace import NOT_RECORDED

if TYPE_CHECKING:
    from memprof.record.device_figures import FiguresByDevice
    from memprof.record.exports import Exports
    from memprof.record.full_warnings import FullWarnings
    from memprof.record.oom_records import OomRecords
    from memprof.record.sampler import Sampler, Thinning
    from memprof.record.step_counters import Span
    from memprof.record.summaries import Summaries
    from memprof.referrers.survivor_watch import SurvivorWatch
    from memprof.sources.cuda.oom_observer import Exhausted
    from memprof.sources.owners.batch_sizes import BatchSizesWatch
    from memprof.sources.owners.graph_inputs import GraphInputsWatch
    from memprof.sources.owners.padded_batches import PaddedBatchesWatch
    from memprof.sources.owners.unmoved_parameters import UnmovedParametersWatch
    from memprof.sources.profiled_calls import ProfiledCallsWatch
    from memprof.sources.protocol import EventSource

__all__ = ["PREPARES_US", "Session", "is_closed"]

_FLUSH_US = 1_000_000
PATIENCE_S = 5.0
"""A thread that ran out of memory waits so long for another that is writing, and no longer."""
_LOOK_SHARE = 0.004
"""Between windows, looking at counters may take so much of the time; a look takes some 50 µs."""
_BETWEEN_TICKS_US = 5000
"""Calls of modules that come sooner are not looked at: no limit is passed by much meanwhile."""
FLUSH_IN_WINDOW_US = 100_000
"""In a window the last events before the job dies matter most."""
_BEAT_MS = 100.0
"""Limits are judged so often where a window is open and nothing of torch is crossed."""
_BEAT_BETWEEN_MS = 1000.0
"""The same between windows."""
_MANY_WAITING = 50_000
"""Events that may wait in memory, some 200 bytes each for CPU tensors, before they are written."""
PREPARES_US = 30_000_000
"""A program in which nothing but operators ran so far may still be making its data."""
_STALL_US = 100_000
"""A file system that lets the job wait for longer is counted; less is other programs' turn."""

_CLOSED = (
    "torch._dynamo",
    "torch._export",
    "torch._functorch",
    "torch._inductor",
    "torch._library",
    "torch._ops",
    "torch._subclasses",
    "torch.export",
    "torch.fx",
)
"""Where torch traces the program on tensors that are none, or has put its modes aside while it
calls an operator: nothing is looked at or ended by time inside of these."""
_OPEN = "torch._dynamo.eval_frame"
"""Compiled code runs below it too."""


class Session:
    """One recording from its first record to its footer."""

    def __init__(self, path: Callable[[], str], options: Options, *, lazy: bool = False) -> None:
        """Nothing is hooked into torch before `open_torch`.

        Raises:
            MemprofError: the file cannot be created, and it is not lazy (see `Output`).
        """
        self._devices: list[DeviceInfo] = []
        self._options = options
        self._began_us, self._opened_us = now_us(), _clock_us()
        """For the file, and by a clock that nobody sets."""
        self.output = Output(path, self._header, lazy=lazy)
        self.interner = Interner()
        self.recording = Recording(self.output, self.interner)
        ranks = Rank.of(os.environ).world_size
        self.meter = OverheadMeter(ranks)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._schedule = WindowSchedule(
            msgspec.structs.replace(options.policy, ranks=ranks), round(_clock_us())
        )
        self._loop_watch: LoopWatch | None = None
        self._watches: tuple[
            UnmovedParametersWatch
            | PaddedBatchesWatch
            | BatchSizesWatch
            | GraphInputsWatch
            | ProfiledCallsWatch,
            ...,
        ] = ()
        self._survivor_watch: SurvivorWatch | None = None
        self._searched_sources: list[EventSource] | None = None
        self._reads_devices = False
        """Whether `open_samplers` was called, which comes before torch's import or after it."""
        self._sampler: Sampler | None = None
        self._exports = self._exports_wanted()
        self._steps = 0
        self._last_step = -1
        self._counted_step = -1
        self._look_again_us = self._tick_again_us = 0.0
        self._is_open = True
        self._unsaid: list[tuple[Finding, str]] = []
        """What would be logged if the program did not just prepare, see `_may_prepare`."""
        self._late_ooms: deque[tuple[Exhausted, int, int]] = deque()
        self._step_start_us, self._step_began_us = now_us(), _clock_us()
        self._opened_us = self._step_began_us
        """When the step in progress began: for the file, and by a clock that nobody sets."""
        self._hooks_in_step_us = 0.0
        self._events_in_step, self._prior_in_step_us = 0, 0.0
        self._flushed_us = _clock_us()
        self._window_us, self._window_step = now_us(), 0
        self._window_began_us = _clock_us()
        self._is_inside = False
        self._grid = 1
        self._waiting = 0
        self._accounted_us = _clock_us()
        self._ends: set[End] = set()
        self._main_thread = MainThread(self._beat)
        self._beats = Beat(self._main_thread.request, _BEAT_BETWEEN_MS)
        self._unseen_code = UnseenCode(self.interner)
        self._counted_steps = 0
        self._processor_us = 0.0
        """Time of the processor when a window began or ended, or calls were reckoned last."""
        self._busy_share = 0.0
        """Of the time of the last window, for which the process had the processor."""

    def _exports_wanted(self) -> Exports | None:
        if not self._options.exports:
            return None
        from memprof.record.exports import Exports

        exports = Exports(self._options, self.recording.note)
        self.output.figures = exports.figures
        self.output.show(self._header())
        return exports

    # -- what a beginning does not need: it is imported and made after the first record --------

    @cached_property
    def _ooms(self) -> OomRecords:
        from memprof.record.oom_records import OomRecords

        return OomRecords(self.recording, self.interner, self._add_finding, self._flush)

    @cached_property
    def _thinning(self) -> Thinning:
        from memprof.record.sampler import Thinning

        return Thinning()

    @cached_property
    def _figures(self) -> FiguresByDevice:
        from memprof.record.device_figures import FiguresByDevice

        return FiguresByDevice()

    @cached_property
    def _summaries(self) -> Summaries:
        from memprof.record.summaries import Summaries

        return Summaries(self._figures, self.recording, self._ooms, self.meter, self._opened_us)

    @cached_property
    def _warnings(self) -> FullWarnings:
        from memprof.record.full_warnings import FullWarnings

        return FullWarnings()

    # -- opening and closing -------------------------------------------------------------------

    def open_samplers(self) -> None:
        """Start the thread that reads the driver and the host, and what exports metrics."""
        began_us = thread_us()
        self._reads_devices = True
        with self._lock:
            if self._is_open and self._pid == os.getpid():
                self._guard(self._open_watches)
        self._try(self._open_samplers)
        with self._lock:
            self._count_aside(began_us)

    def _open_samplers(self) -> None:
        from memprof.record.sampler import Sampler

        # Before there is a second thread, and before the first step pays for it.
        _ = self._thinning, self._summaries, self._warnings
        if self._exports is not None:
            self._exports.start(self.output.path, Rank.of(os.environ).local_rank)
        self._sampler = Sampler(
            reading_sources(self._options),
            self._options.sample_interval_s,
            self.add_readings,
            self._reader_failed,
            self.output.flush,
        )
        self._sampler.start()

    def open_torch(self) -> None:
        """Hook into torch, which is imported, and begin the first window."""
        with self._lock:
            if self._is_open and self._pid == os.getpid():
                began_us = thread_us()
                self._guard(self._open_torch)
                spent_us = self._count_hook(began_us)
                if self._options.in_progress:  # a large heap was looked through
                    self._schedule.add_allowance(spent_us)

    def _open_torch(self) -> None:
        self._loop_watch = LoopWatch(self.interner)
        self._loop_watch.on_guess = self._on_guess
        self._loop_watch.open(self._step_ended)
        if self._options.in_progress:
            self._loop_watch.find_existing()
        self._loop_watch.listeners.append(Ticks(self._tick, self._training_begins))
        sources = event_sources(self._options, self.interner, self._loop_watch, self.recording.note)
        for source in sources:
            if hasattr(source, "on_oom"):
                source.on_oom = self._on_exhausted
            if hasattr(source, "on_full"):
                source.on_full = self._source_is_full
            self.recording.add(source)
        self.recording.grow()
        self._write_header()
        if self._schedule.is_open:
            self._begin_window()
            self._searched_sources = sources
        self.output.flush()
        if self._reads_devices:
            self._open_watches()
        alarms = (one.alarm for one in sources if hasattr(one, "alarm"))
        self._beats.start(next(alarms, None))  # they ring together
        self._step_start_us, self._step_began_us = now_us(), _clock_us()

    def _open_watches(self) -> None:
        """What looks at the program's steps alone, and so may come after the first record."""
        loop_watch = self._loop_watch
        if loop_watch is None or self._watches:
            return
        from memprof.sources.owners.batch_sizes import BatchSizesWatch
        from memprof.sources.owners.graph_inputs import GraphInputsWatch
        from memprof.sources.owners.padded_batches import PaddedBatchesWatch
        from memprof.sources.owners.unmoved_parameters import UnmovedParametersWatch
        from memprof.sources.profiled_calls import ProfiledCallsWatch

        self._watches = (
            UnmovedParametersWatch(loop_watch),
            PaddedBatchesWatch(loop_watch),
            BatchSizesWatch(loop_watch),
            GraphInputsWatch(loop_watch),
            ProfiledCallsWatch(loop_watch),
        )
        loop_watch.listeners += self._watches
        if self._searched_sources is not None:
            self._survivor_watch = _survivor_watch(
                self._add_survivor, self.recording.note, self._options.budget
            )
            self._survivor_watch.open(self._searched_sources, loop_watch.label_of)

    def close(self, status: str, *, is_over: bool = False) -> None:
        """End the window, remove every hook, stop the thread, write the footer.

        A part of this that fails is logged and left out. ``is_over``: the program is.
        """
        with self._lock:
            if self._is_open:
                began_us = thread_us()
                self._guard(lambda: self._close_torch(is_over=is_over))
                self._count_hook(began_us)
            self._is_open = False
            if "torch" not in sys.modules:
                self.recording.note("tracker", "torch was never imported: the host only")
            for part in (
                self._main_thread.close,
                self._beats.close,
                self._close_boundaries,  # once more: a recording may have ended within a hook
                self._close_sampler,
                self._close_exports,
                lambda: self._write_footer(status, is_over=is_over),
                lambda: self.output.close(None),
            ):
                _ = self._try(part) or self._try(part)  # once more, as nobody else will

    def _write_footer(self, status: str, *, is_over: bool) -> None:
        footer = self._summaries.footer(self._steps, self._devices, status, is_over=is_over)
        self.output.close(footer)

    def abandon(self) -> None:
        """Take every hook away and write no more; safe at any time, and never raises."""
        self._abandon()
        for part in (self._beats.close, self._stop_sampler, lambda: self.output.close(None)):
            self._try(part)

    def _stop_sampler(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    def _close_sampler(self) -> None:
        if self._sampler is None:
            return
        began_us = thread_us()
        if not self._sampler.stop():
            self.recording.note("tracker", "a reading did not come back: the last are missing")
        for last in self._thinning.take_last():
            self.output.write(last)
        self.meter.beside(self._sampler.take_spent_us())
        self._count_aside(began_us)

    def _close_exports(self) -> None:
        if self._exports is not None:
            self._exports.close()

    def _close_torch(self, *, is_over: bool) -> None:
        self._write_late_ooms()
        self._close_boundaries()  # may end a last step
        if self._last_step > self._counted_step:
            self._look(self._last_step)
        try:
            self._figures.see(self.recording.counters(), self._steps)
            if self.recording.window != NOT_RECORDED:
                self._end_window(End.STOP, in_step=True)
            self._write_observations()
            self._account()
            self._tell_guess()
            if self.recording.grow():
                self._write_header()
            # The job's own names are still there.
            self.meter.hook(self._search(lambda lookout: lookout.close(is_over=is_over)))
        finally:
            self._close_lookout()
            self.recording.close()
        self.recording.write_notes()
        self._write_rows(unfinished=True)

    def disown(self) -> None:
        """In a forked child: the file and the thread are the parent's; only our hooks are here."""
        self._is_open = False
        self._main_thread.close()
        self._close_lookout()
        if self._exports is not None:
            self._exports.disown()
        self.recording.disown()
        if self._loop_watch is not None:
            try:
                self._loop_watch.close()
            except guarded_errors():  # the child must start whatever happens here
                LOG.debug("the hooks on torch did not close in a fork", exc_info=True)

    # -- while the job runs --------------------------------------------------------------------

    def step_done(self) -> None:
        """An explicit mark of a step's end."""
        if self._loop_watch is not None:
            self._guard(self._loop_watch.step_done)

    def _step_ended(self, step: int) -> None:
        """`step_ended`, and the end of a program of which a dry run wants so many steps."""
        self.step_ended(step)
        if 0 < self._options.last_step <= step + 1:
            raise SystemExit(0)

    def step_ended(self, step: int) -> None:
        """A step ended, explicitly or by itself; called in the job's thread."""
        if not self._is_open or self._pid != os.getpid():
            return
        self._steps += 1
        self._last_step = max(self._last_step, step)
        if (
            self.recording.window == NOT_RECORDED
            and _clock_us() < self._look_again_us
            and (step + 1) % self._grid
            and not self._is_searching()
        ):
            return  # steps so short that a look at each would cost too much
        began_us = thread_us()
        with self._lock, self._inside():
            self._guard(self._look, step)
            spent_us = self._count_hook(began_us)
            self._look_again_us = _clock_us() + spent_us / _LOOK_SHARE

    def _on_guess(self, guess: Guess, is_merged: bool) -> None:
        """Steps were guessed; ``is_merged``: they and the next one that ends are a single one."""
        if not self._is_open or self._loop_watch is None or self._pid != os.getpid():
            return
        if is_merged:
            self._steps -= guess.last - guess.first
        filename, line = self._loop_watch.places.line(guess.place)
        sign = guess.sign.name.lower()
        with self._lock:
            self.output.write(
                GuessedSteps(guess.first, guess.last, sign, is_merged, filename, line)
            )

    def _tell_guess(self) -> None:
        """Write what was guessed so far: nobody knows whether there will be an end."""
        guess = self._loop_watch.guess if self._loop_watch is not None else None
        if guess is not None:
            self._on_guess(guess, is_merged=False)

    def failed(self, error: BaseException | None) -> None:
        """An exception leaves the recorded block; out-of-memory errors are recorded."""
        if self._is_open and self._pid == os.getpid():
            with self._lock:
                self._guard(self._left_by, error)

    def _left_by(self, error: BaseException | None) -> None:
        self._ooms.left_the_block(error, self._last_step + 1, self._label())

    def _on_exhausted(self, what: Exhausted) -> None:
        """A device ran out of memory, on the thread whose request failed."""
        if not (self._is_open and self._pid == os.getpid()):
            return
        if not self._lock.acquire(timeout=PATIENCE_S):
            self._late_ooms.append((_brief(what), self._last_step + 1, self._label()))
            LOG.warning("%s ran out of memory; told later, the recording is busy", what.device)
            return
        try:
            self._guard(self._write_late_ooms)
            self._guard(lambda: self._ooms.observed(what, self._last_step + 1, self._label()))
        finally:
            self._lock.release()

    def _write_late_ooms(self) -> None:
        """Failures of threads that could not wait any longer for their turn."""
        while self._late_ooms:
            what, step, label = self._late_ooms.popleft()
            self._ooms.observed(what, step, label)
            self.recording.note(
                "tracker",
                f"a failed allocation on {what.device} was recorded late and briefly: the thread "
                f"waited {PATIENCE_S:g} s for another that was writing",
            )

    def _label(self) -> int:
        return self._loop_watch.label() if self._loop_watch is not None else 0

    def _flush(self) -> None:
        self._write_rows()
        self._summaries.write(self._steps, self._devices)  # the job may be about to die
        self.recording.write_notes()
        self.output.flush()

    def add_finding(self, finding: Finding) -> None:
        """Write a finding, log it, tell the user's callback."""
        self._add_finding(finding, f"finding at step {finding.step}: {finding.finding}")

    def _add_finding(self, finding: Finding, message: str) -> None:
        """Write a finding; if there is something to say, log it and tell the user."""
        self.recording.write_finding(finding)
        if message:
            self._say(finding, message)

    def _add_survivor(self, finding: Finding, message: str) -> None:
        """The same; it is said later where the program may still be making its data."""
        is_early = self._may_prepare()
        self._add_finding(finding, "" if is_early else message)
        if is_early and message:
            self._unsaid.append((finding, message))

    def _may_prepare(self) -> bool:
        """Whether nothing but operators ran so far: a program that trains makes its data first."""
        guess = self._loop_watch.guess if self._loop_watch is not None else None
        by_lines = guess is not None and guess.sign is Sign.LINE
        return by_lines and _clock_us() - self._opened_us < PREPARES_US

    def _say_held_back(self) -> None:
        """Log what was held back once the program cannot be at its data any more."""
        unsaid, self._unsaid = self._unsaid, []
        guess = self._loop_watch.guess if self._loop_watch is not None else None
        if guess is not None and guess.sign is Sign.LINE:  # else it has begun to train since
            for finding, message in unsaid:
                self._say(finding, message)

    def _say(self, finding: Finding, message: str) -> None:
        self.output.flush()
        LOG.warning("%s", message)
        if self._options.on_finding is not None:
            try:
                self._options.on_finding(finding)
            except guarded_errors():  # it is the user's code, in the user's job
                LOG.warning("on_finding raised; the job goes on", exc_info=True)

    def _look(self, step: int, *, by_time: bool = False) -> None:
        """Count at the end of a step and of those before it; open or close a window.

        Another thread's look may have counted it. ``by_time``: the steps were reckoned from their
        duration, see `_count_by_time`.
        """
        at_us = round(_clock_us())
        end_us = max(self._step_start_us, now_us())  # the system's clock may have been set back
        self._write_late_ooms()
        if self.recording.grow():
            self._write_header()
        steps = self._figures.span(self._counted_step + 1, step, self._step_start_us, end_us)
        counters = self._count(steps)
        self._account()
        if not by_time:  # else nothing is known of how long each step took
            self.meter.step(self._cost(at_us, steps.last - steps.first + 1))
        was_open = self._schedule.is_open
        allocated, idle = _allocated_and_idle(counters)
        is_open = self._schedule.step_ended(
            at_us,
            self.meter,
            allocated,
            idle,
            step=step,
            trains=self._loop_watch is not None and self._loop_watch.trains,
        )
        self._grid = self._schedule.look_grid(at_us)
        if is_open:
            self._search(lambda lookout: lookout.step_ended(step, allocated))
        elif self._is_searching():
            self._search(lambda lookout: lookout.step_ended_between(step))
        if is_open != was_open or self.recording.is_over():
            self._change_window(is_open=is_open, in_step=False)
        self._write_now_and_then(at_us)
        self._counted_step = max(self._counted_step, step)
        self._hooks_in_step_us = 0.0
        self._events_in_step, self._prior_in_step_us = 0, 0.0
        self._step_start_us, self._step_began_us = now_us(), _clock_us()

    def _is_searching(self) -> bool:
        """Whether a search that was begun in a window is to be gone on with."""
        return self._survivor_watch is not None and self._survivor_watch.is_searching

    def _search(self, look: Callable[[SurvivorWatch], None]) -> float:
        """Let the lookout do its part, which is counted as a search; microseconds that it took."""
        if self._survivor_watch is None:
            return 0.0
        began_us = thread_us()
        look(self._survivor_watch)
        spent_us = thread_us() - began_us
        self.meter.search(spent_us)
        return spent_us

    def _count(self, steps: Span) -> list[Counters]:
        counters = self.recording.counters()
        if steps.first > steps.last:
            self._figures.see(counters, steps.last)
        else:
            self._figures.count(steps, counters, self.recording.window)
        for figures in counters:
            self._ooms.add_count(figures.device, figures.ooms, steps.last)
        return counters

    def _account(self) -> None:
        """Take in what was used since the last time: of the clock, of the file and of memory."""
        use = self.recording.used()
        spent_us = use.spent_us
        if self._loop_watch is not None:
            spent_us += _spent_us(self._loop_watch)
        now_us = _clock_us()  # estimates, too, cannot have taken more time than went by
        elapsed_us, self._accounted_us = now_us - self._accounted_us, now_us
        spent_us = min(spent_us, elapsed_us)
        prior_us = min(use.prior_us, elapsed_us - spent_us)
        self.meter.hook(spent_us)
        self.meter.events(use.events, prior_us)
        if self._sampler is not None:
            self.meter.beside(self._sampler.take_spent_us())
        self._hooks_in_step_us += spent_us
        self._events_in_step += use.events
        self._prior_in_step_us += prior_us
        self._waiting = use.waiting
        self._schedule.events.take(use.events)
        self._schedule.bytes.take(use.bytes)
        self._schedule.rows.take(use.rows)

    def _cost(self, at_us: int, steps: int) -> StepCost:
        duration_us = round(at_us - self._step_began_us - self._hooks_in_step_us)
        return StepCost(
            duration_us=max(0, duration_us) // max(1, steps),
            events=self._events_in_step,
            in_window=self.recording.window != NOT_RECORDED,
            prior_us=self._prior_in_step_us,
        )

    def _change_window(self, *, is_open: bool, in_step: bool) -> None:
        began_us, searched_us = thread_us(), 0.0
        if is_open:
            if self.recording.window != NOT_RECORDED:  # it has a gap: another takes over
                self._end_window(End.GAP, in_step=in_step)
            self._begin_window()
        elif self.recording.window != NOT_RECORDED:
            self._end_window(self._schedule.end or End.STOP, in_step=in_step)
            self._summaries.write(self._steps, self._devices)
            searched_us = self._search(lambda lookout: lookout.window_ended())
        self.meter.edge(thread_us() - began_us - searched_us)

    def _write_observations(self) -> None:
        for watch in self._watches:
            record = watch.take()
            if record is not None:
                self.output.write(record)

    def _begin_window(self) -> None:
        self._window_us, self._window_began_us = now_us(), _clock_us()
        self._window_step = self._last_step + 1
        self._processor_us = time.process_time() * 1e6
        if self._loop_watch is not None:
            self._loop_watch.watch_modules()
        self._beats.pace(_BEAT_MS)
        self.recording.begin_window()

    def _end_window(self, end: End, *, in_step: bool) -> None:
        window, reason = self.recording.window, self._schedule.opened_for
        took_us, processor_us = _clock_us() - self._window_began_us, time.process_time() * 1e6
        self._busy_share = min(1.0, (processor_us - self._processor_us) / max(1, took_us))
        self._processor_us = processor_us
        self.recording.end_window()
        self._write_observations()
        self._beats.pace(_BEAT_BETWEEN_MS)
        if self._loop_watch is not None:
            self._loop_watch.unwatch_modules()
        record = WindowRecord(
            window=window,
            reason=reason.value if reason is not None else "",
            end=end.value,
            start_us=self._window_us,
            end_us=max(self._window_us, now_us()),
            first_step=self._window_step,
            last_step=self._last_step + in_step,
            in_step=in_step,
        )
        self.output.write(record)
        self._tell_guess()
        if end not in self._ends:
            self._ends.add(end)
            self._say_why(end, record)

    def _say_why(self, end: End, record: WindowRecord) -> None:
        """A note on the first window that a limit ended."""
        from memprof.units import format_bytes, format_count, format_duration

        options = self._options
        limit, hint = {
            End.ALLOWANCE: (
                "the time that recording may take was used up: "
                + format_duration(self._schedule.allowance_us),
                "--allowance, or track(allowance_s=…), records more",
            ),
            End.RESERVE: (
                (
                    "half of the allowance was used up before three steps of training had been "
                    "recorded, for which the rest is kept"
                ),
                "--allowance, or track(allowance_s=…), records more",
            ),
            End.EVENTS: (
                f"it held half of the events that were left of {format_count(options.max_events)}",
                "--max-events, or track(max_events=…), records more",
            ),
            End.BYTES: (
                f"it took as much as one may of {format_bytes(options.max_bytes)} in the file",
                "--max-bytes, or track(max_bytes=…), records more",
            ),
            End.TABLES: (
                f"memprof's own tables held {format_count(len(self.interner))} rows in memory",
                "",
            ),
        }.get(end, ("", ""))
        is_worth_a_note = record.in_step or end is not End.ALLOWANCE
        if limit and is_worth_a_note:
            where = f"in step {record.last_step}" if record.in_step else f"with {record.last_step}"
            self.recording.note("tracker", f"a window ended {where}: {limit}", hint)

    # -- by time -------------------------------------------------------------------------------

    def _beat(self) -> None:
        """In the main thread, between two instructions of the program."""
        if is_closed(sys._getframe()):
            return
        if self._lock.acquire(blocking=False):  # else another thread is at it: the next beat
            try:
                self.pass_time(self._judge_at_beat)
            finally:
                self._lock.release()

    def _judge_at_beat(self, at_us: int) -> None:
        self._keep_within_limits(at_us)
        self._look_for_unseen_code(at_us)

    def _tick(self) -> None:
        """In the middle of a step, where a module is called."""
        if _clock_us() < self._tick_again_us:
            return
        with self._lock:
            self.pass_time(self._keep_within_limits)
        self._tick_again_us = _clock_us() + _BETWEEN_TICKS_US

    def _training_begins(self) -> None:
        """The same where an optimizer is about to step; between windows its end is soon enough."""
        if self.recording.window == NOT_RECORDED and not self._schedule.is_reserved:
            return
        with self._lock:
            self.pass_time(self._keep_within_limits)
            self.pass_time(self._resume)

    def _source_is_full(self) -> None:
        """The same where a source holds many events, in the thread that made them."""
        with self._lock:
            self.pass_time(self._keep_within_limits)

    def pass_time(self, action: Callable[[int], None]) -> None:
        """Do something in the middle of a step, unless it is within something of our own."""
        if not self._is_open or self._pid != os.getpid() or self._is_inside:
            return
        began_us = thread_us()
        with self._inside():
            self._guard(action, round(_clock_us()))
            self._hooks_in_step_us += self._count_hook(began_us)

    def _keep_within_limits(self, at_us: int) -> None:
        """Write what waits, and end the window here where a limit is met."""
        self._account()
        if self._waiting >= _MANY_WAITING:
            self.recording.drain()
            self._account()
        self._write_now_and_then(at_us)
        if self.recording.window == NOT_RECORDED and self._is_searching():
            self._search(lambda lookout: lookout.step_ended_between(self._last_step))
        self._judge(at_us)
        self._count_by_time(at_us)

    def _count_by_time(self, at_us: int) -> None:
        """Between windows, where calls of modules end the steps: go on by those that had time.

        No hook is on modules there, because one costs every call of every module microseconds. How
        long a call takes is known from the windows, and the processor's time says how much of the
        time the process was at it: a server that waits makes none.
        """
        loop_watch = self._loop_watch
        in_window = self.recording.window != NOT_RECORDED
        if in_window or loop_watch is None or not loop_watch.counts_calls:
            return
        step_us, elapsed_us = self.meter.step_us, at_us - self._step_began_us
        if not step_us or not self._busy_share:
            return
        processor_us = time.process_time() * 1e6 - self._processor_us
        busy_share = min(1.0, max(0.0, processor_us) / max(1, elapsed_us) / self._busy_share)
        steps = int(busy_share * elapsed_us / step_us)
        if steps < 1:
            return
        loop_watch.skip(steps)
        self._steps += steps
        self._last_step += steps
        if not self._counted_steps:
            from memprof.units import format_duration

            self.recording.note(
                "tracker",
                "between windows turns of the loop are not counted: how many there were is "
                f"reckoned from their duration, {format_duration(step_us)}",
                "mark them yourself with memprof.step()",
            )
        self._counted_steps += steps
        self._look(self._last_step, by_time=True)
        self._processor_us = time.process_time() * 1e6

    def _judge(self, at_us: int) -> None:
        """End the window here where a limit is met; begin one where no step does it."""
        was_open = self.recording.window != NOT_RECORDED
        is_open = self._schedule.time_passed(at_us, self.meter)
        if self._is_open and is_open != was_open:
            self._change_window(is_open=is_open, in_step=True)

    def _look_for_unseen_code(self, at_us: int) -> None:
        """Begin a window where the main thread runs code that no window has recorded."""
        if not self._schedule.may_open_for_code(at_us, self.meter):
            return
        if self._unseen_code.is_running(sys._getframe()):
            self._schedule.open_for_code(at_us, self.meter)
            self._change_window(is_open=True, in_step=True)

    def _resume(self, at_us: int) -> None:
        was_open = self.recording.window != NOT_RECORDED
        if self._schedule.training_begins(at_us, self.meter) and not was_open:
            self._change_window(is_open=True, in_step=True)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        was, self._is_inside = self._is_inside, True
        try:
            yield
        finally:
            self._is_inside = was

    # -- writing now and then ------------------------------------------------------------------

    def _write_now_and_then(self, at_us: int) -> None:
        in_window = self.recording.window != NOT_RECORDED
        is_due = at_us - self._flushed_us >= (FLUSH_IN_WINDOW_US if in_window else _FLUSH_US)
        # The file takes its name with the first step: a child may be quicker than the next flush.
        if not is_due and not self.output.is_unnamed:
            return
        if in_window:
            self.recording.drain(only_cheap=True)
        self._write_rows()
        if self._unsaid and not self._may_prepare():
            self._say_held_back()
        if self._summaries.is_due(at_us):
            self._tell_guess()
            self._summaries.write(self._steps, self._devices)
            for finding, message in self._warnings.due(self._summaries.filling):
                self._add_finding(finding, message)
        self.recording.write_notes()
        self._hand_over()
        if self.output.is_closed:  # a full disk ends recording, not training
            self._abandon()

    def _hand_over(self) -> None:
        """Hand the file what waits, and count a file system that holds the job up."""
        clock_us, spent_us = _clock_us(), thread_us()
        self.output.flush()
        waited_us = (_clock_us() - clock_us) - (thread_us() - spent_us)
        if waited_us >= _STALL_US:
            self.meter.beside(waited_us)
        self._flushed_us = _clock_us()

    def _count_hook(self, began_us: float) -> float:
        """Add what the thread has used since, by `thread_us`."""
        spent_us = thread_us() - began_us
        self.meter.hook(spent_us)
        return spent_us

    def _count_aside(self, began_us: float) -> None:
        """The same for what no window costs."""
        self.meter.beside(thread_us() - began_us)

    def _guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run our own code; an error in it ends the recording, never the job."""
        try:
            action(*arguments)
        except guarded_errors() as error:  # whatever it is, the job goes on
            LOG.warning("recording has ended, the job goes on", exc_info=True)
            self.recording.note("tracker", f"recording ended: {type(error).__name__}: {error}")
            self._abandon()

    def _abandon(self) -> None:
        """Take every hook away and record no more; what was written stays."""
        self._is_open = False
        self._main_thread.close()
        for close in (self._close_lookout, self._close_boundaries, self.recording.close):
            self._try(close)

    @staticmethod
    def _try(action: Callable[[], object]) -> bool:
        """Do something that the rest does not depend on; whether it could be done."""
        try:
            action()
        except guarded_errors():  # see _guard
            LOG.warning("a part of recording failed, the job goes on", exc_info=True)
            return False
        return True

    def _close_lookout(self) -> None:
        if self._survivor_watch is not None:
            self._survivor_watch.close(quietly=True)

    def _close_boundaries(self) -> None:
        if self._loop_watch is not None:
            self._loop_watch.close()

    def _reader_failed(self, source: ReadingSource, error: Exception) -> None:
        if isinstance(error, MemprofError):
            self.recording.note(source.name, error.message, error.hint)
            return
        message = f"the source failed and was closed: {type(error).__name__}: {error}"
        self.recording.note(source.name, message)
        LOG.warning("the source %r failed; the job goes on", source.name, exc_info=error)

    # -- writing -------------------------------------------------------------------------------

    def _write_header(self) -> None:
        self._devices = self.recording.devices()
        self.output.renew_header()

    def _header(self) -> Header:
        return header(self._devices, self._options.as_record(), self._began_us)

    def _write_rows(self, *, unfinished: bool = False) -> None:
        for record in self._figures.take(unfinished=unfinished):
            self.output.write(record)

    def add_readings(self, record: Readings) -> None:
        """Write down what was read of a device, on any thread."""
        if self._thinning.takes(record):
            self.output.write(record)
        else:
            self.output.show(record)
        self._figures.read(record)


def _survivor_watch(
    write: Callable[[Finding, str], None], note: Callable[[str, str], None], share: float
) -> SurvivorWatch:
    # It imports torch, which is there by now.
    from memprof.referrers.survivor_watch import SurvivorWatch

    return SurvivorWatch(write, note, share=share)


def _allocated_and_idle(counters: list[Counters]) -> tuple[int, int]:
    """Bytes of tensors, and bytes reserved beyond them, over all devices; -1 where not known."""
    allocated = [c.allocated for c in counters if c.allocated >= 0]
    idle = [c.reserved - c.allocated for c in counters if min(c.reserved, c.allocated) >= 0]
    return sum(allocated) if allocated else -1, sum(idle) if idle else -1


def _spent_us(loop_watch: Any) -> float:
    """What the hooks on modules took since they were asked last."""
    return float(loop_watch.take_spent_us()) if hasattr(loop_watch, "take_spent_us") else 0.0


def is_closed(frame: FrameType | None) -> bool:
    """Whether torch is in the middle of something that must not be disturbed, up the stack."""
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name.startswith(_CLOSED) and name != _OPEN:
            return True
        frame = frame.f_back
    return False


def _brief(what: Exhausted) -> Exhausted:
    """The same without what is large or dear."""
    from dataclasses import replace

    return replace(what, live={}, trace=None, owned={}, brief=True)


def _clock_us() -> float:
    return time.perf_counter_ns() / 1000
