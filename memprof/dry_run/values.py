"""Lines of the program that read values from the device, which no kernel computed.

A dry run computes nothing: what is copied from the device to the host are zeros, or what the host
had copied there itself. Where the program branches or sizes something by such a value it may go
another way than on a card, so every line that read one is noted in the run file.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.dry_run.asking import frame_of_the_program
from memprof.dry_run.library import Library
from memprof.units import format_bytes, format_count

__all__ = ["ValueRead", "ValuesRead"]

_MOST_LINES = 1000
_MOST_TOLD = 40


@dataclass(slots=True)
class ValueRead:
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
        copy_note = "the values that were copied there, " if self.copied_in else "zeros, "
        return (
            f"{where} in {self.function} read {format_bytes(self.bytes)} from the device{times}: "
            f"{copy_note}because no kernel computed anything"
        )


class ValuesRead:
    """Listens to the library while it is open; readings by their line."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._readings: dict[tuple[str, int], ValueRead] = {}

    def open(self) -> None:
        """Begin to listen."""
        self._library.listen(self._on_read)

    def close(self) -> None:
        """Listen no more."""
        self._library.listen(None)

    def _on_read(self, nbytes: int, copied_in: int) -> None:
        frame = frame_of_the_program(sys._getframe().f_back)
        if frame is None:
            return
        code, line = frame.f_code, frame.f_lineno
        key = (code.co_filename, line)
        with self._lock:
            reading = self._readings.get(key)
            if reading is None:
                if len(self._readings) >= _MOST_LINES:
                    return
                reading = ValueRead(*key, code.co_name, nbytes, bool(copied_in))
                self._readings[key] = reading
            reading.times += 1
            reading.bytes = max(reading.bytes, nbytes)
            reading.copied_in = reading.copied_in and bool(copied_in)

    @property
    def readings(self) -> tuple[ValueRead, ...]:
        """Each line once, in the order of its first reading."""
        with self._lock:
            return tuple(self._readings.values())

    def sentences(self) -> Iterator[str]:
        """The same in words, as many as a reader may bear."""
        readings = self.readings
        yield from map(str, readings[:_MOST_TOLD])
        if len(readings) > _MOST_TOLD:
            yield f"{len(readings) - _MOST_TOLD} more lines read values from the device"
