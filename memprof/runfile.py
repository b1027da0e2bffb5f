"""The run file: records appended so that SIGKILL loses nothing flushed; read back torn or whole.

What the records hold is defined in `records`; how a `Run` is put together from them in `loading`.
One record a line inside a JSON array: valid JSON once closed, and readable without its end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from memprof.errors import FileFormatError
from memprof.gzipped import GZIP_MAGIC, Sink, inflated
from memprof.records import (
    SCHEMA_VERSION,
    BlockColumns,
    Footer,
    Header,
    Note,
    Record,
    SegmentColumns,
    StateRecord,
    TraceRecord,
)
from memprof.sinks import create_sink
from memprof.trace import NOT_RECORDED, Blocks, Columns, Events, Segments, State

__all__ = [
    "Damage",
    "RunWriter",
    "decode_events",
    "decode_state",
    "encode_state",
    "encode_trace",
    "read_records",
]

_ENCODER = msgspec.json.Encoder(enc_hook=repr)  # options and details may hold anything
_BUFFER_BYTES = 1 << 20
_MOST_IDLE, _IDLE_EACH = 100_000, 100
"""Lines without a record that a damaged file may have, and more of them for each record."""
_WROTE = "memprof reads what track() or `memprof run` wrote, and torch's snapshot pickles"
# Deeply nested JSON makes msgspec raise RecursionError, bad UTF-8 a UnicodeDecodeError.
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


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
        self._buffer = bytearray(b"[\n" + _encoded(header))
        self._sink: Sink | None = create_sink(self.path)
        self.flush()

    def write(self, record: Record) -> int:
        """Append one record, which reaches the operating system at the next `flush`; its bytes."""
        if self._is_child():  # before the lock, which another thread may have held at the fork
            return 0
        line = b",\n" + _encoded(record)
        with self._lock:
            self._buffer += line  # at one stroke: a finalizer may write in between
            if len(self._buffer) >= _BUFFER_BYTES:
                self.flush()
        return len(line)

    def flush(self) -> None:
        """Hand everything to the operating system: a process killed after this loses none of it."""
        if self._is_child():
            return
        with self._lock:
            data, self._buffer = bytes(self._buffer), bytearray()
            if self._sink is None:
                return
            try:
                self._sink.write(data)
                self._sink.flush()
            # A remote file system raises what it likes; the job must not see it.
            except Exception as error:  # noqa: BLE001
                self.failure, sink, self._sink = error, self._sink, None
                _close(sink)

    def close(self, footer: Footer | None = None) -> None:
        """Write ``footer``, end the array and close; safe to call twice."""
        if self._is_child():
            return
        with self._lock:
            if footer is not None:
                self.write(footer)
            self._buffer += b"\n]\n"
            self.flush()
            sink, self._sink = self._sink, None
            if sink is not None:
                self.failure = _close(sink) or self.failure

    def _is_child(self) -> bool:
        return self._pid != os.getpid()


def _close(sink: Sink) -> Exception | None:
    try:
        sink.close()
    except Exception as error:  # noqa: BLE001 - as in flush
        return error
    return None


def _encoded(record: Record) -> bytes:
    """The record's JSON; where it has none (text that is no Unicode), as much of it as can be."""
    try:
        return _ENCODER.encode(record)
    except UnicodeEncodeError:
        return _ENCODER.encode(_replaced(msgspec.to_builtins(record, enc_hook=repr)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        kind = type(record).__name__
        return _ENCODER.encode(Note("file", f"a {kind} could not be written: {error}"))


def _replaced(value: Any) -> Any:
    """The same without what UTF-8 cannot hold: file names and arguments may be any bytes."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_replaced(k): _replaced(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(v) for v in value]
    return value


# -- columns to and from records ---------------------------------------------------------------


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
    )


def decode_events(record: TraceRecord) -> Events:
    """The columns of a chunk.

    Raises:
        ValueError, OverflowError: the record's columns differ in length or hold impossible values.
    """
    given = {name: getattr(record, name) for name in record.__struct_fields__[3:]}
    given["time_us"] = np.cumsum(np.asarray(record.time_us, dtype=np.int64))
    length = len(record.action)
    left_out = [name for name in ("stream", "pool") if not given[name]]
    events: Events = Events.build(length, **{k: v for k, v in given.items() if k not in left_out})
    return events


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


def decode_state(record: StateRecord) -> State:
    """The state in a record.

    Raises:
        ValueError, OverflowError: the record's columns differ in length or hold impossible values.
    """
    segments = {n: getattr(record.segments, n) for n in SegmentColumns.__struct_fields__}
    blocks = {n: getattr(record.blocks, n) for n in BlockColumns.__struct_fields__}
    return State(segments=Segments(**segments), blocks=Blocks(**blocks))


# -- reading -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that could not be read; ``torn`` when it is the last, as a killed job leaves it."""

    line: int
    reason: str
    torn: bool


def read_records(path: str | Path) -> Iterator[Record | Damage]:
    """Records in order, the header first; kinds that this version does not know are passed over.

    Raises:
        FileFormatError: no run file, written by a newer major version, or hardly a line of it can
            be read.
    """
    path = Path(path)
    lines = _lines(path)
    first, header = _header(path, lines)
    yield header
    held: Damage | None = None
    records = 0
    for number, line in enumerate(lines, start=first + 1):
        if number - records > _MOST_IDLE + _IDLE_EACH * records:
            raise FileFormatError(
                f"{path} holds {records:,} records in {number:,} lines, as no run file does", _WROTE
            )
        text = line.strip().strip(b",")
        if not text or text == b"]":
            continue
        if held is not None:
            yield held
        held = None
        record = _record(text, number)
        if isinstance(record, Damage):
            held = record
        elif record is not None:
            records += 1
            yield record
    if held is not None:
        yield Damage(held.line, held.reason, torn=True)


def _header(path: Path, lines: Iterator[bytes]) -> tuple[int, Header]:
    for number, line in enumerate(lines, start=1):
        text = line.strip().strip(b"[,")
        if not text:
            if number > 2:
                break
            continue
        _refuse_newer(path, text)
        record = _record(text, number)
        if isinstance(record, Header):
            return number, record
        break
    raise FileFormatError(
        f"{path} is not a memprof run file: it does not begin with a header",
        _WROTE,
    )


class _Version(msgspec.Struct):
    schema: tuple[int, int] = SCHEMA_VERSION


def _refuse_newer(path: Path, text: bytes) -> None:
    try:
        major, minor = msgspec.json.decode(text, type=_Version).schema
    except _UNREADABLE:
        return
    if major > SCHEMA_VERSION[0]:
        raise FileFormatError(
            f"{path} has schema version {major}.{minor}, "
            f"and this memprof reads up to {SCHEMA_VERSION[0]}",
            "pip install --upgrade cuda-memprof",
        )


class _Kind(msgspec.Struct):
    kind: str


_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in Record.__args__)


def _record(text: bytes, number: int) -> Record | Damage | None:
    try:
        record: Record = _decoder().decode(text)
    except _UNREADABLE as error:
        return None if _is_unknown_kind(text) else Damage(number, str(error), torn=False)
    return record


@cache
def _decoder() -> msgspec.json.Decoder[Record]:
    return msgspec.json.Decoder(Record)  # which nobody needs who only writes


def _is_unknown_kind(text: bytes) -> bool:
    try:
        return msgspec.json.decode(text, type=_Kind).kind not in _KINDS
    except _UNREADABLE:
        return False


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            gzipped = file.read(2) == GZIP_MAGIC
            file.seek(0)
            yield from _gzip_lines(file, path.stat().st_size) if gzipped else file
    except OSError as error:
        raise FileFormatError(
            f"cannot read {path}: {error.strerror or error}", "name a run file or a snapshot"
        ) from error


def _gzip_lines(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Lines of a gzip file that may end anywhere (the module `gzip` refuses those)."""
    held: list[bytes] = []
    for part in inflated(file, size, whole=False):
        if len(part) > 4096 and part.count(b"\n") > len(part) // 2:
            raise FileFormatError("nearly nothing but empty lines, which no run file is", _WROTE)
        first, *others = part.split(b"\n")
        held.append(first)
        if others:
            yield b"".join(held)
            yield from others[:-1]
            held = [others[-1]]
    yield b"".join(held)
