"""The library that stands in for CUDA, as the process that has loaded it calls it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum

from memprof.units import format_bytes

__all__ = ["ESTIMATE", "MOST_GPUS", "NOT_COUNTED", "NOT_LISTED", "Library", "Source"]

ESTIMATE = "estimate: "
"""How a sentence about a size begins that is estimated."""
NOT_COUNTED = "counted as 0 bytes"
"""What a sentence says of a size that is not known."""
NOT_LISTED = "estimated or not known"
"""How the sentence ends that counts the sizes which have none of their own."""

MOST_GPUS = 16
"""As many as the library keeps room for (``MOST_DEVICES``)."""


class Source(IntEnum):
    """What values that are read from the device are given as; ``values.c`` has the same numbers."""

    ZEROS = 0
    COPIED_IN = 1
    """As the host once copied them there."""
    TAKEN_FOR_TRUE = 2
    """A condition that all values are finite."""


class Library:
    """Its own functions, beside those of CUDA."""

    def __init__(self) -> None:
        """Find it among what this process has loaded.

        Raises:
            OSError: it is not there: the process was not started by `launch`.
        """
        self._library = ctypes.CDLL(None)
        self._listeners: list[object] = []
        """All there ever were: another thread may be calling one while it is taken away."""
        if not hasattr(self._library, "memprof_dry_run_listen"):
            raise OSError("the library of dry runs is not loaded")

    def listen(self, function: Callable[[int, int], object] | None) -> None:
        """Have ``function(bytes, source)`` called for each reading of values, or nothing.

        ``source`` is the number of a `Source`.
        """
        kind = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_int)
        listener = kind(function) if function is not None else None
        self._library.memprof_dry_run_listen(listener)
        self._listeners.append(listener)

    def listen_to_estimates(self, function: Callable[[bytes, int, int], object] | None) -> None:
        """Have ``function(what, bytes, known)`` called for each size that no library said.

        ``known`` is 0 where there is not even an estimate, and ``bytes`` then too.
        """
        kind = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
        listener = kind(function) if function is not None else None
        self._library.memprof_dry_run_listen_to_estimates(listener)
        self._listeners.append(listener)

    @property
    def nccl_bytes(self) -> Mapping[int, int]:
        """The most that NCCL's communicators held, outside torch's allocator, by device."""
        return self._by_device("memprof_dry_run_nccl_bytes")

    @property
    def nccl_lacking_bytes(self) -> Mapping[int, int]:
        """What was missing of the memory that they asked for first in vain, by device."""
        return self._by_device("memprof_dry_run_nccl_lacking")

    def _by_device(self, function: str) -> Mapping[int, int]:
        bytes_of = getattr(self._library, function)
        bytes_of.restype = ctypes.c_size_t
        nbytes_of = {device: int(bytes_of(device)) for device in range(MOST_GPUS)}
        return {device: nbytes for device, nbytes in nbytes_of.items() if nbytes}

    @property
    def functions_refused(self) -> Iterator[str]:
        """The functions that were called, have no code here, and answered that."""
        name_of = self._library.memprof_dry_run_called
        name_of.restype = ctypes.c_char_p
        for number in range(self._library.memprof_dry_run_functions()):
            if self._library.memprof_dry_run_refused(number) and (name := name_of(number)):
                yield name.decode("ascii")

    def sentences(self) -> Iterator[str]:
        """What was asked of the library and is not known, in words, for the report."""
        for device, nbytes in self.nccl_bytes.items():
            count = int(self._library.memprof_dry_run_communicators(device))
            of = "a communicator" if count == 1 else f"{count} communicators"
            yield (
                f"NCCL is taken to hold {format_bytes(nbytes)} of cuda:{device} for {of}, outside "
                "torch's allocator: an estimate by its source and the usual topology of the card"
            )
        refused = list(self.functions_refused)
        if refused:
            yield f"these are not stood in for, and answered that: {', '.join(refused)}"
