"""Names that a shared library of Linux asks others for."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

__all__ = ["undefined_symbols"]

_MAGIC = b"\x7fELF\x02\x01"
"""64 bits, little end first: x86-64 and ARM alike."""
_DYNAMIC_SYMBOLS = 11
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def undefined_symbols(path: Path) -> set[str]:
    """The dynamic symbols that ``path`` uses and does not define.

    Raises:
        ValueError: it is no ELF file of 64 bits.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[: len(_MAGIC)] != _MAGIC:
            raise ValueError(f"{path} is no shared library of Linux")
        return set(_undefined_names(data))


def _undefined_names(data: mmap.mmap) -> Iterator[str]:
    (sections_at,) = struct.unpack_from("<Q", data, 0x28)
    size, number = struct.unpack_from("<HH", data, 0x3A)
    sections = [_SECTION.unpack_from(data, sections_at + n * size) for n in range(number)]
    for _, kind, _, _, offset, length, link, _, _, entry in sections:
        if kind != _DYNAMIC_SYMBOLS:
            continue
        names_at = sections[link][4]
        for at in range(offset, offset + length, entry):
            name, _, _, section, _, _ = _SYMBOL.unpack_from(data, at)
            if section == 0 and name:
                start = names_at + name
                yield data[start : data.find(b"\0", start)].decode("ascii", "replace")
