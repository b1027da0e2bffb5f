"""Gzip that reads up to where it was torn and cannot blow up; what it holds is not known here."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import IO, Any, Protocol

from memprof.errors import FileFormatError

__all__ = ["GZIP_MAGIC", "GzipSink", "Sink", "inflated"]

GZIP_MAGIC = b"\x1f\x8b"
_COPY = "copy it again from where it was written"
_WBITS = 31
"""For zlib: with gzip's own header and check sum."""
_READ_BYTES = 1 << 16
_PART = 1 << 20
_UNCHECKED = 16 << 20
"""Up to here a file may inflate as far as it likes."""
_MOST = 100
"""Beyond, by this factor at most: runs and snapshots shrink to a tenth, deflate's limit is 1032."""


class Sink(Protocol):
    """What bytes can be appended to."""

    def write(self, data: bytes, /) -> Any:
        """Append all of ``data``."""

    def flush(self) -> Any:
        """Hand on whatever is held back."""

    def close(self) -> Any:
        """Flush and close."""


class GzipSink:
    """Gzip whose every flush leaves a readable prefix behind."""

    def __init__(self, file: Sink) -> None:
        self._file = file
        self._deflate = zlib.compressobj(level=1, wbits=_WBITS)

    def write(self, data: bytes, /) -> None:
        """Compress and append."""
        self._file.write(self._deflate.compress(data))

    def flush(self) -> None:
        """Append everything that the compressor still holds."""
        self._file.write(self._deflate.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def close(self) -> None:
        """End the stream and close the file."""
        self._file.write(self._deflate.flush(zlib.Z_FINISH))
        self._file.close()


def inflated(file: IO[bytes], size: int, *, whole: bool) -> Iterator[bytes]:
    """What is in a gzip file of ``size`` bytes, in parts of at most 1 MiB.

    With ``whole`` a damaged or torn file is an error; else its readable beginning is what counts.

    Raises:
        FileFormatError: it inflates to far more than any recording does, or is not whole.
    """
    total = 0
    for part in _parts(file, whole=whole):
        total += len(part)
        if total > max(_UNCHECKED, _MOST * size):
            raise FileFormatError(
                f"{size:,} bytes of gzip inflate to over {total:,}, as no recording does",
                "memprof reads what it wrote itself, and torch's snapshots",
            )
        yield part


def _parts(file: IO[bytes], *, whole: bool) -> Iterator[bytes]:
    inflate = zlib.decompressobj(wbits=_WBITS)
    while chunk := file.read(_READ_BYTES):
        full = False
        while chunk or full:
            before = inflate.copy()
            try:
                part = inflate.decompress(chunk, _PART)
            except zlib.error as error:
                if whole:
                    raise FileFormatError(f"a damaged gzip file ({error})", _COPY) from error
                yield from _bytewise(before, chunk)
                return
            full = len(part) == _PART  # then the stream may hold back more
            yield part
            chunk = inflate.unconsumed_tail
            if inflate.eof:
                chunk = inflate.unused_data
                if not chunk.startswith(GZIP_MAGIC):
                    return
                inflate = zlib.decompressobj(wbits=_WBITS)  # gzip files may follow one another
    if whole:
        raise FileFormatError("a gzip file that ends too early", _COPY)


def _bytewise(inflate: Any, chunk: bytes) -> Iterator[bytes]:
    """What can be had before the byte that is damaged."""
    for at in range(len(chunk)):
        try:
            yield inflate.decompress(chunk[at : at + 1])
        except zlib.error:
            return
