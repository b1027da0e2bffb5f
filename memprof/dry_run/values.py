"""Lines of the program that read values from the device, which no kernel computed.

A dry run computes nothing: what is copied from the device to the host are zeros, or what the host
had copied there itself; all values are taken to be finite. Where the program branches or sizes
something by such a value it may go another way than on a card, so every line that read one is noted
in the run file.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from memprof.cpython.signal_errors import covers_entry, is_of_signal, raised_at_death
from memprof.dry_run.asking import frame_of_the_program
from memprof.dry_run.library import Library, Source
from memprof.units import format_bytes, format_count

__all__ = ["ValueRead", "ValuesRead"]

_MOST_LINES = 1000
_MOST_TOLD = 40


@dataclass(slots=True)
class ValueRead:
    """A line that read values of the device."""

    filename: str
    """Empty where a thread of autograd read them, which runs no line."""
    line: int
    function: str
    bytes: int
    """The most that it read at once."""
    source: Source
    """What it got: zeros, if it got them once."""
    times: int = 0

    def __str__(self) -> str:
        """In words, for the report."""
        where = f"{self.filename}:{self.line} in {self.function}"
        times = "" if self.times == 1 else f" {format_count(self.times)} times"
        return (
            f"{where if self.filename else 'the backward pass'} read {format_bytes(self.bytes)} "
            f"from the device{times}: {_VALUES[self.source]}, because no kernel computed anything"
        )


_VALUES = {
    Source.ZEROS: "zeros",
    Source.COPIED_IN: "the values that were copied there",
    Source.TAKEN_FOR_TRUE: "that they are finite",
}


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

    @covers_entry
    def _on_read(self, nbytes: int, source_number: int) -> object:
        try:
            self._note(nbytes, Source(source_number), sys._getframe().f_back)
        except BaseException as error:  # C ignores it
            if is_of_signal(error):
                return raised_at_death(error)
            raise
        return None

    def _note(self, nbytes: int, source: Source, caller: FrameType | None) -> None:
        frame = frame_of_the_program(caller)
        if frame is not None:
            key, function = (frame.f_code.co_filename, frame.f_lineno), frame.f_code.co_name
        elif caller is None:
            key, function = ("", 0), ""
        else:
            return  # torch's own Python, for itself
        with self._lock:
            reading = self._readings.get(key)
            if reading is None:
                if len(self._readings) >= _MOST_LINES:
                    return
                reading = ValueRead(*key, function, nbytes, source)
                self._readings[key] = reading
            reading.times += 1
            reading.bytes = max(reading.bytes, nbytes)
            if source is not reading.source:
                reading.source = Source.ZEROS

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
