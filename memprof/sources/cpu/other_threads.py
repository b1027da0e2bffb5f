"""Tensors that another thread than the recorded one made: how much of them turned up, and whose."""

from __future__ import annotations

import sys
import threading
from typing import Any

__all__ = ["OtherThreads"]

_LEAST = 64 << 10
_COMPILED = "torch._inductor.graph"
"""Loaded once torch.compile has made code, which allocates without calling an operator."""

_WHY = (
    "of which there are no stacks, and nothing that was dropped at once: what is recorded is the "
    "thread that a window begins in"
)


class OtherThreads:
    """Adds up storages that a search found and that no operator of the recorded thread made.

    Python can make a storage in that thread without an operator too: around memory of others
    (numpy, a file, shared memory), as a bare storage, and for the state of a generator. The first
    and the last are told apart here; where no other thread uses torch nothing is said at all.
    """

    def __init__(self) -> None:
        """Nothing was found. To be made outside a window: it makes a tensor."""
        import torch

        self._generator_bytes = int(torch.default_generator.get_state().nbytes)
        self._bytes = 0
        self._count = 0
        self._bytes_before = 0
        self._is_noted = False
        self._names: dict[int, str] = {}

    def add_storage(self, storage: Any) -> None:
        """A storage turned up in a window that no operator had shown."""
        size = storage.nbytes()
        if not storage.resizable() or storage.is_shared() or size == self._generator_bytes:
            return
        self._bytes += size
        self._count += 1

    def note_call(self) -> None:
        """A model is called in the calling thread, which is not the recorded one."""
        self._is_noted = True
        self._names.setdefault(threading.get_ident(), threading.current_thread().name)

    def look(self, recorded_thread: int) -> None:
        """See which threads there are besides the one with the ident ``recorded_thread``."""
        if self._bytes < max(_LEAST, 2 * self._bytes_before):
            return
        frames = sys._current_frames()
        try:
            for thread in threading.enumerate():
                if thread.ident in (None, recorded_thread) or thread.name.startswith("memprof"):
                    continue
                if _uses_torch(frames.get(thread.ident or 0)):
                    self._is_noted = True
                    self._names.setdefault(thread.ident or 0, thread.name)
        finally:
            frames.clear()  # it has this very frame, a cycle that would keep the job's locals

    def notes(self) -> list[str]:
        """One sentence if there is much more to tell than at the last call."""
        if (
            not self._is_noted
            or self._bytes < max(_LEAST, 2 * self._bytes_before)
            or _COMPILED in sys.modules
        ):
            return []
        self._bytes_before = self._bytes
        thread_names = ", ".join(sorted(set(self._names.values()))[:3])
        who = f"another thread ({thread_names})" if thread_names else "another thread"
        from memprof.units import format_bytes, format_count

        what = f"{format_bytes(self._bytes)} in {format_count(self._count)} tensors"
        return [f"{what} came from {who}, {_WHY}"]


def _uses_torch(frame: Any) -> bool:
    """Whether a function on a thread's stack has torch at hand."""
    while frame is not None:
        names = frame.f_globals
        if "torch" in names or str(names.get("__name__")).partition(".")[0] == "torch":
            return True
        frame = frame.f_back
    return False
