"""Where functions lie in a process's memory, from the symbols of the files that it has mapped.

A debugger would load the symbols of every library of torch for it, which takes it many seconds.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from memprof.attach.processes import MappedFile, Process
from memprof.errors import MissingError

__all__ = ["addresses", "exported"]

_DYNSYM, _LOAD, _FUNCTION, _WEAK_OR_GLOBAL = 11, 1, 2, (1, 2)
_PROOF_BYTES = 16
"""So much of a function is compared between the file and the memory."""


def addresses(process: Process, names: Iterable[str]) -> dict[str, int]:
    """Where the named functions lie.

    Raises:
        MissingError: one is in no file that may have it, or the memory differs from the file.
    """
    required = set(names)
    addresses_by_name: dict[str, int] = {}
    starts: dict[str, list[MappedFile]] = {}
    for file in process.mapped_files():
        if _may_have(Path(file.path), process):
            starts.setdefault(file.path, []).append(file)
    for path, parts in starts.items():
        content = _content(process, path, parts[0])
        for name, value in exported(content, required - {*addresses_by_name}).items():
            at, offset = _in_memory(content, value, parts)
            if at and _read_memory(process, at) == content[offset : offset + _PROOF_BYTES]:
                addresses_by_name[name] = at
    missing = sorted(required - {*addresses_by_name})
    if missing:
        raise MissingError(
            f"{', '.join(missing)} cannot be found in process {process.pid}",
            "its Python or its C library is of a kind that memprof does not know",
        )
    return addresses_by_name


def exported(content: bytes, names: set[str]) -> dict[str, int]:
    """The values of functions that a 64-bit ELF file exports."""
    if content[:6] != b"\x7fELF\x02\x01":
        return {}
    values: dict[str, int] = {}
    (at,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", content, at + size * n) for n in range(count)]
    name_by_bytes = {name.encode(): name for name in names}
    for header in headers:
        if header[1] != _DYNSYM or not name_by_bytes:
            continue
        strings = headers[header[6]][4]
        for row in range(header[4], header[4] + header[5], 24):
            text, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", content, row)
            if info & 15 != _FUNCTION or not section or info >> 4 not in _WEAK_OR_GLOBAL:
                continue
            begin = strings + text
            name = content[begin : content.index(b"\0", begin)]
            if name in name_by_bytes:
                values[name_by_bytes[name]] = value
    return values


def _may_have(path: Path, process: Process) -> bool:
    """The program itself, Python's library and the C library, by their names."""
    name = path.name.removesuffix(" (deleted)")
    try:
        is_program = path == (process.proc / "exe").readlink()
    except OSError:
        is_program = False
    return is_program or name.startswith(("libpython3", "libc.so", "libc-", "ld-musl"))


def _content(process: Process, path: str, part: MappedFile) -> bytes:
    file = process.root / path.lstrip("/")
    try:
        status = file.stat()
        is_same = status.st_ino == part.inode and not path.endswith(" (deleted)")
        if is_same:
            return file.read_bytes()
    except OSError as error:
        raise MissingError(f"{path} cannot be read: {error.strerror}") from error
    raise MissingError(
        f"{path} was replaced since process {process.pid} began",
        "it runs code that is no longer on the disk, so memprof does not touch it",
    )


def _in_memory(content: bytes, value: int, parts: list[MappedFile]) -> tuple[int, int]:
    """The address and the offset in the file of a symbol's value; 0 where it is not mapped."""
    (at,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    for n in range(count):
        kind, _, offset, begin, _, length, _, _ = struct.unpack_from(
            "<IIQQQQQQ", content, at + size * n
        )
        if kind != _LOAD or not begin <= value < begin + length:
            continue
        in_file = value - begin + offset
        for part in parts:
            if part.offset <= in_file < part.offset + part.end - part.start:
                return part.start + in_file - part.offset, in_file
    return 0, 0


def _read_memory(process: Process, address: int) -> bytes:
    descriptor = os.open(process.proc / "mem", os.O_RDONLY)
    try:
        return os.pread(descriptor, _PROOF_BYTES, address)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
