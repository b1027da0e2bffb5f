"""Sources of events in, records out: windows, drains and counters, each guarded against its source.

When a window opens and closes is decided in `window_schedule`, and who asks it in `session`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from memprof.cpython.signal_errors import guarded_errors
from memprof.log import LOG
from memprof.record.output import Output
from memprof.records import DeviceInfo, Finding, LastReadsRecord, Note, Owners
from memprof.runfile.writer import encode_state, encode_trace
from memprof.sources.protocol import Chunk, Counters, EventSource, Interner, LastRead
from memprof.sources.user_files import ProgramFiles
from memprof.trace import NOT_RECORDED, Events, State

if TYPE_CHECKING:
    from memprof.sources.cuda.oom_observer import Exhausted

__all__ = ["Recording", "Use"]

DRAIN_SHARE = 0.05
"""Draining in a window may take so much of the time: a source whose drain is dear waits longer."""

_DEAREST_EVENT_US = 30.0
"""What an event takes of a source that neither times itself nor says it (``event_us``)."""

Answer = TypeVar("Answer")


class _Open(msgspec.Struct):
    """A source that works, and how long its last drain took."""

    source: EventSource
    devices: tuple[DeviceInfo, ...] = ()
    drained: int = 0
    counted_events: int = 0
    """Events that `Recording.used` has told of."""
    drained_at_us: float = 0.0
    drain_us: float = 0.0


class Use(NamedTuple):
    """What recording used since it was last asked."""

    events: int
    """Drained or not; below 0 where more had been thought to wait than there was."""
    waiting: int
    """Of all events, those that wait in memory now."""
    prior_us: float
    """What these events probably cost, where no source times them."""
    spent_us: float
    """Time that sources measured themselves, beside the calls made here."""
    bytes: int
    """Written of what windows record."""
    rows: int
    """New rows of the interned tables."""


class Recording(msgspec.Struct):
    """One run file being written from its event sources.

    A source that raises is closed, with a note in the file and one warning in the log; the others
    go on.
    """

    output: Output
    interner: Interner
    window: int = NOT_RECORDED
    """The open window's number, or `NOT_RECORDED`."""
    _sources: list[_Open] = msgspec.field(default_factory=list)
    _failed: list[_Open] = msgspec.field(default_factory=list)
    """Those that were closed, perhaps within a step, where not everything can be undone."""
    _windows: int = 0
    _events_written: dict[str, int] = msgspec.field(default_factory=dict)
    """Events of the open window that were written, by device."""
    _totals: dict[str, int] = msgspec.field(default_factory=dict)
    _bytes: int = 0
    _rows: int = 0
    _files: ProgramFiles = msgspec.field(default_factory=ProgramFiles)

    def add(self, source: EventSource) -> None:
        """Open a source; in a window it records from now on."""
        open_source = _Open(source)
        self._sources.append(open_source)
        self._ask(open_source, source.open)
        if self.window != NOT_RECORDED and open_source in self._sources:
            self._begin(open_source)

    def devices(self) -> list[DeviceInfo]:
        """Every device that is recorded now."""
        infos: list[DeviceInfo] = []
        for open_source in list(self._sources):
            infos += self._ask(open_source, open_source.source.devices) or ()
        return infos

    def counters(self) -> list[Counters]:
        """The figures of every device at this moment."""
        rows: list[Counters] = []
        for open_source in list(self._sources):
            rows += self._ask(open_source, open_source.source.counters) or ()
        return rows

    def used(self) -> Use:
        """What was used since the last call."""
        events, waiting, prior_us = 0, 0, 0.0
        for open_source in list(self._sources):
            pending = self._ask(open_source, open_source.source.pending_events) or 0
            new = open_source.drained + pending - open_source.counted_events
            open_source.counted_events += new
            events, waiting = events + new, waiting + pending
            if not getattr(open_source.source, "is_timed", False):
                prior_us += new * getattr(open_source.source, "event_us", _DEAREST_EVENT_US)
        bytes_, rows = self.output.window_bytes, len(self.interner)
        use = Use(
            events, waiting, prior_us, self._spent_us(), bytes_ - self._bytes, rows - self._rows
        )
        self._bytes, self._rows = bytes_, rows
        return use

    def is_over(self) -> bool:
        """Whether a source lost events of the open window, which only another can leave behind."""
        answers = [self._ask(o, o.source.is_over) for o in self._able("is_over")]
        return self.window != NOT_RECORDED and any(answers)

    def _spent_us(self) -> float:
        return sum(self._ask(o, o.source.take_spent_us) or 0 for o in self._able("take_spent_us"))

    def _able(self, method: str) -> list[Any]:
        return [open_source for open_source in self._sources if hasattr(open_source.source, method)]

    def total_events(self, device: str) -> int:
        """Events written of a device so far."""
        return self._totals.get(device, 0)

    def begin_window(self) -> None:
        """Record every event from now on."""
        self.window, self._windows = self._windows, self._windows + 1
        self._events_written.clear()
        for open_source in list(self._sources):
            self._begin(open_source)

    def grow(self) -> bool:
        """Take in what the sources now say of devices; whether any is new or has changed."""
        before = [open_source.devices for open_source in self._sources]
        for open_source in list(self._sources):
            infos = tuple(self._ask(open_source, open_source.source.devices) or ())
            if _names(infos) != _names(open_source.devices) and self.window != NOT_RECORDED:
                self._begin(open_source)
            open_source.devices = infos
        return before != [open_source.devices for open_source in self._sources]

    def drain(self, *, only_cheap: bool = False) -> None:
        """Write the events since the last drain; ``only_cheap`` skips those it is too soon for."""
        for open_source in list(self._sources):
            if only_cheap and not _is_cheap_now(open_source):
                continue
            began_us = _clock_us()
            for chunk in self._ask(open_source, open_source.source.drain) or ():
                self._write(chunk)
                open_source.drained += len(chunk.events)
            open_source.drained_at_us = _clock_us()
            open_source.drain_us = open_source.drained_at_us - began_us

    def at_failure(self, what: Exhausted) -> None:
        """Let the sources say what a device holds whose memory ran out without telling them."""
        for open_source in self._able("at_failure"):
            self._ask(open_source, partial(open_source.source.at_failure, what))

    def with_owners(self, device: str, state: State) -> State:
        """What a device held between windows, with the labels and categories of known blocks."""
        for open_source in self._able("with_owners"):
            ask = partial(open_source.source.with_owners, device, state)
            state = self._ask(open_source, ask) or state
        return state

    def end_window(self) -> None:
        """Drain a last time, stop recording events and flush."""
        self.drain()
        for open_source in self._able("living_reads"):
            reads = self._ask(open_source, open_source.source.living_reads) or {}
            for device, of_device in reads.items():
                self._write_last_reads(device, of_device)
        for open_source in list(self._sources):
            states = self._ask(open_source, open_source.source.end_window) or {}
            self._write_states("end", states)
        self._write_observations()
        self.write_notes()
        self.window = NOT_RECORDED
        self.output.flush()

    def write_moment(self, device: str, state: State, events: Events) -> int:
        """A window of its own for one moment between windows, ``state`` at its end; its number."""
        number, self._windows = self._windows, self._windows + 1
        self.write_tables()
        self.output.write(encode_trace(device, number, 0, events))
        self.output.write(encode_state(device, number, "end", state))
        self._totals[device] = self.total_events(device) + len(events)
        return number

    def _write_observations(self) -> None:
        self.write_tables()
        for open_source in self._able("observations"):
            for record in self._ask(open_source, open_source.source.observations) or ():
                self.output.write(record)

    def write_notes(self) -> None:
        """What the sources could not see since the last call."""
        for open_source in list(self._sources):
            for message in self._ask(open_source, open_source.source.notes) or ():
                self.note(open_source.source.name, message)

    def note(self, source: str, message: str, hint: str = "") -> None:
        """Say in the file that something was not recorded."""
        self.output.write(Note(source, message, hint, time.time_ns() // 1000))

    def close(self) -> None:
        """Close every source, and once more those that failed."""
        for open_source in self._failed:
            try:
                open_source.source.close()
            except Exception:  # noqa: BLE001 - that it failed was said
                LOG.debug("the source %r did not close", open_source.source.name)
        self._failed.clear()
        while self._sources:
            open_source = self._sources[-1]
            self._ask(open_source, open_source.source.close)
            if open_source in self._sources:
                self._sources.remove(open_source)

    def disown(self) -> None:
        """In a forked child: close every source and write nothing, the file is the parent's."""
        for open_source in reversed(self._sources):
            try:
                open_source.source.close()
            except guarded_errors():  # the child must start whatever happens here
                LOG.debug("the source %r did not close in a fork", open_source.source.name)
        self._sources.clear()

    def _begin(self, open_source: _Open) -> None:
        states = self._ask(open_source, open_source.source.begin_window) or {}
        self._write_states("start", states)

    def _write(self, chunk: Chunk) -> None:
        self.write_tables()
        count, first = len(chunk.events), self._events_written.get(chunk.device, 0)
        if count:
            self.output.write(encode_trace(chunk.device, self.window, first, chunk.events))
            self._events_written[chunk.device] = first + count
            self._totals[chunk.device] = self.total_events(chunk.device) + count
        if chunk.late_events or chunk.late_blocks:
            self.output.write(_owners(chunk, self.window))
        self._write_last_reads(chunk.device, chunk.last_reads)

    def _write_last_reads(self, device: str, reads: Sequence[LastRead]) -> None:
        if reads:
            columns = map(list, zip(*reads, strict=True))
            self.output.write(LastReadsRecord(device, self.window, *columns))

    def _write_states(self, at: str, states: Mapping[str, State]) -> None:
        self.write_tables()
        for device, state in states.items():
            self.output.write(encode_state(device, self.window, at, state))

    def write_tables(self) -> None:
        """The rows of the tables that are new; whoever points into them writes them first."""
        tables = self.interner.take_new()
        if tables is not None:
            self.output.write(tables)
            self._write_files(filename for _, filename, _ in tables.frames)

    def write_finding(self, finding: Finding) -> None:
        """A finding, below the rows that it points into."""
        self.write_tables()
        for holder in finding.holders:
            self._write_files([holder.filename, *(link.filename for link in holder.links)])
        self.output.write(finding)

    def _write_files(self, filenames: Iterable[str]) -> None:
        files = self._files.new(filenames)
        if files is not None:
            self.output.write(files)

    def _ask(self, open_source: _Open, question: Callable[[], Answer]) -> Answer | None:
        """The source's answer; None when it raised, after which it is closed and gone."""
        try:
            return question()
        except guarded_errors() as error:  # whatever it is, the job goes on
            self._drop(open_source, error)
            return None

    def _drop(self, open_source: _Open, error: Exception) -> None:
        if open_source in self._sources:
            self._sources.remove(open_source)
        self._failed.append(open_source)
        name = open_source.source.name
        self.note(name, f"the source failed and was closed: {type(error).__name__}: {error}")
        LOG.warning("the source %r failed and was closed; the job goes on", name, exc_info=error)
        try:
            open_source.source.close()
        except guarded_errors() as second:  # see _ask
            self.note(name, f"closing it failed too: {type(second).__name__}: {second}")


def _names(infos: Sequence[DeviceInfo]) -> list[str]:
    return [info.device for info in infos]


def _owners(chunk: Chunk, window: int) -> Owners:
    return Owners(
        device=chunk.device,
        window=window,
        events=list(chunk.late_events),
        categories=[int(one.category) for one in chunk.late_events.values()],
        labels=[one.label for one in chunk.late_events.values()],
        blocks=list(chunk.late_blocks),
        block_categories=[int(one.category) for one in chunk.late_blocks.values()],
        block_labels=[one.label for one in chunk.late_blocks.values()],
    )


def _is_cheap_now(open_source: _Open) -> bool:
    return _clock_us() - open_source.drained_at_us >= open_source.drain_us / DRAIN_SHARE


def _clock_us() -> float:
    return time.perf_counter_ns() / 1000
