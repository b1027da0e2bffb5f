"""The digest by which a source file is known again on another machine; others read the files."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["MOST_BYTES", "MOST_FILES", "digest_of"]

MOST_BYTES = 4 << 20
"""Larger files are no program that somebody wrote."""
MOST_FILES = 512
"""Files of one run that are known by their digest."""
_BYTES = 16


def digest_of(content: bytes) -> str:
    r"""BLAKE2b (16 bytes, as hexadecimal digits) of a source file with its line ends as ``\n``.

    `git` may check the same file out with others, and they move no line.
    """
    return blake2b(content.replace(b"\r\n", b"\n"), digest_size=_BYTES).hexdigest()
