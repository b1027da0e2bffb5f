"""Writes a run file: records appended so that SIGKILL loses nothing that was flushed.

What the records hold is defined in `memprof.records`. One record a line inside a JSON array: valid
JSON once closed, and readable without its end.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

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
from memprof.trace import NOT_RECORDED, Column, Columns, Events, State

__all__ = ["RunWriter", "encode_state", "encode_trace"]

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


def _listed(value: Any) -> Any:
    """A list for a column, and a text for whatever else JSON lacks: options may hold anything."""
    return value.tolist() if isinstance(value, np.ndarray) else repr(value)


def _encoded(value: Any) -> Any:
    """The same, with a column's JSON in place of the list."""
    encode_array = _array_encoder() if isinstance(value, np.ndarray) else None
    return _listed(value) if encode_array is None else msgspec.Raw(encode_array(value))


@functools.cache
def _array_encoder() -> Callable[[Column], bytes] | None:
    """Writes a column as JSON, in a quarter of what a list takes; None where orjson is missing."""
    try:
        import orjson  # with the first window: what begins a recording is to be short
    except ImportError:
        return None
    return functools.partial(orjson.dumps, option=orjson.OPT_SERIALIZE_NUMPY)


_ENCODER = msgspec.json.Encoder(enc_hook=_encoded)


def _encode(record: Record) -> bytes:
    """The record's JSON; where it has none (text that is no Unicode), as much of it as can be."""
    try:
        return _ENCODER.encode(record)
    except UnicodeEncodeError:
        return _ENCODER.encode(_replace_text(msgspec.to_builtins(record, enc_hook=_listed)))
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


def _column(column: Column) -> list[int]:
    """The column for a record that is written at once: the encoder takes it as it is."""
    return cast("list[int]", np.ascontiguousarray(column))


def encode_trace(device: str, window: int, first_event: int, events: Events) -> TraceRecord:
    """A chunk of events, the first of which has index ``first_event`` in its window."""
    return TraceRecord(
        device=device,
        window=window,
        first_event=first_event,
        action=_column(events.action),
        address=_column(events.address),
        size=_column(events.size),
        time_us=_column(np.diff(events.time_us, prepend=0)),
        stack=_column(events.stack),
        label=_column(events.label),
        category=_column(events.category),
        stream=_column(events.stream) if events.stream.any() else [],
        pool=_column(events.pool) if (events.pool != NOT_RECORDED).any() else [],
        origin=_column(events.origin) if events.origin.any() else [],
    )


def encode_state(device: str, window: int, at: str, state: State) -> StateRecord:
    """What an allocator holds at the ``"start"`` or the ``"end"`` of a window."""
    return StateRecord(
        device=device,
        window=window,
        at=at,
        segments=SegmentColumns(**_columns(state.segments)),
        blocks=BlockColumns(**_columns(state.blocks)),
    )


def _columns(columns: Columns) -> dict[str, Any]:
    return {name: _column(getattr(columns, name)) for name in columns.names()}
