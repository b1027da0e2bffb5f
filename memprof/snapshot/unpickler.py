"""Plain data out of a pickle without executing it; what the data means is `reader`'s.

A pickle is a program. Before the unpickler sees it, its opcodes are checked against the few that
plain data needs, so that nothing can be called, no length or memo index reaches beyond the file,
and what comes out is of the order of the file's own size.
"""

from __future__ import annotations

import gc
import io
import mmap
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NoReturn, TypeAlias

from memprof.errors import FileFormatError, UnsafeFileError
from memprof.runfile.gzipped import GZIP_MAGIC, inflated
from memprof.runfile.remote_file import Location, RemoteFile

__all__ = ["load_plain_pickle"]

_Content: TypeAlias = "bytes | mmap.mmap"

_ZIP_MAGIC = b"PK\x03\x04"
_PROTOCOL = b"\x80"
"""What a pickle of protocol 2 or later begins with."""
_START_BYTES = 24
"""Bytes of what a file begins with, where it is something else."""
_READABLE = "memprof reads its own run files and what torch.cuda.memory._dump_snapshot writes"
_UNCHECKED_CONTAINERS = 1 << 20
_BYTES_PER_CONTAINER = 6
"""An empty list or dict takes two bytes of a pickle and 64 of memory; an event takes 50 bytes."""
_BY_NAME = b"c\x93i"
"""Opcodes that fetch an object by its name: GLOBAL, STACK_GLOBAL, INST."""
_PERSISTENT = b"PQ"
_EXTENSIONS = {0x82: 1, 0x83: 2, 0x84: 4}
"""EXT1, EXT2, EXT4 and the bytes of their code."""
_CALLS = {ord("R"): "REDUCE", ord("b"): "BUILD", ord("o"): "OBJ", 0x81: "NEWOBJ", 0x92: "NEWOBJ_EX"}


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler to whom every global is refused, so that only builtin data can come out."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise UnsafeFileError(
            f"the file asks for the Python object {module}.{name}"[:200]
            + "; loading it would run code",
            "a snapshot written by torch.cuda.memory._dump_snapshot holds plain data only: "
            "do not trust this file",
        )

    def persistent_load(self, pid: object) -> NoReturn:
        name = pid if isinstance(pid, str) else type(pid).__name__
        raise UnsafeFileError(
            f"the file refers to an object outside itself ({name[:80]})",
            "torch.save files are not snapshots; use torch.cuda.memory._dump_snapshot",
        )


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without the cyclic collector, which would look through millions of new dicts again and again.

    (Measured: loading a snapshot of a million events takes four times as long with it.)
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def load_plain_pickle(path: Location) -> Any:
    """The lists, dicts, strings and numbers in a pickle, plain or gzipped.

    Raises:
        UnsafeFileError: the pickle would call something, or names a global or a persistent object.
        FileFormatError: it is torn, no pickle of plain data at all, or cannot be opened.
    """
    try:
        with _open(path) as (content, file):
            _check(content)
            with collector_paused():
                return _PlainUnpickler(file).load()
    except FileFormatError as error:
        raise type(error)(f"{path}: {error.message}", error.hint) from error
    except OSError as error:
        reason = error.strerror or error
        raise FileFormatError(f"cannot read {path}: {reason}") from error
    # A damaged pickle can make the C unpickler raise nearly anything; none of it is ours to fix.
    except Exception as error:
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
        if start[:1] != _PROTOCOL and start[:2] != GZIP_MAGIC:
            raise FileFormatError(f"{path}: {_is_no_pickle(start)}", _READABLE) from error
        raise FileFormatError(
            f"{path} is not a whole pickle ({type(error).__name__}: {str(error)[:200]})",
            "was the job killed while it wrote? a snapshot is usable only when complete",
        ) from error


@contextmanager
def _open(path: Location) -> Iterator[tuple[_Content, IO[bytes]]]:
    """The pickle's bytes, and a file from which the unpickler reads the same."""
    with path.open("rb") as file:
        start = file.read(2)
        file.seek(0)
        if not start:
            raise FileFormatError("the file is empty")
        if start == GZIP_MAGIC:
            content = b"".join(inflated(file, path.stat().st_size, whole=True))
            yield content, io.BytesIO(content)
            return
        if isinstance(path, RemoteFile):
            content = file.read()
            yield content, io.BytesIO(content)
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            yield mapped, file


# -- the check of the opcodes ------------------------------------------------------------------


def _check(content: _Content) -> None:
    """Raise unless ``content`` is a pickle of plain data and nothing but.

    A regular expression walks over the opcodes, a tenth as slow as the unpickler itself; what it
    cannot walk over (frames, long strings) is stepped over here, and what is left is refused.

    Opcodes: ``pickletools`` of CPython, protocols 2 to 5.
    """
    size = len(content)
    if content[:4] == _ZIP_MAGIC:
        raise FileFormatError(
            "a zip file, such as torch.save writes, is no snapshot",
            "use torch.cuda.memory._dump_snapshot",
        )
    walk = _plain_run(size).match
    position = containers = 0
    while True:
        match = walk(content, position)
        end = match.end() if match else position
        run = content[position:end]
        containers += run.count(b"]") + run.count(b"}")
        if containers > max(_UNCHECKED_CONTAINERS, size // _BYTES_PER_CONTAINER):
            raise FileFormatError("it is nearly nothing but empty lists: no snapshot is")
        if end == position:
            if content[end : end + 1] == b".":
                return
            end = _stepped_over(content, end)
        position = end


def _stepped_over(content: _Content, at: int) -> int:
    """The position after an opcode with a length of its own.

    Raises:
        FileFormatError: it is none, or longer than the file.
    """
    opcode = content[at : at + 1]
    prefix = {b"X": 4, b"\x8d": 8, b"\x95": 8, _PROTOCOL: 1}.get(opcode)
    if prefix is None:
        _refuse(content, at)
    length_bytes = content[at + 1 : at + 1 + prefix]
    after = at + 1 + prefix
    if opcode == _PROTOCOL:
        if at != 0 or not length_bytes or not 2 <= length_bytes[0] <= pickle.HIGHEST_PROTOCOL:
            raise FileFormatError("it is no pickle of a protocol from 2 to 5")
        return after
    length = int.from_bytes(length_bytes, "little")
    if len(length_bytes) < prefix or length > len(content) - after:
        raise FileFormatError(
            "it ends too early, or is damaged",
            "was the job killed while it wrote? a snapshot is usable only when complete",
        )
    return after if opcode == b"\x95" else after + length  # a frame's content is opcodes again


def _refuse(content: _Content, at: int) -> NoReturn:
    opcode = content[at] if at < len(content) else -1
    if opcode in _BY_NAME + _PERSISTENT:
        # Everything before is plain, so the unpickler gets here, and its refusal has the name.
        _PlainUnpickler(io.BytesIO(content[:])).load()
    if opcode in _EXTENSIONS:
        code = int.from_bytes(content[at + 1 : at + 1 + _EXTENSIONS[opcode]], "little")
        raise UnsafeFileError(f"the file asks for the Python object of extension code {code}")
    if opcode in _CALLS:
        raise UnsafeFileError(f"the file asks to call something (opcode {_CALLS[opcode]})")
    if opcode < 0:
        raise FileFormatError(
            "it ends too early",
            "was the job killed while it wrote? a snapshot is usable only when complete",
        )
    if content[:1] != _PROTOCOL:
        raise FileFormatError(_is_no_pickle(bytes(content[:_START_BYTES])), _READABLE)
    raise FileFormatError(
        f"it is no pickle of plain data (opcode {opcode:#04x} at byte {at})", _READABLE
    )


def _is_no_pickle(start: bytes) -> str:
    """In words, with what the file begins with instead: most have been named by mistake."""
    return f"it is no pickle and no run file: it begins with {start.decode('ascii', 'replace')!r}"


def _plain_run(size: int) -> re.Pattern[bytes]:
    """Up to 2,000 opcodes of plain data of fixed or short length, in a file of ``size`` bytes."""
    # 8-byte integers and their sign at most: hashes of longer ones can be made to collide, and a
    # dict with such keys takes hours to build. Tuples are pairs of integers (pool ids) for a like
    # reason: the hash of nested tuples takes exponential time.
    integer = b"(?:K.|M..|J.{4}|%s)" % _read_counted(b"\\x8a", range(10))
    # The unpickler sets its memo up as far as the largest index that it meets.
    high, low = divmod(min(size >> 16, 0xFFFF), 256)
    put = b"r..[\\x00-%b]\\x00" % _escape(low)
    if high:
        put = b"r...[\\x00-%b]" % _escape(high)
    opcodes = (
        rb"h.",
        rb"[\x94(}\]uesaN)\x88\x89]+",
        rb"j.{4}",
        integer + b"(?:" + integer + rb"\x86)?",
        _read_counted(b"\\x8c", range(256)),
        rb"q.",
        put,
        _read_counted(b"X", range(256), b"\\x00\\x00\\x00"),
        rb"G.{8}",
    )
    return re.compile(b"(?:" + b"|".join(opcodes) + b"){0,2000}", re.DOTALL)


def _read_counted(opcode: bytes, lengths: range, more: bytes = b"") -> bytes:
    """A pattern of ``opcode``, one byte of length, ``more`` and as many bytes."""
    choices = b"|".join(_escape(n) + more + b".{%d}" % n for n in lengths)
    return opcode + b"(?:" + choices + b")"


def _escape(byte: int) -> bytes:
    return b"\\x%02x" % byte
