"""track(): sources in, run file out, with windows and their budget; runs inside the user's job.

Nothing here raises into the job once it has started. What a window costs and when one opens is
decided in `window_schedule`, how records are made in `recording`, what a source sees in `sources`.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from memprof.cpython.gc_pause import collector_paused
from memprof.cpython.import_hook import ImportWatch
from memprof.cpython.signal_errors import guarded_errors, is_of_signal
from memprof.errors import MemprofError
from memprof.log import LOG
from memprof.record.options import SOURCES, Options, Source
from memprof.record.process import DEFAULT_PATH, Rank, path_of_rank
from memprof.record.session import Session
from memprof.records import Finding, Readings
from memprof.sources.cpu.dispatch_mode import pop_left
from memprof.sources.loop.loop_watch import annotate
from memprof.sources.loop.main_thread import hands_on, passes_on
from memprof.sources.loop.optimizer_hooks import remove_left

if TYPE_CHECKING:
    from memprof.record.standby import Standby

__all__ = ["Tracker", "active", "annotate", "start", "step", "steps", "stop", "track"]


Item = TypeVar("Item")
Function = TypeVar("Function", bound=Callable[..., Any])


def track(  # noqa: PLR0913 - each an option by its name
    path: str | os.PathLike[str] = DEFAULT_PATH,
    *,
    budget: float = 0.01,
    sample_interval_s: float = 1.0,
    window_steps: int = 5,
    max_events: int = 2_000_000,
    max_bytes: int = 44 << 20,
    allowance_s: float = 10.0,
    sources: Sequence[Source] | None = None,
    on_finding: Callable[[Finding], None] | None = None,
    prometheus: int | str | None = None,
    opentelemetry: object = False,
    standby: bool = False,
) -> Tracker:
    """Record the memory of a block or of a function into a run file.

    ::

        with memprof.track("run.json"):
            train()

    Args:
        path: the run file; under torchrun, srun or mpirun each rank writes ``run.rank3.json``.
        budget: the share of the elapsed time that recording may take on average.
        sample_interval_s: seconds between two readings of the driver and the host.
        window_steps: steps in a window after the first.
        max_events: events in the whole file.
        max_bytes: bytes of events, states and tables in the whole file, before compression;
            counters, findings and notes are always written.
        allowance_s: seconds that recording may take in any case; short runs are recorded whole.
        sources: of ``cpu``, ``cuda``, ``nvml``, ``host`` or your own; all by default.
        on_finding: called with each finding while the job runs.
        prometheus: a port on which this machine can scrape metrics, or ``host:port`` for others to;
            local rank 1 has the next port, and so on.
        opentelemetry: True sends the same to the program's ``MeterProvider``; or the one to use.
        standby: record nothing until `memprof attach` asks for it, and as often as it does.

    Raises:
        MemprofError: an option is wrong; or, when the block begins, the file cannot be written.
    """
    options = Options(
        budget=budget,
        sample_interval_s=sample_interval_s,
        window_steps=window_steps,
        max_events=max_events,
        max_bytes=max_bytes,
        allowance_s=allowance_s,
        sources=SOURCES if sources is None else list(sources),
        on_finding=on_finding,
        prometheus=prometheus,
        opentelemetry=opentelemetry,
    )
    return Tracker(os.fspath(path), options, standby=standby)


def start(path: str | os.PathLike[str] = DEFAULT_PATH, **options: Any) -> Tracker:
    """Record from now on until `stop` or the end of the program; options as for `track`."""
    return track(path, **options).start()


def stop() -> None:
    """End the recording that runs, if one does."""
    tracker = active()
    if tracker is not None:
        tracker.stop()


def step() -> None:
    """Say that a training step has ended; nothing happens when nothing is recorded."""
    tracker = active()
    if tracker is not None:
        tracker.step()


def steps(iterable: Iterable[Item]) -> StepIterable[Item]:
    """The same items; each stands for one training step, which ends when the next is asked for."""
    return StepIterable(iterable)


class StepIterable(Generic[Item]):
    """An iterable whose items are training steps; as long as what it was made of."""

    def __init__(self, iterable: Iterable[Item]) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Item]:
        for item in self._iterable:
            yield item
            step()

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]


_active: Tracker | None = None


def active() -> Tracker | None:
    """The tracker that records in this process, if one does."""
    return _active


class Tracker:
    """One recording of this process: a context manager, a decorator, or `start` and `stop`."""

    def __init__(
        self,
        path: str,
        options: Options,
        *,
        lazy_path: Callable[[], str] | None = None,
        standby: bool = False,
    ) -> None:
        """Nothing happens before `start`, and with ``standby`` nothing before `memprof attach`.

        ``lazy_path`` names the file at the time of the first step or event, so that a process
        without any leaves no file.
        """
        self._path = path
        self._options = options
        self._lazy_path = lazy_path
        self._standby = _standby(path, options) if standby else None
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._session: Session | None = None
        self._watch: ImportWatch | None = None

    @property
    def path(self) -> str:
        """The run file; empty as long as there is none."""
        return self._session.output.path if self._session is not None else ""

    @property
    def overhead_us(self) -> float:
        """What recording has cost so far, as measured by itself."""
        return self._session.meter.total_us if self._session is not None else 0.0

    def start(self) -> Tracker:
        """Record from now on.

        While another tracker records, this one only passes `step` on to it: a script that tracks
        itself can be run under ``memprof run``.

        Raises:
            MemprofError: the file cannot be created, or with ``standby`` no socket.
        """
        global _active  # noqa: PLW0603 - one recording a process, as torch's hooks are global
        if self._standby is not None:
            self._standby.open()
            return self
        with self._lock:
            if _active is not None:
                _active.note_second(self._path)
                return self
            _take_what_was_left()
            try:
                with collector_paused():
                    self._begin()
            except MemprofError:
                raise
            except BaseException as reason:  # Ctrl-C too leaves no hook behind
                if is_of_signal(reason):
                    self._abandon()
                    raise
                LOG.warning("nothing is recorded, the job goes on", exc_info=True)
                self._abandon()
                return self
            _active = self
        return self

    def stop(
        self, status: str = "ok", error: BaseException | None = None, *, is_over: bool = False
    ) -> None:
        """End the recording; safe to call twice, and in a forked child.

        ``error`` is the exception that ends what was recorded. ``is_over``: the program is, so that
        the last look for holders may take its time.
        """
        global _active  # noqa: PLW0603
        if self._standby is not None:
            self._standby.close()
            return
        with self._lock:
            if _active is not self:
                _take_what_was_left()
                return
            try:
                with _ended_by(error):
                    self._end(status, is_over=is_over)
            except BaseException as reason:  # Ctrl-C too leaves no hook behind
                self._abandon()
                if is_of_signal(reason):
                    raise
                LOG.warning("recording has not ended well, the job goes on", exc_info=True)
            finally:
                _active = None
                _take_what_was_left()

    def failed(self, error: BaseException) -> None:
        """An exception ends the job; if memory ran out, that is recorded before it goes on."""
        if self._session is not None and _active is self:
            self._session.failed(error)

    def step(self) -> None:
        """Say that a training step has ended; from now on only these calls end steps."""
        tracker = _active
        session = tracker._session if tracker is not None else None
        if session is not None:
            session.step_done()

    def add_finding(self, finding: Finding) -> None:
        """Write what was found out inside the job, log it and tell ``on_finding``."""
        if self._session is not None:
            self._session.add_finding(finding)

    def note(self, source: str, message: str) -> None:
        """Write down what was not recorded, or not exactly; reports show it under "not seen"."""
        if self._session is not None:
            self._session.recording.note(source, message)

    def add_readings(self, readings: Readings) -> None:
        """Write down what was read of a device."""
        if self._session is not None:
            self._session.add_readings(readings)

    def end_program_after(self, steps: int) -> None:
        """End the program by `SystemExit` after so many steps; to be called before `start`."""
        self._options = msgspec.structs.replace(self._options, last_step=steps)

    def note_second(self, path: str) -> None:
        """Another tracker wanted to start while this one records."""
        LOG.warning(
            "already recording to %s, so track(%r) records nothing", self.path or self._path, path
        )
        if self._session is not None:
            self._session.recording.note("tracker", f"track({path!r}) began inside this recording")

    def __enter__(self) -> Tracker:  # noqa: PYI034 - no Self in Python 3.10
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        if error is not None:
            self.failed(error)
        self.stop(status_of(error), error)
        return False

    @passes_on
    def __call__(self, function: Function) -> Function:
        """Record every call of ``function``; the file holds the last one."""
        if inspect.iscoroutinefunction(function):

            @hands_on
            @functools.wraps(function)
            async def recorded_async(*args: Any, **kwargs: Any) -> Any:
                with self._again():
                    return await function(*args, **kwargs)

            return recorded_async  # type: ignore[return-value]

        @hands_on
        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return recorded  # type: ignore[return-value]

    def _again(self) -> Tracker:
        return Tracker(self._path, self._options, standby=self._standby is not None)

    def _begin(self) -> None:
        self._pid = os.getpid()
        path = self._lazy_path or self._path_of_rank
        self._session = Session(path, self._options, lazy=self._lazy_path is not None)
        _watch_forks()
        atexit.register(self._at_exit)
        # A lazy tracker is started by the import of torch itself, which is not over for Python yet.
        if self._lazy_path is not None or _is_imported("torch"):
            self._session.open_torch()
        else:
            self._watch = ImportWatch("torch", self._session.open_torch)
            self._watch.start()
        self._session.open_samplers()  # last: a driver takes its time to answer

    def _abandon(self) -> None:
        atexit.unregister(self._at_exit)
        if self._watch is not None:
            self._watch.stop()
        if self._session is not None and self._pid == os.getpid():
            self._session.abandon()

    def _path_of_rank(self) -> str:
        return path_of_rank(self._path, Rank.of(os.environ).rank)

    def _end(self, status: str, *, is_over: bool) -> None:
        atexit.unregister(self._at_exit)
        if self._watch is not None:
            self._watch.stop()
        if self._session is not None and self._pid == os.getpid():
            self._session.close(status, is_over=is_over)

    def _at_exit(self) -> None:
        if self._pid == os.getpid():
            error = _uncaught()
            if error is not None:
                self.failed(error)
            self.stop(status_of(error), error, is_over=True)

    def disown(self) -> None:
        """In a forked child: leave the parent's file alone and take every hook away."""
        if self._watch is not None:
            self._watch.stop()
        if self._session is not None:
            self._session.disown()
        atexit.unregister(self._at_exit)


def _standby(path: str, options: Options) -> Standby:
    from memprof.record.standby import Standby  # sockets, which a usual recording needs not

    return Standby(path, options)


def _take_what_was_left() -> None:
    """Of recordings that ended in another thread, or within one of their own hooks."""
    for take in (pop_left, remove_left):
        try:
            take()
        except guarded_errors():  # the job goes on
            LOG.warning("a hook of an earlier recording was not removed", exc_info=True)


def status_of(error: BaseException | None) -> str:
    """How a block ended, for the footer: ``ok``, or the exception."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "ok"
    text = str(error).strip().partition("\n")[0][:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _uncaught() -> BaseException | None:
    """The exception that Python has just reported before it ends; at a prompt it is an old one."""
    return None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)


def _is_imported(name: str) -> bool:
    """Whether a module is there whole, not just begun by somebody up the stack."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


@functools.cache
def _watch_forks() -> None:
    """Once a process: Python offers no way to take this back, and without a tracker it is idle."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_on_fork)


def _on_fork() -> None:
    global _active
    tracker, _active = _active, None
    if tracker is not None:
        tracker.disown()


def _ended_by(error: BaseException | None) -> AbstractContextManager[None]:
    """What the last search has to know of the exception that ends the program."""
    if error is None or not _is_imported("torch"):
        return nullcontext()
    from memprof.referrers.roots import ended_by  # a program without torch searches for nothing

    return ended_by(error)
