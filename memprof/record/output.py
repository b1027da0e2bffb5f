"""Where a tracker's records go: a run file, opened at once or with the first thing to write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from memprof.cpython.signal_errors import guarded_errors
from memprof.errors import MemprofError
from memprof.log import LOG
from memprof.records import (
    Finding,
    Footer,
    Header,
    Owners,
    Readings,
    Record,
    SourceFiles,
    StateRecord,
    StepsRecord,
    TablesRecord,
    TraceRecord,
)
from memprof.runfile.writer import RunWriter

if TYPE_CHECKING:
    from memprof.live.live_run import LiveRun

__all__ = ["Output"]

_LIMITED = (TraceRecord, StateRecord, Owners, TablesRecord, SourceFiles)
"""What a window writes; the rest is little, and always written."""
_MOST_HELD = 10_000
"""Records held before the file is opened; a process that never trains has readings only."""


class Output:
    """One run file, which is opened lazily or at once; never raises after that.

    A lazy one holds its records until the first step, event or finding, and its name is asked for
    only then: a launcher that imports torch but trains nothing leaves no file.
    """

    def __init__(
        self, path: Callable[[], str], header: Callable[[], Header], *, lazy: bool = False
    ) -> None:
        """``path`` names the file, ``header`` says what is known of the process at that moment.

        Raises:
            MemprofError: the file cannot be created, and it is not lazy.
        """
        self._path = path
        self._header = header
        self._lock = threading.RLock()
        self._held_back: list[Record] = []
        self._writer: RunWriter | None = None
        self._is_closed = False
        self.figures: LiveRun | None = None
        """Somebody who wants to see each record as well, if there is one."""
        self.window_bytes = 0
        """Bytes of what windows have written: events, states, owners and tables."""
        if not lazy:
            self._writer = RunWriter(path(), header())

    @property
    def path(self) -> str:
        """The file's name; empty as long as there is none."""
        return self._writer.path if self._writer is not None else ""

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can be written: the disk is full, or the file could not be made."""
        return self._is_closed

    @property
    def is_unnamed(self) -> bool:
        """Whether the file is still to be made, by the first step, event or finding."""
        return self._writer is None and not self._is_closed

    def write(self, record: Record) -> None:
        """Append one record; it is safe on disk after the next `flush`."""
        with self._lock:
            if self._is_closed:
                return
            self.show(record)
            if self._writer is None and isinstance(record, (StepsRecord, TraceRecord, Finding)):
                self._open()
            if self._writer is not None:
                self._append(self._writer, record)
            elif not isinstance(record, Readings) or len(self._held_back) < _MOST_HELD:
                self._held_back.append(record)

    def renew_header(self) -> None:
        """What the header said has become better known; readers take the last one."""
        with self._lock:
            if self._writer is not None:
                self.write(self._header())

    def flush(self) -> None:
        """Hand everything to the operating system; a failure ends recording with one warning."""
        with self._lock:
            if self._writer is None:
                return
            self._writer.flush()
            self._check()

    def close(self, footer: Footer | None) -> None:
        """Write the last record and close; leaves no file when there was nothing to write."""
        with self._lock:
            if footer is not None:
                self.show(footer)
            if self._writer is not None and not self._is_closed:
                self._writer.close(footer)
                self._check()
            self._is_closed = True
            self._held_back.clear()

    def show(self, record: Record) -> None:
        """Hand a record to whoever exports metrics, and must not end the recording."""
        if self.figures is None:
            return
        try:
            self.figures.add(record)
        except guarded_errors():  # the file comes first
            self.figures = None
            LOG.warning("metrics have ended, the recording goes on", exc_info=True)

    def _open(self) -> None:
        try:
            self._writer = RunWriter(self._path(), self._header())
        except MemprofError as error:
            self._end(str(error))
            return
        for record in self._held_back:
            self._append(self._writer, record)
        self._held_back.clear()

    def _append(self, writer: RunWriter, record: Record) -> None:
        length = writer.write(record)
        if isinstance(record, _LIMITED):
            self.window_bytes += length

    def _check(self) -> None:
        if self._writer is not None and self._writer.failure is not None and not self._is_closed:
            self._end(f"cannot write {self._writer.path} any more: {self._writer.failure}")

    def _end(self, why: str) -> None:
        self._is_closed = True
        self._held_back.clear()
        LOG.warning("recording has ended, the job goes on: %s", why)
