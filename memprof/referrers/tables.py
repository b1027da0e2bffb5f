"""Holders and tensors as sequences that print as tables, in a terminal and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memprof.records import Holder
from memprof.units import format_bytes

if TYPE_CHECKING:
    from memprof.referrers.list_tensors import LiveTensor

__all__ = ["Holders", "Tensors"]

_MOST_ROWS = 40
_MOST_WIDE = 80
"""Characters of a cell; the end of what is longer is cut off."""
_PARTS = 2
"""Components of a path that are shown."""


class Holders(tuple[Holder, ...]):
    """Who keeps a tensor alive, the best explanation first: a tuple that prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        """A line for each holder: what it is, and the line of source where it began."""
        return _text(_OF_HOLDERS, self._cells(), len(self)) if self else "no holders were found"

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        return _html(_OF_HOLDERS, self._cells(), len(self)) if self else "no holders were found"

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (one.description, _place(one.filename, one.line), one.code) for one in self[:_MOST_ROWS]
        ]


class Tensors(list["LiveTensor"]):
    """Live tensors, the largest storages first: a list that prints as a table."""

    def __repr__(self) -> str:
        """A line for each tensor, the largest first; of many the first ones."""
        return _text(_OF_TENSORS, self._cells(), len(self)) if self else "no tensors were found"

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        return _html(_OF_TENSORS, self._cells(), len(self)) if self else "no tensors were found"

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                format_bytes(one.storage_bytes) if one.shares_storage_with < 0 else "shared",
                one.device,
                one.dtype.removeprefix("torch."),
                "×".join(map(str, one.shape)) or "scalar",
                one.name or ("(held by an autograd graph)" if one.in_graph else "(no name)"),
            )
            for one in self[:_MOST_ROWS]
        ]


_OF_HOLDERS = ("held by", "at", "source")
_OF_TENSORS = ("storage", "device", "dtype", "shape", "name")


def _place(filename: str, line: int) -> str:
    if not line:
        return ""
    return f"{'/'.join(filename.replace(chr(92), '/').split('/')[-_PARTS:])}:{line}"


def _text(heads: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    cut = [[_cut(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(len(row[at]) for row in cut) for at in range(len(heads))]
    padded = (zip(row, widths, strict=True) for row in cut)
    lines = ["  ".join(cell.ljust(width) for cell, width in row).rstrip() for row in padded]
    return "\n".join([*lines, *_more(rows, total)])


def _html(heads: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    more = "".join(f"<p>{text}</p>" for text in _more(rows, total))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _more(rows: Sequence[Sequence[str]], total: int) -> list[str]:
    return [f"and {total - len(rows):,} more"] if total > len(rows) else []


def _cut(cell: str) -> str:
    return cell if len(cell) <= _MOST_WIDE else cell[: _MOST_WIDE - 1] + "…"
