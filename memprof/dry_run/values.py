"""Lines of the program that read values from the device, which no kernel computed.

A dry run computes nothing: what is copied from the device to the host are zeros, or what the host
had copied there itself. Where the program branches or sizes something by such a value it may go
another way than on a card, so every line that read one is noted in the run file.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from memprof.dry_run.library import Library
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.units import format_bytes, format_count

__all__ = ["Reading", "ValuesRead", "frame_of_the_program"]

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_MOST_LINES = 1000
_MOST_TOLD = 40


@dataclass(slots=True)
class Reading:
    """A line that read values of the device."""

    filename: str
    line: int
    function: str
    bytes: int
    """The most that it read at once."""
    copied_in: bool
    """It got back what the host had copied there, each time."""
    times: int = 0

    def __str__(self) -> str:
        """In words, for the report."""
        where = f"{self.filename}:{self.line}"
        times = "" if self.times == 1 else f" {format_count(self.times)} times"
        got = "the values that were copied there, " if self.copied_in else "zeros, "
        return (
            f"{where} in {self.function} read {format_bytes(self.bytes)} from the device{times}: "
            f"{got}because no kernel computed anything"
        )


class ValuesRead:
    """Listens to the library while it is open; readings by their line."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._readings: dict[tuple[str, int], Reading] = {}

    def open(self) -> None:
        """Begin to listen."""
        self._library.listen(self._read)

    def close(self) -> None:
        """Listen no more."""
        self._library.listen(None)

    def _read(self, nbytes: int, copied_in: int) -> None:
        frame = frame_of_the_program(sys._getframe(1))
        if frame is None:
            return
        code, line = frame.f_code, frame.f_lineno
        key = (code.co_filename, line)
        with self._lock:
            reading = self._readings.get(key)
            if reading is None:
                if len(self._readings) >= _MOST_LINES:
                    return
                reading = Reading(*key, code.co_name, nbytes, bool(copied_in))
                self._readings[key] = reading
            reading.times += 1
            reading.bytes = max(reading.bytes, nbytes)
            reading.copied_in = reading.copied_in and bool(copied_in)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Each line once, in the order of its first reading."""
        with self._lock:
            return tuple(self._readings.values())

    def sentences(self) -> Iterator[str]:
        """The same in words, as many as a reader may bear."""
        readings = self.readings
        yield from map(str, readings[:_MOST_TOLD])
        if len(readings) > _MOST_TOLD:
            yield f"{len(readings) - _MOST_TOLD} more lines read values from the device"


def frame_of_the_program(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the program's own; else of a library that it uses.

    None where torch alone read: in threads of autograd, or for a check of its own.
    """
    library = None
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OURS):
            frame = frame.f_back
            continue
        kind = frame_kind(frame.f_code.co_filename)
        if kind is FrameKind.USER:
            return frame
        if kind is FrameKind.LIBRARY and library is None:
            library = frame
        frame = frame.f_back
    return library
