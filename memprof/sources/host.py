"""The host's memory as sampled readings: this process, its children, the machine, Python's heap."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from memprof.sources.control_group import ControlGroup
from memprof.sources.protocol import Reading

__all__ = ["HostSource"]


_LONGEST_S = 0.002
"""That C's allocator may take to count what is free in it; it is not asked again then."""


class HostSource:
    """``rss``, ``children_rss``, ``available`` and ``total`` in bytes, and counts of Python's.

    ``heap_free`` is what C's allocator has in pieces that nobody has asked for: freed memory that
    stays with the process (glibc tells).
    ``limit_free`` is what is left until the limit of a container or a job (its control group).
    ``shared`` is what of ``rss`` is shared or backed by files, such as a mapped data set.
    ``python_blocks_count`` are the blocks of Python's own allocator in use, ``gc_full_count`` the
    full collections so far. ``None`` where the system does not say.
    """

    name = "host"

    def __init__(self, pid: int | None = None, proc: str = "/proc") -> None:
        """``pid`` and ``proc`` are for tests: another process, another process file system."""
        self._pid = os.getpid() if pid is None else pid
        self._proc = Path(proc)
        self._process: psutil.Process | None = None
        self._group: ControlGroup | None = None
        self._heap = _Heap() if pid is None else None

    def open(self) -> None:
        """Look up the process.

        Raises:
            psutil.Error: it is not there.
        """
        self._process = psutil.Process(self._pid)
        self._group = ControlGroup(self._pid, str(self._proc))

    def close(self) -> None:
        """Forget the process; safe to call twice."""
        self._process = None

    def read(self) -> Sequence[Reading]:
        """One reading of the device ``host``; none when the source is not open."""
        if self._process is None:
            return ()
        memory = psutil.virtual_memory()
        resident, shared = _own(self._process)
        values: dict[str, float | int | None] = {
            "rss": resident,
            "shared": shared,
            "heap_free": self._heap.free() if self._heap is not None else None,
            "children_rss": self._children_resident(),
            "available": int(memory.available),
            "total": int(memory.total),
            "limit_free": self._group.free() if self._group is not None else None,
            "python_blocks_count": sys.getallocatedblocks(),
            "gc_full_count": gc.get_stats()[-1]["collections"],
        }
        return (Reading("host", time.time_ns() // 1000, values),)

    def _children_resident(self) -> int | None:
        """Resident bytes of the direct children: DataLoader workers, mostly.

        Read from ``task/*/children``, since walking all processes of a machine takes too long.
        """
        try:
            children = list(_children(self._proc / str(self._pid) / "task"))
        except OSError:
            return None
        return sum(_resident_of(child) or 0 for child in children)


class _Mallinfo2(ctypes.Structure):
    """As glibc's `malloc.h` has it since 2.33: https://man7.org/linux/man-pages/man3/mallinfo.3.html."""

    _fields_ = (
        *(("arena", ctypes.c_size_t), ("ordblks", ctypes.c_size_t), ("smblks", ctypes.c_size_t)),
        *(("hblks", ctypes.c_size_t), ("hblkhd", ctypes.c_size_t), ("usmblks", ctypes.c_size_t)),
        *(("fsmblks", ctypes.c_size_t), ("uordblks", ctypes.c_size_t)),
        *(("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t)),
    )


class _Heap:
    """What C's allocator says of this process's heap, while it is quick to say so."""

    def __init__(self) -> None:
        self._mallinfo2: Callable[[], _Mallinfo2] | None = None
        try:
            mallinfo2 = ctypes.CDLL(None).mallinfo2
        except (AttributeError, OSError, TypeError):  # another C library, or an older one
            return
        mallinfo2.restype = _Mallinfo2
        self._mallinfo2 = mallinfo2

    def free(self) -> int | None:
        """Bytes of its arenas that are in no use; None where that is not known."""
        if self._mallinfo2 is None:
            return None
        began_s = time.thread_time()
        free: int = self._mallinfo2().fordblks
        if time.thread_time() - began_s > _LONGEST_S:
            self._mallinfo2 = None
        return free


def _own(process: psutil.Process) -> tuple[int | None, int | None]:
    """Resident bytes, and those of them that are not this process's alone (Linux tells)."""
    try:
        memory = process.memory_info()
    except psutil.Error:
        return None, None
    shared = getattr(memory, "shared", None)
    return int(memory.rss), None if shared is None else int(shared)


def _children(tasks: Path) -> Iterator[int]:
    for task in tasks.iterdir():
        try:
            text = (task / "children").read_text()
        except FileNotFoundError:
            if task.exists():  # the kernel was built without these files
                raise
            continue  # the thread ended while we looked
        yield from map(int, text.split())


def _resident_of(pid: int) -> int | None:
    try:
        return _resident(psutil.Process(pid))
    except psutil.Error:  # it ended while we looked
        return None


def _resident(process: psutil.Process) -> int | None:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return None
