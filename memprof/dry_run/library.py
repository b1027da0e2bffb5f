"""The library that stands in for CUDA, as the process that has loaded it calls it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping

from memprof.dry_run.prototypes import HANDS_OUT_SIZES
from memprof.units import format_bytes, format_count

__all__ = ["MOST_GPUS", "Library"]

MOST_GPUS = 16
"""As many as the library keeps room for (``MOST_DEVICES``)."""


class Library:
    """Its own functions, beside those of CUDA."""

    def __init__(self) -> None:
        """Find it among what this process has loaded.

        Raises:
            OSError: it is not there: the process was not started by `launch`.
        """
        self._loaded = ctypes.CDLL(None)
        self._listener: object = None
        if not hasattr(self._loaded, "memprof_dry_run_listen"):
            raise OSError("the library of dry runs is not loaded")

    def listen(self, function: Callable[[int, int], None] | None) -> None:
        """Have ``function(bytes, copied_in)`` called for each reading of values, or nothing."""
        kind = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_int)
        listener = kind(function) if function is not None else None
        self._loaded.memprof_dry_run_listen(listener)
        self._listener = listener  # as long as the library may call it

    @property
    def cudnn_sizes_asked(self) -> int:
        """How often cuDNN was asked for the bytes of a workspace, which are not known here."""
        if not hasattr(self._loaded, "memprof_dry_run_cudnn_sizes"):
            return 0
        self._loaded.memprof_dry_run_cudnn_sizes.restype = ctypes.c_ulonglong
        return int(self._loaded.memprof_dry_run_cudnn_sizes())

    @property
    def nccl_bytes(self) -> Mapping[int, int]:
        """The most that NCCL's communicators held, outside torch's allocator, by device."""
        held = self._loaded.memprof_dry_run_nccl_bytes
        held.restype = ctypes.c_size_t
        found = {device: int(held(device)) for device in range(MOST_GPUS)}
        return {device: nbytes for device, nbytes in found.items() if nbytes}

    @property
    def functions_called(self) -> Iterator[str]:
        """The functions that were called and only answer "success"."""
        called = self._loaded.memprof_dry_run_called
        called.restype = ctypes.c_char_p
        for number in range(self._loaded.memprof_dry_run_functions()):
            name = called(number)
            if name:
                yield name.decode("ascii")

    def sentences(self) -> Iterator[str]:
        """What was asked of the library and is not known, in words, for the report."""
        asked = self.cudnn_sizes_asked
        if asked:
            times = "once" if asked == 1 else f"{format_count(asked)} times"
            yield (
                f"cuDNN was asked {times} how much workspace it takes, which depends on the card "
                "and is not known here: it is counted as 0 bytes, so peaks within convolutions, "
                "norms and cuDNN's attention may be higher"
            )
        for device, nbytes in self.nccl_bytes.items():
            made = int(self._loaded.memprof_dry_run_communicators())
            of = "a communicator" if made == 1 else f"{made} communicators"
            yield (
                f"NCCL is taken to hold {format_bytes(nbytes)} of cuda:{device} for {of}, outside "
                "torch's allocator: an estimate by its source and the usual topology of the card"
            )
        unknown = [name for name in self.functions_called if HANDS_OUT_SIZES.match(name)]
        if unknown:
            yield f"workspaces of these are counted as 0 bytes: {', '.join(unknown)}"
