"""Which files are the program's own, and digests of them as they ran; stacks are `stacks`'."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from memprof.cpython.signal_errors import guarded_errors
from memprof.records import SourceFiles
from memprof.runfile.source_digests import MOST_BYTES, MOST_FILES, digest_of

if TYPE_CHECKING:
    import psutil

__all__ = ["ProgramFiles", "code_since_s", "is_user_file"]

MOST_READ = 16 << 20
"""Bytes of all files of a run together: some 20 ms."""


@lru_cache(maxsize=4096)
def is_user_file(filename: str) -> bool:
    """Whether ``filename`` is the user's own code: neither the standard library's nor installed."""
    if not filename or filename.startswith("<frozen"):
        return False
    if filename.startswith("<"):  # a prompt, ``python -c``, a notebook's cell
        return True
    path = os.path.abspath(filename)  # noqa: PTH100 - resolve() would follow links
    if "site-packages" in path or "dist-packages" in path:
        return False
    if any(path.startswith(folder + os.sep) for folder in _library_folders()):
        return False
    from memprof.source_code.frame_kind import is_installed  # a recording begins without it

    return not is_installed(path.replace(os.sep, "/"))


@lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    import sysconfig  # as above

    names = ("stdlib", "platstdlib")
    own = Path(__file__).absolute().parent.parent
    return (*(str(Path(sysconfig.get_path(name)).absolute()) for name in names), str(own))


class ProgramFiles:
    """Digests of the user's files, each file read once; none where it may not be what ran.

    A file that was written since the process began may have been imported before that. Nor is
    there a digest of a notebook's cell, a module inside a zip archive or a file that cannot be
    read.
    """

    def __init__(self, since_s: Callable[[], float] | None = None) -> None:
        """``since_s``: seconds since the epoch after which code was loaded, asked for once."""
        self._since_s = since_s or code_since_s
        self._limit_s: float | None = None
        self._names: set[str] = set()
        self._bytes_read = 0
        self._files_hashed = 0

    def new(self, filenames: Iterable[str]) -> SourceFiles | None:
        """The digests of those files that were not asked for before; None where there are none."""
        names = [name for name in dict.fromkeys(filenames) if name not in self._names]
        self._names.update(names)
        digests_by_name = {name: self._digest(name) for name in names if _is_program(name)}
        digests = {name: digest for name, digest in digests_by_name.items() if digest}
        return SourceFiles(list(digests), list(digests.values())) if digests else None

    def _digest(self, filename: str) -> str:
        if self._files_hashed >= MOST_FILES:
            return ""
        try:
            content = self._content(filename)
        except guarded_errors():  # a file without a digest is no error, least of all the job's
            return ""
        self._files_hashed += content is not None
        return digest_of(content) if content is not None else ""

    def _content(self, filename: str) -> bytes | None:
        status = os.stat(filename)  # noqa: PTH116 - a Path is not needed for either call
        # A pipe of that name would block the job.
        if not stat.S_ISREG(status.st_mode) or status.st_size > min(MOST_BYTES, self._bytes_left()):
            return None
        with open(filename, "rb") as file:  # noqa: PTH123 - see above
            content = file.read(MOST_BYTES + 1)
            status = os.fstat(file.fileno())  # after reading: what is written meanwhile shows
        self._bytes_read += len(content)
        # The time of writing can be set back (``cp -p``), that of the last change cannot.
        changed_s = max(status.st_mtime, status.st_ctime)
        whole = len(content) == status.st_size
        return content if whole and changed_s < self._began_s() else None

    def _bytes_left(self) -> int:
        return MOST_READ - self._bytes_read

    def _began_s(self) -> float:
        if self._limit_s is None:
            self._limit_s = self._since_s()
        return self._limit_s


def _is_program(filename: str) -> bool:
    return filename.endswith((".py", ".pyw")) and is_user_file(filename)


def code_since_s() -> float:
    """Seconds since the epoch before which no code of this process was loaded: when it began.

    A forked process has the code of the one that it was forked from, whose command it still bears.
    """
    import psutil  # here, as it takes longer to import than recording may take to begin

    process = psutil.Process()
    command, began_s = process.cmdline(), _began_s(process)
    try:
        while (parent := process.parent()) is not None and command == parent.cmdline():
            process, began_s = parent, min(began_s, _began_s(parent))
    except psutil.Error:  # it is gone, or somebody else's
        pass
    return began_s


def _began_s(process: psutil.Process) -> float:
    """To the hundredth of a second on Linux, where psutil's figure may be off by a whole one.

    Rounded up: Python needs longer than that before it loads anybody's code.
    """
    started_s = float(process.create_time())
    try:
        status = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8", errors="replace")
        ticks = int(status.rpartition(")")[2].split()[19])  # field 22, proc(5): since the boot
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - (ticks + 1) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return started_s
    began_s = time.time() - age_s
    return began_s if abs(began_s - started_s) < 2 else min(began_s, started_s)
