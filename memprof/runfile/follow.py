"""Follows a run file that grows: each call reads what is new, and nothing twice.

It polls, because file systems that machines share tell of no changes. A last line that is not whole
waits; a file that was truncated or replaced is read from its beginning.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from memprof.records import (
    Finding,
    Footer,
    Header,
    Interim,
    Note,
    Readings,
    StateRecord,
    StepsRecord,
    TablesRecord,
    WindowRecord,
)
from memprof.runfile.gzipped import GZIP_MAGIC

__all__ = ["MOST_AT_ONCE", "FollowedFile", "FollowedRecord"]

FollowedRecord = (
    Header
    | TablesRecord
    | StateRecord
    | StepsRecord
    | Readings
    | Finding
    | Note
    | WindowRecord
    | Interim
    | Footer
)
"""The kinds that are followed; events are passed over as bytes, never held."""

_DECODER = msgspec.json.Decoder(FollowedRecord)
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
_PREFIXES = tuple(
    b'{"kind":"%s"' % str(kind.__struct_config__.tag).encode() for kind in FollowedRecord.__args__
)
_LONGEST_PREFIX = max(map(len, _PREFIXES))
_PART = 1 << 20
MOST_AT_ONCE = 64 << 20
"""Bytes that one call reads: whoever shows them wants to draw in between."""
_LONGEST_LINE = 256 << 20
_PIECE = 1 << 10
"""Compressed bytes that are lost with the first damaged one."""
_HEAD = 256
"""Bytes of the beginning by which a file is known to be the same; the header's time is in it."""
_WBITS = 31


class FollowedFile:
    """One run file, gzipped or not, that somebody may still be writing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Nothing is read before `new`; the file need not be there yet."""
        self.path = Path(path)
        self._begin()

    def _begin(self) -> None:
        self._identity: tuple[int, int] | None = None
        self._head = b""
        self._position = 0
        self._inflate: zlib._Decompress | None = None
        self._line = bytearray()
        self._is_passed_over = False
        """Of the line under way nothing more is wanted: it was read already, or is of no use."""

    @property
    def bytes_read(self) -> int:
        """How far it was read; what the file is longer is still to come."""
        return self._position

    def was_replaced(self) -> bool:
        """Whether another file is there now, or this one was truncated: it is to be read anew.

        After that `new` begins at the beginning. A file that is gone for now is the same one.
        """
        if self._identity is None:
            return False
        try:
            with self.path.open("rb") as file:
                about = os.fstat(file.fileno())
                head = file.read(len(self._head))
        except OSError:
            return False
        same = (about.st_dev, about.st_ino) == self._identity
        if same and about.st_size >= self._position and head == self._head:
            return False
        self._begin()
        return True

    def new(self) -> Iterator[FollowedRecord]:
        """The records that were written since the last call, in order; none while it is not there.

        Raises nothing for what cannot be read: a damaged line is passed over.
        """
        try:
            with self.path.open("rb") as file:
                yield from self._records(file)
        except OSError:  # not there yet, or the share is away for a moment: the next call
            return

    def _records(self, file: IO[bytes]) -> Iterator[FollowedRecord]:
        if self._identity is None:
            about = os.fstat(file.fileno())
            self._identity = about.st_dev, about.st_ino
        if len(self._head) < _HEAD:
            self._head = file.read(_HEAD)
        file.seek(self._position)
        for _ in range(MOST_AT_ONCE // _PART):
            data = file.read(_PART)
            if not data or (not self._position and len(data) < len(GZIP_MAGIC)):
                break
            if not self._position and data.startswith(GZIP_MAGIC):
                self._inflate = zlib.decompressobj(wbits=_WBITS)
            self._position += len(data)
            for part in self._inflated(data):
                yield from self._lines(part)
        # The newline comes with the next record: what is whole is told now.
        yield from self._whole()

    def _inflated(self, data: bytes) -> Iterator[bytes]:
        if self._inflate is None:
            yield data
            return
        for at in range(0, len(data), _PIECE):
            piece = data[at : at + _PIECE]
            while piece:
                try:
                    part = self._inflate.decompress(piece, _PART)
                except zlib.error:  # damage: nothing after it can be read
                    return
                piece = self._inflate.unconsumed_tail
                yield part

    def _lines(self, part: bytes) -> Iterator[FollowedRecord]:
        first, *others = part.split(b"\n")
        self._add(first)
        for text in others:
            yield from self._whole()
            self._line.clear()
            self._is_passed_over = False
            self._add(text)

    def _add(self, text: bytes) -> None:
        """More of the line under way, as far as it is wanted."""
        if self._is_passed_over:
            return
        self._line += text
        start = bytes(self._line[: _LONGEST_PREFIX + 1]).lstrip(b"[,")
        too_long = len(self._line) > _LONGEST_LINE
        if too_long or (len(start) >= _LONGEST_PREFIX and not start.startswith(_PREFIXES)):
            self._is_passed_over = True
            self._line.clear()

    def _whole(self) -> Iterator[FollowedRecord]:
        """The record of the line under way, if it is there to its end; it is told once."""
        text = bytes(self._line).strip().strip(b"[,")
        if self._is_passed_over or not text.startswith(_PREFIXES) or not text.endswith(b"}"):
            return
        try:
            record: FollowedRecord = _DECODER.decode(text)
        except _UNREADABLE:  # not whole yet, or damaged
            return
        self._is_passed_over = True
        self._line.clear()
        yield record
