"""A recording that is named by a URL, read through fsspec as if it were a file here."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import msgspec

from memprof.cpython.signal_errors import guarded_errors
from memprof.errors import MissingError

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined, unused-ignore]

__all__ = ["Location", "RemoteFile", "install_command", "is_url", "location", "remote_filesystem"]

_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "hf": "huggingface_hub",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
    "sftp": "paramiko",
    "ssh": "paramiko",
    "hdfs": "pyarrow",
}
"""What fsspec needs beside itself."""
_LEAST_READ, _MOST_READ = 1 << 16, 1 << 23
"""A request brings the one at first, and twice the last as long as a file is read on from there:
the two ends of a file are cheap, and a whole one comes in few requests."""


class _Status(msgspec.Struct, frozen=True):
    st_size: int


class RemoteFile:
    """What `Path` is for a file here, as far as recordings are read; it can be pickled."""

    def __init__(self, url: str, size: int = -1) -> None:
        """``size`` in bytes, where it is known already."""
        self._url, self._size, self._head = url, size, b""

    def __str__(self) -> str:
        """The URL."""
        return self._url

    def __repr__(self) -> str:
        return f"RemoteFile({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFile) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __reduce__(self) -> tuple[type[RemoteFile], tuple[str, int]]:
        return RemoteFile, (self._url, self._size)

    @property
    def name(self) -> str:
        """What follows the last slash."""
        return PurePosixPath(self._url).name

    def with_name(self, name: str) -> Path:
        """A file of that name in the current folder: nothing is written beside a remote one."""
        return Path(name)

    def stat(self) -> _Status:
        """The size alone.

        Raises:
            OSError: it is not there, or cannot be reached.
            MissingError: no package is installed that reads such URLs.
        """
        if self._size < 0:
            with remote_filesystem(self._url) as (filesystem, path):
                row = filesystem.info(path)
            if row["type"] == "directory":
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._url)
            self._size = int(row.get("size") or 0)
        return _Status(self._size)

    def is_file(self) -> bool:
        """Whether it is there and no folder."""
        with remote_filesystem(self._url) as (filesystem, path):
            return bool(filesystem.isfile(path))

    def is_dir(self) -> bool:
        """Whether it is a folder, or a prefix that other names begin with."""
        with remote_filesystem(self._url) as (filesystem, path):
            return bool(filesystem.isdir(path))

    def matches(self, pattern: str = "") -> list[RemoteFile]:
        """The files below it that ``pattern`` matches, or those that its own pattern matches."""
        with remote_filesystem(self._url) as (filesystem, path):
            names = f"{path.rstrip('/')}/{pattern}" if pattern else path
            rows = filesystem.glob(names, detail=True)
            return [
                RemoteFile(filesystem.unstrip_protocol(name), int(row.get("size") or 0))
                for name, row in sorted(rows.items())
                if row["type"] == "file"
            ]

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Its bytes, fetched as they are read.

        Raises:
            OSError: it is not there, or cannot be reached; reading may raise it too.
            MissingError: no package is installed that reads such URLs.
        """
        assert mode == "rb"
        return io.BufferedReader(_Ranges(self, self.stat().st_size), _LEAST_READ)

    def fetch(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` up to ``end``; the first ones are asked for once.

        Raises:
            OSError: it cannot be reached.
        """
        if end <= len(self._head):
            return self._head[start:end]
        with remote_filesystem(self._url) as (filesystem, path):
            content: bytes = filesystem.cat_file(path, start=start, end=end)
        if start == 0 and end <= _LEAST_READ:
            self._head = content
        return content


Location: TypeAlias = Path | RemoteFile
"""A recording's name: a path, or a URL."""


def is_url(name: object) -> bool:
    """Whether fsspec is meant, as in ``s3://bucket/run.json``."""
    return "://" in str(name)


def location(name: str | Location) -> Location:
    """The file that a path or a URL names."""
    if isinstance(name, RemoteFile):
        return name
    return RemoteFile(name) if isinstance(name, str) and is_url(name) else Path(name)


@contextmanager
def remote_filesystem(url: str) -> Iterator[tuple[Any, str]]:
    """The filesystem of a URL, and what it calls the file.

    Raises:
        MissingError: no package is installed that reads such URLs.
        OSError: whatever went wrong in between.
    """
    try:
        import fsspec  # type: ignore[import-untyped, import-not-found, unused-ignore]

        filesystem, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingError(
            f"{url} is remote, which needs a package that is not here: {error}",
            install_command(url),
        ) from error
    except ValueError as error:  # "Protocol not known"
        raise MissingError(
            f"{url} is no URL that fsspec knows: {error}", "s3://, gs://, hf://, … or a path"
        ) from error
    try:
        yield filesystem, path
    except FileNotFoundError as error:  # some say its name, some say nothing
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from error
    except (OSError, MissingError):
        raise
    # Each filesystem has errors of its own: no credentials, no such host, a refused connection.
    except guarded_errors() as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def install_command(url: str) -> str:
    """What to type so that such URLs can be read and written."""
    protocol = url.partition("://")[0].rpartition("::")[2]
    package = _PACKAGES.get(protocol, "")
    return f"pip install 'cuda-memprof[remote]' {package}".rstrip()


class _Ranges(io.RawIOBase):
    """A remote file by ranges of bytes, ever larger ones while it is read in order."""

    def __init__(self, file: RemoteFile, size: int) -> None:
        self._file, self._size = file, size
        self._position = 0
        self._start, self._content = 0, b""
        self._length = _LEAST_READ

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._size)[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: Buffer) -> int:
        """Bytes put into a buffer, 0 at the end; fetches more, the longer it goes straight on."""
        view = memoryview(buffer)
        end = self._start + len(self._content)
        if not self._start <= self._position < end:
            if self._position >= self._size:
                return 0
            is_next = self._position == end and self._content
            self._length = min(2 * self._length, _MOST_READ) if is_next else _LEAST_READ
            least_bytes = max(self._length, len(view))
            last = min(self._position + least_bytes, self._size)
            self._content = self._file.fetch(self._position, last)
            self._start = self._position
        at = self._position - self._start
        part = self._content[at : at + len(view)]
        view[: len(part)] = part
        self._position += len(part)
        return len(part)
