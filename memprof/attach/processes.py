"""What /proc tells of a process that runs Python and torch; nothing of the process is touched."""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from memprof.errors import MissingError

__all__ = ["MappedFile", "Process", "of_torch", "read_process"]

_EXTENSION = re.compile(rb"/torch/_C\.cpython-(\d)(\d+)(t?)-[^/]*\.so")
_TORCH = "/torch/lib/libtorch_python.so"
_VERSION = re.compile(r"^__version__\s*(?::\s*\w+\s*)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_MAP = re.compile(
    rb"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+)\s*(.*)"
)


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A stretch of a file in a process's memory."""

    start: int
    end: int
    offset: int
    """Of the stretch in the file."""
    device: tuple[int, int]
    inode: int
    path: str
    """As the process sees it; ends with `` (deleted)`` where it is no longer there."""


@dataclass(frozen=True)
class Process:
    """One process of this machine, as it was when it was looked at."""

    pid: int
    inner_pid: int
    """Its number in its own namespace; the same outside containers."""
    user_id: int
    state: str
    """A letter: ``R`` runs, ``S`` and ``D`` wait, ``T`` and ``t`` are stopped, ``Z`` has ended."""
    tracer_pid: int
    """Who debugs it; 0: nobody."""
    started_s: float
    """When it began, since the epoch."""
    command: tuple[str, ...]

    @property
    def proc(self) -> Path:
        """Its folder in /proc."""
        return Path("/proc", str(self.pid))

    @property
    def root(self) -> Path:
        """Where the files lie, as this process reaches them, that the kernel names in `maps`."""
        return self.proc / "root" if self.is_elsewhere("mnt") else Path("/")

    @property
    def own_root(self) -> Path:
        """Where the files lie, as this process reaches them, that it names itself."""
        return self.proc / "root" if self.has_other_root else self.root

    @cached_property
    def has_other_root(self) -> bool:
        """Whether another folder is its root (``chroot``), in the same namespace."""
        try:
            return not self.is_elsewhere("mnt") and not (self.proc / "root").samefile("/")
        except OSError:  # not to be read: whoever goes on will see
            return False

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The variables that it was started with; none where they may not be read."""
        with suppress(OSError):
            pairs = (self.proc / "environ").read_bytes().split(b"\0")
            return {
                os.fsdecode(name): os.fsdecode(value)
                for name, sign, value in (pair.partition(b"=") for pair in pairs)
                if sign
            }
        return {}

    @cached_property
    def maps(self) -> bytes | None:
        """What lies in its memory, as the kernel lists it; None where that may not be read."""
        try:
            return (self.proc / "maps").read_bytes()
        except OSError:
            return None

    def mapped_files(self) -> Iterator[MappedFile]:
        """Every stretch of a file in its memory."""
        for line in (self.maps or b"").splitlines():
            match = _MAP.fullmatch(line)
            if match is not None and match[8].startswith(b"/"):
                start, end, offset, major, minor = (int(match[n], 16) for n in (1, 2, 4, 5, 6))
                path = os.fsdecode(match[8])
                yield MappedFile(start, end, offset, (major, minor), int(match[7]), path)

    @property
    def has_torch(self) -> bool:
        """Whether it has loaded torch."""
        return _TORCH.encode() in (self.maps or b"")

    @cached_property
    def python(self) -> tuple[int, int] | None:
        """The version of its Python, as torch's own extension names it; None without torch."""
        match = _EXTENSION.search(self.maps or b"")
        return (int(match[1]), int(match[2])) if match is not None else None

    @property
    def is_free_threaded(self) -> bool:
        """Whether its Python has no global lock."""
        match = _EXTENSION.search(self.maps or b"")
        return match is not None and bool(match[3])

    @cached_property
    def site_packages(self) -> str:
        """The folder in which its torch lies, as it sees it; empty without torch."""
        paths = (file.path for file in self.mapped_files())
        return next((p.removesuffix(_TORCH) for p in paths if p.endswith(_TORCH)), "")

    @cached_property
    def torch_version(self) -> str:
        """The version of its torch; empty where it is not known."""
        file = self.root / self.site_packages.lstrip("/") / "torch" / "version.py"
        with suppress(OSError, UnicodeDecodeError):
            match = _VERSION.search(file.read_text(encoding="utf-8"))
            return match[1] if match is not None else ""
        return ""

    def is_elsewhere(self, namespace: str) -> bool:
        """Whether it lives in another namespace (``pid``, ``mnt``) than this process."""
        try:
            theirs = (self.proc / "ns" / namespace).readlink()
            return theirs != Path("/proc/self/ns", namespace).readlink()
        except OSError:  # not to be read: whoever goes on will see
            return False

    @cached_property
    def architecture(self) -> tuple[int, int] | None:
        """Class and machine of its program, as its ELF header has them."""
        with suppress(OSError, struct.error), (self.proc / "exe").open("rb") as file:
            header = file.read(20)
            return header[4], struct.unpack_from("<H", header, 18)[0]
        return None


def read_process(pid: int) -> Process:
    """What is known of a process.

    Raises:
        MissingError: there is none of this number, or no /proc.
    """
    folder = Path("/proc", str(pid))
    try:
        user_id = folder.stat().st_uid
        status = dict(
            line.split(":\t", 1)
            for line in (folder / "status").read_text(errors="replace").splitlines()
            if ":\t" in line
        )
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError as error:
        if not Path("/proc/self").exists():
            raise MissingError("memprof attach needs /proc", "it works on Linux only") from error
        raise MissingError(
            f"there is no process {pid}", "memprof attach lists those that use torch"
        ) from error
    return Process(
        pid=pid,
        inner_pid=int(status.get("NSpid", str(pid)).split()[-1]),
        user_id=user_id,
        state=fields[0],
        tracer_pid=int(status.get("TracerPid", "0")),
        started_s=_booted_s() + int(fields[19]) / os.sysconf("SC_CLK_TCK"),
        command=tuple(os.fsdecode(word) for word in words),
    )


def _booted_s() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def of_torch() -> tuple[list[Process], int]:
    """The processes that have loaded torch, and how many could not be looked at."""
    processes, unreadable = [], 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            process = read_process(int(folder.name))
        except (MissingError, ValueError, IndexError):  # it ended meanwhile
            continue
        if process.maps is None:
            unreadable += process.state != "Z"
        elif process.has_torch:
            processes.append(process)
    return sorted(processes, key=lambda one: one.pid), unreadable
