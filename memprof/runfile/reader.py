"""Reads a run file, torn or whole: its records in order, and what of it is damaged.

What the records hold is defined in `memprof.records`; how a `Run` is put together from them in
`memprof.loading`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import IO

import msgspec
import numpy as np

from memprof.errors import FileFormatError
from memprof.records import (
    SCHEMA_VERSION,
    BlockColumns,
    Header,
    Record,
    SegmentColumns,
    StateRecord,
    TraceRecord,
)
from memprof.runfile.gzipped import GZIP_MAGIC, inflated
from memprof.runfile.remote_file import Location, location
from memprof.trace import Blocks, Events, Segments, State

__all__ = ["Damage", "decode_events", "decode_state", "read_records"]

_MOST_IDLE, _IDLE_EACH = 100_000, 100
"""Lines without a record that a damaged file may have, and more of them for each record."""
_WROTE = "memprof reads what track() or `memprof run` wrote, and torch's snapshot pickles"
# Deeply nested JSON makes msgspec raise RecursionError, bad UTF-8 a UnicodeDecodeError.
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that could not be read; ``torn`` when it is the last, as a killed job leaves it."""

    line: int
    reason: str
    torn: bool


def read_records(path: str | Location) -> Iterator[Record | Damage]:
    """Records in order, the header first; kinds that this version does not know are passed over.

    Raises:
        FileFormatError: no run file, written by a newer major version, or hardly a line of it can
            be read.
    """
    path = location(path)
    lines = _lines(path)
    first, header = _header(path, lines)
    yield header
    last_damage: Damage | None = None
    records = 0
    for number, line in enumerate(lines, start=first + 1):
        if number - records > _MOST_IDLE + _IDLE_EACH * records:
            raise FileFormatError(
                f"{path} holds {records:,} records in {number:,} lines, as no run file does", _WROTE
            )
        text = line.strip().strip(b",")
        if not text or text == b"]":
            continue
        if last_damage is not None:
            yield last_damage
        last_damage = None
        record = _record(text, number)
        if isinstance(record, Damage):
            last_damage = record
        elif record is not None:
            records += 1
            yield record
    if last_damage is not None:
        yield Damage(last_damage.line, last_damage.reason, torn=True)


def _header(path: Location, lines: Iterator[bytes]) -> tuple[int, Header]:
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


def _refuse_newer(path: Location, text: bytes) -> None:
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


def _lines(path: Location) -> Iterator[bytes]:
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
    pieces: list[bytes] = []
    for part in inflated(file, size, whole=False):
        if len(part) > 4096 and part.count(b"\n") > len(part) // 2:
            raise FileFormatError("nearly nothing but empty lines, which no run file is", _WROTE)
        first, *others = part.split(b"\n")
        pieces.append(first)
        if others:
            yield b"".join(pieces)
            yield from others[:-1]
            pieces = [others[-1]]
    yield b"".join(pieces)


# -- columns from records ----------------------------------------------------------------------


def decode_events(record: TraceRecord) -> Events:
    """The columns of a chunk.

    Raises:
        ValueError, OverflowError: the record's columns differ in length or hold impossible values.
    """
    columns = {name: getattr(record, name) for name in record.__struct_fields__[3:]}
    columns["time_us"] = np.cumsum(np.asarray(record.time_us, dtype=np.int64))
    length = len(record.action)
    left_out = [name for name in ("stream", "pool", "origin") if len(columns[name]) == 0]
    events: Events = Events.build(length, **{k: v for k, v in columns.items() if k not in left_out})
    return events


def decode_state(record: StateRecord) -> State:
    """The state in a record.

    Raises:
        ValueError, OverflowError: the record's columns differ in length or hold impossible values.
    """
    segments = {n: getattr(record.segments, n) for n in SegmentColumns.__struct_fields__}
    blocks = {n: getattr(record.blocks, n) for n in BlockColumns.__struct_fields__}
    return State(segments=Segments(**segments), blocks=Blocks(**blocks))
