"""Where a run file's bytes go: a local file, a remote one, either of them gzipped."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO

from memprof.errors import MemprofError, MissingError
from memprof.runfile.gzipped import GzipSink, Sink
from memprof.runfile.remote_file import install_command, is_url

__all__ = ["create_sink"]


def create_sink(path: str) -> Sink:
    """Create the file at ``path`` (and its folders) or at a URL that fsspec knows.

    Raises:
        MissingError: the URL needs a package that is not installed.
        MemprofError: the file cannot be created.
    """
    try:
        file = _remote(path) if is_url(path) else LocalSink(Path(path))
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
        self._file: IO[bytes] = path.open("wb", buffering=0)

    def write(self, data: bytes, /) -> None:
        """Append all of ``data``: a system call may take a part of it only."""
        rest = memoryview(data)
        while rest:
            count = self._file.write(rest)
            if not count:
                raise OSError(errno.ENOSPC, "nothing more could be written")
            rest = rest[count:]

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _remote(url: str) -> Sink:
    try:
        import fsspec  # type: ignore[import-untyped, import-not-found, unused-ignore]

        file: Sink = fsspec.open(url, "wb").open()
        return file
    except ImportError as error:
        raise MissingError(
            f"{url} is remote, which needs a package that is not here: {error}",
            install_command(url),
        ) from error
