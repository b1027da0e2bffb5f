"""Where a run file's bytes go: a local file, a remote one, either of them gzipped."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import IO

from memprof.errors import MemprofError, MissingError
from memprof.runfile.gzipped import GzipSink, Sink

__all__ = ["create_sink"]

_PIECE = 1 << 20


def create_sink(path: str) -> Sink:
    """Create the file at ``path`` (and its folders) or at a URL that fsspec knows.

    Raises:
        MissingError: the URL needs a package that is not installed.
        MemprofError: the file cannot be created.
    """
    try:
        file = _remote(path) if "://" in path else LocalSink(Path(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise MemprofError(
            f"cannot write {path}: {reason}",
            "name a file in a folder that you may write to, e.g. track('/tmp/run.json')",
        ) from error
    return GzipSink(file) if path.endswith(".gz") else file


class LocalSink:
    """An unbuffered file: what was written is the operating system's, whatever becomes of us."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path.absolute()  # the job may go to another folder
        # To be read only where it may have to be made again: a pipe would then have a reader, us,
        # and hold up the job once everybody else is gone.
        self._is_plain = not path.exists() or path.is_file()
        self._file: IO[bytes] = path.open("w+b" if self._is_plain else "wb", buffering=0)

    def write(self, data: bytes, /) -> None:
        """Append all of ``data``: a system call may take a part of it only."""
        rest = memoryview(data)
        while rest:
            count = self._file.write(rest)
            if not count:
                raise OSError(errno.ENOSPC, "nothing more could be written")
            rest = rest[count:]

    def flush(self) -> None:
        """Nothing is held back; a file that somebody deleted is made again, with all it held.

        One that somebody else has put in its place stays, and this one's end is an error.
        """
        if not self._is_plain or os.fstat(self._file.fileno()).st_nlink:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        deleted, self._file = self._file, self._path.open("x+b", buffering=0)
        with deleted:
            deleted.seek(0)
            for piece in iter(partial(deleted.read, _PIECE), b""):
                self.write(piece)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _remote(url: str) -> Sink:
    try:
        import fsspec  # type: ignore[import-untyped, import-not-found, unused-ignore]

        file: Sink = fsspec.open(url, "wb").open()
        return file
    except ImportError as error:
        from memprof.runfile.remote_file import install_command  # a local file needs none of it

        raise MissingError(
            f"{url} is remote, which needs a package that is not here: {error}",
            install_command(url),
        ) from error
