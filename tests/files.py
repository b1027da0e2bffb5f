"""Files that a test writes many times under one name; no test is here."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_anew"]


def write_anew(path: Path, content: bytes) -> None:
    """Write a new file in the place of one that is there.

    One that is cut to nothing and written again goes to the disk at once, on ext4 and others; a
    test that does so a thousand times waits for little else.
    """
    path.unlink(missing_ok=True)
    path.write_bytes(content)
