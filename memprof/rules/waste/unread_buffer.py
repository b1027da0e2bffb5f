"""unread-buffer: a large buffer of a module that nothing in the program reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.registered_buffers import (
    has_known_bases,
    large_buffers,
    mentions,
    registered_in_loop,
    registering_place,
    unread_buffer,
)
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place
from memprof.units import format_bytes
from memprof.views.window import Bools, Window

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
        place = registering_place(window, row)
        if place is None:
            return
        name = unread_buffer(window.programs, place)
        mask = large & (window.site == window.site[row])
        if not name:
            name, mask = _of_loop(window, mask, row, place)
        if not name:
            return
        on_the_way = (window.site == window.site[row]) & ~window.has_owner
        yield MovedBuffer(
            row=row,
            rows=np.flatnonzero(mask),
            nbytes=window.bytes_of(mask),
            saving=window.replayed(window.whole(np.flatnonzero(mask | on_the_way))),
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


def _of_loop(window: Window, mask: Bools, row: int, place: Place) -> tuple[str, Bools]:
    """The name of a buffer that a loop registers with others, and its like of other modules.

    Which it is tells the order in which each module's were made. An empty name where it is read.
    """
    names = registered_in_loop(place)
    in_order = np.flatnonzero(mask)[np.argsort(window.lives.alloc[mask], kind="stable")]
    of_modules = [
        in_order[window.module[in_order] == module].tolist()
        for module in np.unique(window.module[mask]).tolist()
    ]
    own = np.zeros(len(mask), dtype=bool)
    if not names or any(len(rows) != len(names) for rows in of_modules):
        return "", own
    at = next(rows.index(row) for rows in of_modules if row in rows)
    if not has_known_bases(place) or mentions(window.programs, names[at]) != 1:
        return "", own
    own[[rows[at] for rows in of_modules]] = True
    return names[at], own


RULE = UnreadBuffer()
