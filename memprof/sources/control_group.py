"""How much memory the control groups of a process leave it: a container's limit, or a job's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["ControlGroup"]

_NO_LIMIT = 1 << 60
"""Version 1 writes a number above that where there is no limit."""


class ControlGroup:
    """The groups that limit the memory of a process, its own and those around it (Linux)."""

    def __init__(self, pid: int, proc: str = "/proc", mounted: str = "/sys/fs/cgroup") -> None:
        """``proc`` and ``mounted`` are for tests."""
        self._limited = [one for one in _groups(Path(proc, str(pid)), Path(mounted)) if one.limit()]

    def free(self) -> int | None:
        """Bytes until the nearest limit; None where there is none.

        What the kernel can drop (files that nobody has used lately) counts as free.
        """
        limits = [free for one in self._limited if (free := one.free()) is not None]
        return min(limits, default=None)


class _Group:
    def __init__(self, folder: Path, names: tuple[str, str, str]) -> None:
        self._folder = folder
        self._limit, self._used, self._inactive = names

    def limit(self) -> int | None:
        limit = _number(self._folder / self._limit)
        return limit if limit is not None and limit < _NO_LIMIT else None

    def free(self) -> int | None:
        limit, used = self.limit(), _number(self._folder / self._used)
        if limit is None or used is None:
            return None
        return max(0, limit - used + self._droppable())

    def _droppable(self) -> int:
        for line in _text(self._folder / "memory.stat").splitlines():
            name, _, value = line.partition(" ")
            if name == self._inactive and value.isdecimal():
                return int(value)
        return 0


_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def _groups(process: Path, mounted: Path) -> Iterator[_Group]:
    """Of a process those that count memory, from its own up to the outermost that is seen."""
    for line in _text(process / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            root, names = mounted / "memory", _VERSION_1
        elif number == "0" and not controllers:
            root, names = mounted, _VERSION_2
        else:
            continue
        inside = Path(path.lstrip("/"))
        # In a container that sees its own group as the root, the path may be one of the host's.
        for folder in (root / part for part in (inside, *inside.parents)):
            if ".." not in folder.parts and folder.is_dir():
                yield _Group(folder, names)


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
