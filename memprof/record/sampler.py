"""The thread that reads sampled sources now and then; what is read lives in `sources`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from memprof.cpython.signal_errors import guarded_errors
from memprof.log import LOG
from memprof.records import Readings
from memprof.sources.protocol import Reading, ReadingSource

__all__ = ["ReadingBuffer", "Sampler", "Thinning"]


class ReadingBuffer(msgspec.Struct):
    """Readings of one source and one device until they are written as one record."""

    source: str
    device: str
    time_us: list[int] = msgspec.field(default_factory=list)
    values: dict[str, list[float | int | None]] = msgspec.field(default_factory=dict)

    def add(self, reading: Reading) -> None:
        """One more row; names that it has not, or that are new to it, are filled with None."""
        rows = len(self.time_us)
        self.time_us.append(reading.time_us)
        for name, value in reading.values.items():
            self.values.setdefault(name, [None] * rows).append(value)
        for column in self.values.values():
            column.extend([None] * (rows + 1 - len(column)))

    def take(self) -> Readings:
        """The rows so far as a record; the buffer is empty after it."""
        record = Readings(self.source, self.device, self.time_us, self.values)
        self.time_us, self.values = [], {}
        return record


class Thinning:
    """Which readings of a job of weeks go into its file: all at first, later every 2nd, 4th, 8th …

    The stride doubles after every `DENSE` that went there, of all devices together: so many devices
    make no larger file. A driver is still asked as often as before: what exports metrics sees each
    reading, and so do the peaks of the footer.
    """

    DENSE = 1024

    def __init__(self) -> None:
        """None has been written."""
        self._stride, self._remaining = 1, self.DENSE
        self._since: dict[tuple[str, str], int] = {}
        self._left_out: dict[tuple[str, str], Readings] = {}

    def takes(self, record: Readings) -> bool:
        """Whether this one is for the file."""
        key = record.source, record.device
        self._since[key] = self._since.get(key, 0) + 1
        if self._since[key] < self._stride:
            self._left_out[key] = record
            return False
        self._since[key] = 0
        self._left_out.pop(key, None)
        self._remaining -= 1
        if not self._remaining:
            self._stride, self._remaining = self._stride * 2, self.DENSE
        return True

    def take_last(self) -> list[Readings]:
        """The latest of each device that was not for the file; at the end it is."""
        left_out, self._left_out = self._left_out, {}
        return list(left_out.values())


class Sampler:
    """Reads every source every ``interval_s`` seconds on a thread of its own.

    After `DENSE` looks the interval doubles, and again after as many more, up to a minute.
    """

    DENSE = 4096
    LONGEST_S = 60.0
    PATIENCE_S = 5.0
    """What `stop` waits for a call into a driver that does not come back."""

    def __init__(
        self,
        sources: Sequence[ReadingSource],
        interval_s: float,
        write: Callable[[Readings], None],
        failed: Callable[[ReadingSource, Exception], None],
        beat: Callable[[], None],
    ) -> None:
        """``write`` takes records, ``failed`` a source that raised, ``beat`` runs after each look.

        All three are called on the sampler's thread, and once more in `stop`.
        """
        self._sources = list(sources)
        self._interval_s = interval_s
        self._write, self._failed, self._beat = write, failed, beat
        self._buffers: dict[tuple[str, str], ReadingBuffer] = {}
        self._looks = 0
        self._stop = threading.Event()
        self._reading = threading.Lock()
        self._thread: threading.Thread | None = None
        self._processor_us = self._taken_us = 0.0
        """Of the thread: so far, and of that what `take_spent_us` has told of."""

    def start(self) -> None:
        """Open the sources and look once now, then go on in the background."""
        for source in list(self._sources):
            self._guard(source, source.open)
        self.look()
        thread = threading.Thread(target=self._run, name="memprof sampler", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread is to be had: there are readings now and at the end
            return
        self._thread = thread

    def stop(self) -> bool:
        """Look a last time, write what is left, end the thread, close; safe to call twice.

        False where a source's call hangs: it must not hang the job too, so nothing more is read or
        written, and no source is closed under it.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=self.PATIENCE_S)
            if self._thread.is_alive():
                return False
            self._thread = None
        try:
            self.look()
            self._flush()
        finally:
            for source in list(self._sources):
                self._guard(source, source.close)
            self._sources.clear()
        return True

    def take_spent_us(self) -> float:
        """Microseconds of the processor that the thread used since the last call."""
        spent_us = self._processor_us - self._taken_us
        self._taken_us += spent_us
        return spent_us

    def look(self) -> None:
        """Read every source once."""
        with self._reading:
            for source in list(self._sources):
                self._guard(source, self._read_source, source)
            self._looks += 1

    def _read_source(self, source: ReadingSource) -> None:
        for reading in source.read():
            self._buffer(source.name, reading.device).add(reading)

    def _guard(self, source: ReadingSource, action: Callable[..., None], *arguments: Any) -> None:
        """Whatever a source raises, the job goes on, without that source."""
        try:
            action(*arguments)
        except guarded_errors() as error:  # see above
            self._sources.remove(source)
            self._failed(source, error)
            try:
                source.close()
            except guarded_errors():  # it has failed already, which is said
                pass

    def _buffer(self, source: str, device: str) -> ReadingBuffer:
        key = (source, device)
        return self._buffers.setdefault(key, ReadingBuffer(source, device))

    def _run(self) -> None:
        try:
            while not self._stop.wait(self.interval_s):
                self.look()
                self._flush()
                self._beat()
                self._processor_us = time.thread_time() * 1e6
        except guarded_errors():  # Python would hand it to the program's `excepthook`
            LOG.warning("readings have ended, the job goes on", exc_info=True)

    @property
    def interval_s(self) -> float:
        """Seconds until the next look."""
        doublings = self._looks // self.DENSE
        factor = float(2 ** min(doublings, 30))
        return min(self._interval_s * factor, max(self.LONGEST_S, self._interval_s))

    def _flush(self) -> None:
        with self._reading:
            for buffer in self._buffers.values():
                if buffer.time_us:
                    self._write(buffer.take())
