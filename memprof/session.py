"""What happens while a tracker records: step ends, windows, drains, samples; all of it guarded.

The tracker opens and closes it; it knows nothing of context managers and exit handlers.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memprof.chosen import Ticks, event_sources, reading_sources
from memprof.environment import header, now_us
from memprof.errors import MemprofError
from memprof.figures import Figures
from memprof.interims import Interims
from memprof.ooms import OomRecords
from memprof.options import Options
from memprof.output import Output
from memprof.recording import Recording, Seen
from memprof.records import DeviceInfo, Finding, Header, Readings
from memprof.sampler import Sampler
from memprof.sources.boundaries import Boundaries
from memprof.sources.ooms import Exhausted
from memprof.sources.protocol import Counters, Interner, ReadingSource
from memprof.steprows import Span
from memprof.trace import NOT_RECORDED
from memprof.windows import OverheadMeter, StepCost, WindowSchedule

if TYPE_CHECKING:
    from memprof.survivors import Lookout

__all__ = ["Session"]

_LOG = logging.getLogger("memprof")
_FLUSH_US = 1_000_000
_PATIENCE_S = 5.0
"""A thread that ran out of memory waits so long for another that is writing, and no longer."""
_LOOK_SHARE = 0.004
"""Between windows, looking at counters may take so much of the time; a look takes some 50 µs."""
_FLUSH_IN_WINDOW_US = 100_000
"""In a window the last events before the job dies matter most."""


class Session:
    """One recording from its first record to its footer."""

    def __init__(self, path: Callable[[], str], options: Options, *, lazy: bool = False) -> None:
        """Nothing is hooked into torch before `open_torch`.

        Raises:
            MemprofError: the file cannot be created, and it is not lazy (see `Output`).
        """
        self._devices: list[DeviceInfo] = []
        self._options = options
        self._began_us = now_us()
        self.output = Output(path, self._header, lazy=lazy)
        self.interner = Interner()
        self.recording = Recording(self.output, self.interner)
        self._ooms = OomRecords(self.recording, self.interner, self._add_finding, self._flush)
        self.meter = OverheadMeter()
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._schedule = WindowSchedule(options.policy, now_us())
        self._boundaries: Boundaries | None = None
        self._lookout: Lookout | None = None
        self._sampler: Sampler | None = None
        self._figures = Figures()
        self._interims = Interims(self._figures, self.recording, self._ooms, self.meter)
        self._steps = 0
        self._last_step = -1
        self._unseen = 0
        self._look_again_us = 0.0
        self._is_open = True
        self._step_began_us = now_us()
        self._hooks_in_step_us = 0.0
        self._seen = Seen(0, 0.0)
        self._flushed_us = now_us()

    # -- opening and closing -------------------------------------------------------------------

    def open_samplers(self) -> None:
        """Start the thread that reads the driver and the host."""
        self._sampler = Sampler(
            reading_sources(self._options),
            self._options.sample_interval_s,
            self._write_readings,
            self._reader_failed,
            self.output.flush,
        )
        self._sampler.start()

    def open_torch(self) -> None:
        """Hook into torch, which is imported, and begin the first window."""
        with self._lock:
            if self._is_open and self._pid == os.getpid():
                self._guarded(self._open_torch)

    def _open_torch(self) -> None:
        self._boundaries = Boundaries(self.interner)
        self._boundaries.open(self.step_ended)
        self._boundaries.listeners.append(Ticks(self._tick))
        sources = event_sources(self._options, self.interner, self._boundaries)
        for source in sources:
            if hasattr(source, "on_oom"):
                source.on_oom = self._exhausted
            self.recording.add(source)
        self.recording.grow()
        self._write_header()
        if self._schedule.is_open:
            self._boundaries.watch_modules()
            self.recording.begin_window()
            self._lookout = _lookout(self._add_finding, self.recording.note, self._options.budget)
            self._lookout.open(sources, self._boundaries.label_of)
        self.output.flush()
        self._step_began_us = now_us()

    def close(self, status: str) -> None:
        """End the window, remove every hook, stop the thread, write the footer."""
        with self._lock:
            if self._is_open:
                self._guarded(self._close_torch)
            self._is_open = False
            self._close_boundaries()  # once more: a recording may have ended within a hook
            if self._sampler is not None and not self._sampler.stop():
                self.recording.note("tracker", "a reading did not come back: the last are missing")
            if "torch" not in sys.modules:
                self.recording.note("tracker", "torch was never imported: the host only")
            self.output.close(self._interims.footer(self._steps, self._devices, status))

    def _close_torch(self) -> None:
        self._close_boundaries()  # may end a last step
        if self._unseen:
            self._look()
        try:
            self._figures.see(self.recording.counters(), self._steps)
            if self.recording.window != NOT_RECORDED:
                self.recording.end_window()
            if self.recording.grow():
                self._write_header()
            if self._lookout is not None:
                self._lookout.close()  # the job's own names are still there
        finally:
            self._close_lookout()
            self.recording.close()
        self.recording.write_notes()
        self._write_rows(unfinished=True)

    def disown(self) -> None:
        """In a forked child: the file and the thread are the parent's; only our hooks are here."""
        self._is_open = False
        self._close_lookout()
        self.recording.disown()
        if self._boundaries is not None:
            try:
                self._boundaries.close()
            except Exception:  # noqa: BLE001 - the child must start whatever happens here
                _LOG.debug("the hooks on torch did not close in a fork", exc_info=True)

    # -- while the job runs --------------------------------------------------------------------

    def step_done(self) -> None:
        """An explicit mark of a step's end."""
        if self._boundaries is not None:
            self._guarded(self._boundaries.step_done)

    def step_ended(self, step: int) -> None:
        """A step ended, explicitly or by itself; called in the job's thread."""
        if not self._is_open or self._pid != os.getpid():
            return
        began_us = _clock_us()
        self._steps += 1
        self._unseen += 1
        self._last_step = step
        if self.recording.window == NOT_RECORDED and began_us < self._look_again_us:
            return  # steps so short that a look at each would cost too much
        with self._lock:
            self._guarded(self._look)
            spent_us = self._count_hook(began_us)
            self._look_again_us = _clock_us() + spent_us / _LOOK_SHARE

    def failed(self, error: BaseException | None) -> None:
        """An exception leaves the recorded block; out-of-memory errors are recorded."""
        if self._is_open and self._pid == os.getpid():
            with self._lock:
                self._guarded(self._ooms.left_the_block, error, self._last_step + 1, self._label())

    def _exhausted(self, what: Exhausted) -> None:
        """A device ran out of memory, on the thread whose request failed."""
        is_ours = self._is_open and self._pid == os.getpid()
        if not (is_ours and self._lock.acquire(timeout=_PATIENCE_S)):
            return
        try:
            self._guarded(self._ooms.observed, what, self._last_step + 1, self._label())
        finally:
            self._lock.release()

    def _label(self) -> int:
        return self._boundaries.label() if self._boundaries is not None else 0

    def _flush(self) -> None:
        self._write_rows()
        self._interims.write(self._steps, self._devices)  # the job may be about to die
        self.recording.write_notes()
        self.output.flush()

    def add_finding(self, finding: Finding) -> None:
        """Write a finding, log it, tell the user's callback."""
        self._add_finding(finding, f"finding at step {finding.step}: {finding.finding}")

    def _add_finding(self, finding: Finding, message: str) -> None:
        """Write a finding; if there is something to say, log it and tell the user."""
        self.recording.write_finding(finding)
        if not message:
            return
        self.output.flush()
        _LOG.warning("%s", message)
        if self._options.on_finding is not None:
            try:
                self._options.on_finding(finding)
            except Exception:  # noqa: BLE001 - it is the user's code, in the user's job
                _LOG.warning("on_finding raised; the job goes on", exc_info=True)

    def _look(self) -> None:
        """Count at the end of a step, or of a few short ones; open or close a window."""
        end_us = now_us()
        if self.recording.grow():
            self._write_header()
        first = self._last_step - self._unseen + 1
        counters = self._count(Span(first, self._last_step, self._step_began_us, end_us))
        cost = self._cost(end_us)
        self.meter.step(cost)
        was_open = self._schedule.is_open
        self._schedule.events_recorded(cost.events)
        is_open = self._schedule.step_ended(end_us, self.meter, *_allocated_and_idle(counters))
        if is_open and self._lookout is not None:
            began_us = _clock_us()
            self._lookout.step_ended(self._last_step)
            self.meter.search(_clock_us() - began_us)
        if is_open != was_open or self.recording.is_over():
            self._change_window(is_open=is_open)
        self._write_now_and_then(end_us)
        self._unseen = 0
        self._hooks_in_step_us = 0.0
        self._step_began_us = now_us()

    def _count(self, steps: Span) -> list[Counters]:
        counters = self.recording.counters()
        self._figures.count(steps, counters, self.recording.window)
        for figures in counters:
            self._ooms.counted(figures.device, figures.ooms, steps.last)
        return counters

    def _cost(self, end_us: int) -> StepCost:
        before, self._seen = self._seen, self.recording.seen()
        spent_us = self.recording.spent_us()
        self.meter.hook(spent_us)
        self._hooks_in_step_us += spent_us
        duration_us = end_us - self._step_began_us - round(self._hooks_in_step_us)
        return StepCost(
            duration_us=max(0, duration_us) // max(1, self._unseen),
            events=max(0, self._seen.events - before.events),
            in_window=self.recording.window != NOT_RECORDED,
            prior_us=max(0.0, self._seen.cost_us - before.cost_us),
        )

    def _change_window(self, *, is_open: bool) -> None:
        began_us = _clock_us()
        if self._boundaries is not None and is_open != (self.recording.window != NOT_RECORDED):
            watch = self._boundaries.watch_modules if is_open else self._boundaries.unwatch_modules
            watch()
        if is_open:
            if self.recording.window != NOT_RECORDED:  # it has a gap: another takes over
                self.recording.end_window()
            self.recording.begin_window()
        else:
            self.recording.end_window()
            self._interims.write(self._steps, self._devices)
            if self._lookout is not None:
                self._lookout.window_ended()
        self.meter.edge(_clock_us() - began_us)
        if not is_open and self._schedule.cut:
            self.recording.note(
                "tracker",
                "a window was cut short: it held too many events",
                "raise max_events to record more",
            )

    def _tick(self) -> None:
        """In the middle of a long step: what waits in memory goes to disk now and then."""
        if not self._is_open or self._pid != os.getpid():
            return
        began_us = _clock_us()
        with self._lock:
            self._guarded(self._write_now_and_then, now_us())
            self._hooks_in_step_us += self._count_hook(began_us)

    def _write_now_and_then(self, at_us: int) -> None:
        in_window = self.recording.window != NOT_RECORDED
        if at_us - self._flushed_us < (_FLUSH_IN_WINDOW_US if in_window else _FLUSH_US):
            return
        if in_window:
            self.recording.drain(only_cheap=True)
        self._write_rows()
        if self._interims.is_due(at_us):
            self._interims.write(self._steps, self._devices)
        self.recording.write_notes()
        self.output.flush()
        self._flushed_us = now_us()
        if self.output.ended:  # a full disk ends recording, not training
            self._abandon()

    def _count_hook(self, began_us: float) -> float:
        spent_us = _clock_us() - began_us
        self.meter.hook(spent_us)
        return spent_us

    def _guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run our own code; an error in it ends the recording, never the job."""
        try:
            action(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            _LOG.warning("recording has ended, the job goes on", exc_info=True)
            self.recording.note("tracker", f"recording ended: {type(error).__name__}: {error}")
            self._abandon()

    def _abandon(self) -> None:
        """Take every hook away and record no more; what was written stays."""
        self._is_open = False
        self._close_lookout()
        for close in (self._close_boundaries, self.recording.close):
            try:
                close()
            except Exception:  # noqa: BLE001 - see _guarded
                _LOG.warning("a hook could not be removed", exc_info=True)

    def _close_lookout(self) -> None:
        if self._lookout is not None:
            self._lookout.close(quietly=True)

    def _close_boundaries(self) -> None:
        if self._boundaries is not None:
            self._boundaries.close()

    def _reader_failed(self, source: ReadingSource, error: Exception) -> None:
        if isinstance(error, MemprofError):
            self.recording.note(source.name, error.message, error.hint)
            return
        message = f"the source failed and was closed: {type(error).__name__}: {error}"
        self.recording.note(source.name, message)
        _LOG.warning("the source %r failed; the job goes on", source.name, exc_info=error)

    # -- writing -------------------------------------------------------------------------------

    def _write_header(self) -> None:
        self._devices = self.recording.devices()
        self.output.renew_header()

    def _header(self) -> Header:
        return header(self._devices, self._options.as_record(), self._began_us)

    def _write_rows(self, *, unfinished: bool = False) -> None:
        for record in self._figures.take(unfinished=unfinished):
            self.output.write(record)

    def _write_readings(self, record: Readings) -> None:
        self.output.write(record)
        self._figures.read(record)


def _lookout(
    write: Callable[[Finding, str], None], note: Callable[[str, str], None], share: float
) -> Lookout:
    from memprof.survivors import Lookout  # it imports torch, which is there by now

    return Lookout(write, note, share=share)


def _allocated_and_idle(counters: list[Counters]) -> tuple[int, int]:
    """Bytes of tensors, and bytes reserved beyond them, over all devices; -1 where not known."""
    allocated = [c.allocated for c in counters if c.allocated >= 0]
    idle = [c.reserved - c.allocated for c in counters if min(c.reserved, c.allocated) >= 0]
    return sum(allocated) if allocated else -1, sum(idle) if idle else -1


def _clock_us() -> float:
    return time.perf_counter_ns() / 1000
