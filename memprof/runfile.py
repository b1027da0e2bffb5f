"""The run file: records appended so that SIGKILL loses nothing flushed; and read back, torn or whole.

What the records hold is defined in `records`; how a `Run` is put together from them in `loading`.
One record a line inside a JSON array: valid JSON once closed, and readable without its end.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
import numpy as np

from memprof.errors import FileFormatError, MemprofError, MissingError
from memprof.records import (
    SCHEMA_VERSION,
    BlockColumns,
    Footer,
    Header,
    Record,
    SegmentColumns,
    StateRecord,
    TraceRecord,
)
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

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Record)
_BUFFER_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"


class _Sink(Protocol):
    def write(self, data: bytes, /) -> Any: ...
    def flush(self) -> Any: ...
    def close(self) -> Any: ...


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
        self.failure: OSError | None = None
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._buffer = bytearray(b"[\n" + _ENCODER.encode(header))
        self._sink: _Sink | None = _create(self.path)
        self.flush()

    def write(self, record: Record) -> None:
        """Append one record; it reaches the operating system at the next `flush`."""
        if self._is_child():  # before the lock, which another thread may have held at the fork
            return
        line = _ENCODER.encode(record)
        with self._lock:
            self._buffer += b",\n"
            self._buffer += line
            if len(self._buffer) >= _BUFFER_BYTES:
                self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system: a process killed after this loses none of it."""
        if self._is_child():
            return
        with self._lock:
            if self._sink is None:
                self._buffer.clear()
                return
            try:
                self._sink.write(bytes(self._buffer))
                self._sink.flush()
            except OSError as error:
                self.failure, self._sink = error, None
            self._buffer.clear()

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
                try:
                    sink.close()
                except OSError as error:
                    self.failure = error

    def _is_child(self) -> bool:
        return self._pid != os.getpid()


def _create(path: str) -> _Sink:
    try:
        file = _create_remote(path) if "://" in path else _create_local(Path(path))
    except OSError as error:
        raise MemprofError(
            f"cannot write {path}: {error.strerror or error}",
            "name a file in a folder that you may write to, e.g. track('/tmp/run.json')",
        ) from error
    return _GzipSink(file) if path.endswith(".gz") else file


def _create_local(path: Path) -> _Sink:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("wb", buffering=0)


def _create_remote(url: str) -> _Sink:
    try:
        import fsspec  # noqa: PLC0415 - optional, needed for remote files only
    except ImportError as error:
        raise MissingError(f"{url} is remote", "pip install fsspec and its filesystem") from error
    return fsspec.open(url, "wb").open()  # type: ignore[no-any-return]


class _GzipSink:
    """Gzip whose every flush leaves a readable prefix behind."""

    def __init__(self, file: _Sink) -> None:
        self._file = file
        self._deflate = zlib.compressobj(level=1, wbits=31)  # 31: with gzip's header

    def write(self, data: bytes, /) -> None:
        self._file.write(self._deflate.compress(data))

    def flush(self) -> None:
        self._file.write(self._deflate.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def close(self) -> None:
        self._file.write(self._deflate.flush(zlib.Z_FINISH))
        self._file.close()


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
    events: Events = Events.build(
        length, **{k: v for k, v in given.items() if len(v) or not length}
    )
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
        FileFormatError: no run file, or written by a newer major version.
    """
    path = Path(path)
    lines = _lines(path)
    number, header = _header(path, lines)
    yield header
    held: Damage | None = None
    for number, line in enumerate(lines, start=number + 1):
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
        "memprof reads what track() or `memprof run` wrote, and torch's snapshot pickles",
    )


class _Version(msgspec.Struct):
    schema: tuple[int, int] = SCHEMA_VERSION


def _refuse_newer(path: Path, text: bytes) -> None:
    try:
        major, minor = msgspec.json.decode(text, type=_Version).schema
    except msgspec.MsgspecError:
        return
    if major > SCHEMA_VERSION[0]:
        raise FileFormatError(
            f"{path} has schema version {major}.{minor}; this memprof reads up to {SCHEMA_VERSION[0]}",
            "pip install --upgrade cuda-memprof",
        )


class _Kind(msgspec.Struct):
    kind: str


_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in Record.__args__)  # type: ignore[attr-defined]


def _record(text: bytes, number: int) -> Record | Damage | None:
    try:
        record: Record = _DECODER.decode(text)
    # Deeply nested JSON makes msgspec raise RecursionError, bad UTF-8 a UnicodeDecodeError.
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return None if _is_unknown_kind(text) else Damage(number, str(error), torn=False)
    return record


def _is_unknown_kind(text: bytes) -> bool:
    try:
        return msgspec.json.decode(text, type=_Kind).kind not in _KINDS
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            gzipped = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            yield from _gzip_lines(file) if gzipped else file
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}") from error


def _gzip_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines of a gzip file that may end anywhere (the module `gzip` refuses those)."""
    inflate, rest = zlib.decompressobj(wbits=31), b""
    while chunk := file.read(1 << 20):
        try:
            rest += inflate.decompress(chunk)
        except zlib.error:
            break
        *whole, rest = rest.split(b"\n")
        yield from whole
    if rest:
        yield rest
