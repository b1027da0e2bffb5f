"""The processes of this machine that use torch, with what the driver and memprof know of them."""

from __future__ import annotations

from dataclasses import dataclass

from memprof.attach.processes import of_torch
from memprof.attach.recordings import status
from memprof.errors import MissingError
from memprof.sources.nvml import memory_by_process

__all__ = ["ListedProcess", "Listing", "list_processes"]


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """A process that has loaded torch."""

    pid: int
    command: tuple[str, ...]
    started_s: float
    python_version: str
    torch_version: str
    rank: int | None
    device_bytes: int | None
    """On all cards together, as the driver says; None where it does not."""
    status: str
    """``standby``, the run file that it is recorded into, or nothing."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What `list_processes` found."""

    processes: tuple[ListedProcess, ...]
    unread: int
    """Processes that this user may not look into."""
    has_driver: bool


def list_processes() -> Listing:
    """Every process that has loaded torch and may be looked into; none of them is touched.

    Raises:
        MissingError: this system has no /proc.
    """
    processes, unreadable = of_torch()
    used, has_driver = _used()
    rows = [
        ListedProcess(
            pid=process.pid,
            command=process.command,
            started_s=process.started_s,
            python_version=".".join(map(str, process.python or ())),
            torch_version=process.torch_version,
            rank=_rank(process.environment.get("RANK")),
            device_bytes=used.get(process.pid, 0) if has_driver else None,
            status=status(process),
        )
        for process in processes
    ]
    return Listing(tuple(rows), unreadable, has_driver)


def _used() -> tuple[dict[int, int | None], bool]:
    try:
        return memory_by_process(), True
    except MissingError:
        return {}, False


def _rank(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
