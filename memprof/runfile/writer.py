"""Writes a run file: records appended so that SIGKILL loses nothing that was flushed.

What the records hold is defined in `memprof.records`. One record a line inside a JSON array: valid
JSON once closed, and readable without its end.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from memprof.cpython.signal_errors import guarded_errors
from memprof.records import (
    BlockColumns,
    Footer,
    Header,
    Note,
    Record,
    SegmentColumns,
    StateRecord,
    TraceRecord,
)
from memprof.runfile.gzipped import Sink
from memprof.runfile.sinks import create_sink
from memprof.trace import NOT_RECORDED, Columns, Events, State

__all__ = ["RunWriter", "encode_state", "encode_trace"]

_ENCODER = msgspec.json.Encoder(enc_hook=repr)  # options and details may hold anything
_BUFFER_BYTES = 1 << 20


class RunWriter:
    """Appends records to one file; never raises into the job after it was opened.

    A write that fails (a full disk) ends recording: ``failure`` holds the error and later calls do
    nothing. A forked child's calls do nothing either. Any thread may call.
    """

    def __init__(self, path: str | Path, header: Header) -> None:
        """Create the file (and its folders), replacing one that is there, and write ``header``.

        Raises:
            MemprofError: the file cannot be created.
        """
        self.path = str(path)
        self.failure: Exception | None = None
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._buffer = bytearray(b"[\n" + _encode(header))
        self._sink: Sink | None = create_sink(self.path)
        self.flush()

    def write(self, record: Record) -> int:
        """Append one record, which reaches the operating system at the next `flush`; its bytes."""
        if self._pid != os.getpid():  # before the lock, which another thread may hold at a fork
            return 0
        line = b",\n" + _encode(record)
        with self._lock:
            self._buffer += line  # at one stroke: a finalizer may write in between
            if len(self._buffer) >= _BUFFER_BYTES:
                self.flush()
        return len(line)

    def flush(self) -> None:
        """Hand everything to the operating system: a process killed after this loses none of it."""
        if self._pid != os.getpid():
            return
        with self._lock:
            data, self._buffer = bytes(self._buffer), bytearray()
            if self._sink is None:
                return
            try:
                self._sink.write(data)
                self._sink.flush()
            # A remote file system raises what it likes; the job must not see it.
            except guarded_errors() as error:
                self.failure, sink, self._sink = error, self._sink, None
                _close(sink)

    def close(self, footer: Footer | None = None) -> None:
        """Write ``footer``, end the array and close; safe to call twice."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if footer is not None:
                self.write(footer)
            self._buffer += b"\n]\n"
            self.flush()
            sink, self._sink = self._sink, None
            if sink is not None:
                self.failure = _close(sink) or self.failure


def _close(sink: Sink) -> Exception | None:
    try:
        sink.close()
    except guarded_errors() as error:  # as in flush
        return error
    return None


def _encode(record: Record) -> bytes:
    """The record's JSON; where it has none (text that is no Unicode), as much of it as can be."""
    try:
        return _ENCODER.encode(record)
    except UnicodeEncodeError:
        return _ENCODER.encode(_replace_text(msgspec.to_builtins(record, enc_hook=repr)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        kind = type(record).__name__
        return _ENCODER.encode(Note("file", f"a {kind} could not be written: {error}"))


def _replace_text(value: Any) -> Any:
    """The same without what UTF-8 cannot hold: file names and arguments may be any bytes."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_replace_text(k): _replace_text(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_text(v) for v in value]
    return value


# -- columns to records ------------------------------------------------------------------------


def encode_trace(device: str, window: int, first_event: int, events: Events) -> TraceRecord:
    """A chunk of events, the first of which has index ``first_event`` in its window."""
    return TraceRecord(
        device=device,
        window=window,
        first_event=first_event,
        action=events.action.tolist(),
        address=events.address.tolist(),
        size=events.size.tolist(),
        time_us=np.diff(events.time_us, prepend=0).tolist(),
        stack=events.stack.tolist(),
        label=events.label.tolist(),
        category=events.category.tolist(),
        stream=events.stream.tolist() if events.stream.any() else [],
        pool=events.pool.tolist() if (events.pool != NOT_RECORDED).any() else [],
        origin=events.origin.tolist() if events.origin.any() else [],
    )


def encode_state(device: str, window: int, at: str, state: State) -> StateRecord:
    """What an allocator holds at the ``"start"`` or the ``"end"`` of a window."""
    return StateRecord(
        device=device,
        window=window,
        at=at,
        segments=SegmentColumns(**_lists(state.segments)),
        blocks=BlockColumns(**_lists(state.blocks)),
    )


def _lists(columns: Columns) -> dict[str, list[Any]]:
    return {name: getattr(columns, name).tolist() for name in columns.names()}
