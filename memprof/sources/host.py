"""The host's memory as sampled readings: this process, its children, the machine, Python's heap."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from memprof.sources.control_group import ControlGroup
from memprof.sources.protocol import Reading

__all__ = ["HostSource"]


class HostSource:
    """``rss``, ``children_rss``, ``available`` and ``total`` in bytes, and counts of Python's.

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
