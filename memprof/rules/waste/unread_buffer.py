"""unread-buffer: a large buffer of a module that nothing in the program reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.registered_buffers import large_buffers, unread_buffer
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import place_of
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class MovedBuffer(Match):
    """A buffer, and where it belongs."""

    buffer: str = ""
    """The name that it is registered by."""
    module: str = ""
    """The module that has it."""


class UnreadBuffer(WasteRule[MovedBuffer]):
    """A table from an earlier version of the module, which is still registered."""

    name = "unread-buffer"
    summary = "nothing reads this buffer of a module"
    fixes = ("del_ref", "right_size")

    def matches(self, window: Window) -> Iterator[MovedBuffer]:
        """The line that makes most of the buffers, where no file of the program reads its own."""
        large = large_buffers(window)
        if not large.any():
            return
        row = window.main_site(large)
        place = place_of(window.frame_of(row))
        name = unread_buffer(window.programs, place) if place is not None else ""
        if not name:
            return
        mask = large & (window.site == window.site[row])
        yield MovedBuffer(
            row=row,
            rows=np.flatnonzero(mask),
            nbytes=window.bytes_of(mask),
            saving=window.replayed(window.whole(np.flatnonzero(mask))),
            buffer=name,
            module=window.module_name(row),
        )

    def title(self, match: MovedBuffer) -> str:
        """Name the buffer and its module."""
        return f"are a buffer of `{match.module}` that nothing reads, `{match.buffer}`"

    def advice(self, match: MovedBuffer, case: Case) -> Iterator[Advice]:
        """Leave it out."""
        nbytes = format_bytes(match.nbytes)
        why = f"Nothing in the program's files reads `{match.buffer}`, {nbytes}"
        yield Advice("del_ref", f"{why}: leave it out.", case.site)
        yield Advice("right_size", f"{why}; make it no larger than what is used.", case.site)


RULE = UnreadBuffer()
