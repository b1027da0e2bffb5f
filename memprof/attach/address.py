"""Where a process's private socket lies: in a folder that only its owner may enter."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from memprof.errors import MissingError

__all__ = ["folders", "make_private", "short_path", "socket_name"]


def folders(environment: Mapping[str, str], user_id: int) -> list[Path]:
    """Folders in which the sockets of a user may lie, the best first.

    ``environment`` is that of the process whose socket it is.
    """
    runtime = environment.get("XDG_RUNTIME_DIR")
    runtime_folders = [Path(runtime, "memprof")] if runtime else []
    temporary = environment.get("TMPDIR") or "/tmp"  # noqa: S108 - the folder below it is private
    return [*runtime_folders, Path(temporary, f"memprof-{user_id}")]


def socket_name(pid: int) -> str:
    """The name of a process's socket in its folder."""
    return f"{pid}.sock"


def make_private(folder: Path) -> None:
    """Make a folder that nobody else may enter, or see that it is one.

    Raises:
        MissingError: it cannot be made, is somebody else's, or is open to others.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise MissingError(f"{folder} cannot be made: {error.strerror}") from error
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_own or stat.S_IMODE(status.st_mode) & 0o077:
        raise MissingError(f"{folder} is open to others, or is not yours", "remove it")


@contextmanager
def short_path(folder: Path, name: str) -> Iterator[str]:
    """A short path to a file in a folder: a socket's address has room for some hundred bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
