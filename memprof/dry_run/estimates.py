"""Memory whose size a dry run estimates, or does not know, by the line that asked for it.

What torch itself allocates is exact. The libraries below it say how much workspace they take, and
where the real one cannot be asked without a device the answer is an estimate, or 0 bytes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from memprof.cpython.signal_errors import covers_entry, is_of_signal, raised_at_death
from memprof.dry_run.asking import frame_of_the_program
from memprof.dry_run.library import ESTIMATE, NOT_COUNTED, NOT_LISTED, Library
from memprof.units import format_bytes, format_count

__all__ = ["Estimate", "Estimates"]

_MOST_LINES = 1000
_MOST_LISTED = 20


@dataclass(slots=True)
class Estimate:
    """Sizes of one kind that a line asked for."""

    what: str
    where: str
    """``train.py:31 in forward``; empty in a thread of autograd."""
    is_known: bool
    """There is an estimate; otherwise 0 bytes were counted."""
    bytes: int = 0
    """The largest."""
    times: int = 0

    def __str__(self) -> str:
        """In words, for the report."""
        where = self.where or "in the backward pass"
        times = "once" if self.times == 1 else f"{format_count(self.times)} times"
        if not self.is_known:
            return (
                f"workspace of {self.what} is not known and {NOT_COUNTED}: asked {times}, {where}"
            )
        return (
            f"{ESTIMATE}workspace of {self.what}, {format_bytes(self.bytes)} at the most, "
            f"asked {times}, {where}"
        )


class Estimates:
    """Listens to the library while it is open; estimates by their line and kind."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._estimates: dict[tuple[str, str], Estimate] = {}

    def open(self) -> None:
        """Begin to listen."""
        self._library.listen_to_estimates(self._on_request)

    def close(self) -> None:
        """Listen no more."""
        self._library.listen_to_estimates(None)

    @covers_entry
    def _on_request(self, what: bytes, nbytes: int, is_known: int) -> object:
        try:
            self._note(what, nbytes, is_known, sys._getframe().f_back)
        except BaseException as error:  # C ignores it
            if is_of_signal(error):
                return raised_at_death(error)
            raise
        return None

    def _note(self, what: bytes, nbytes: int, is_known: int, caller: FrameType | None) -> None:
        frame = frame_of_the_program(caller)
        where = ""
        if frame is not None:
            where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        key = (what.decode("ascii"), where)
        with self._lock:
            estimate = self._estimates.get(key)
            if estimate is None:
                if len(self._estimates) >= _MOST_LINES:
                    return
                estimate = self._estimates[key] = Estimate(*key, is_known=bool(is_known))
            estimate.times += 1
            estimate.bytes = max(estimate.bytes, nbytes)

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """In the order in which they were first asked for."""
        with self._lock:
            return tuple(self._estimates.values())

    def sentences(self) -> Iterator[str]:
        """The same in words, the largest first, as many as a reader may bear."""
        largest_first = sorted(self.estimates, key=lambda estimate: -estimate.bytes)
        yield from map(str, largest_first[:_MOST_LISTED])
        more = len(largest_first) - _MOST_LISTED
        if more > 0:
            sizes = "size is" if more == 1 else "sizes are"
            yield f"{format_count(more)} more {sizes} {NOT_LISTED}"
