"""Where versions of torch place differently: which of several equally large free blocks wins."""

from __future__ import annotations

import enum
import re

__all__ = ["TieBreak", "tie_break_of"]


class TieBreak(enum.Enum):
    """How torch orders free blocks of one stream and size."""

    ADDRESS = "address"
    """The lowest address (torch up to 2.11)."""
    OLDEST_BLOCK = "oldest block"
    """The block object made first: a split gives its front a new one (torch 2.12)."""
    OLDEST_SEGMENT = "oldest segment"
    """The segment obtained first, then the lowest address (torch since 2.13)."""


def tie_break_of(torch_version: str) -> TieBreak | None:
    """The rule of a torch version such as ``"2.13.0+cu130"``; None where the version is unknown."""
    match = re.match(r"\s*(\d+)\.(\d+)", torch_version)
    if match is None:
        return None
    version = int(match[1]), int(match[2])
    if version < (2, 12):
        return TieBreak.ADDRESS
    return TieBreak.OLDEST_BLOCK if version < (2, 13) else TieBreak.OLDEST_SEGMENT
