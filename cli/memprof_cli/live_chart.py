"""Memory over time as lines of text: blocks of eighths, with an axis of bytes and one of steps."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from memprof.live.live_run import StepRow
from memprof.units import format_bytes, format_count

__all__ = ["chart"]

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_AXIS = 10


def chart(rows: Sequence[StepRow], width: int, height: int, limit: int = 0) -> Text:
    """What was allocated at the most, under what was reserved; the last step at the right.

    ``limit``: bytes of the device, drawn as a line once a quarter of it is used.
    """
    columns = _columns(rows, max(1, width - _AXIS))
    most = max((max(peak, reserved) for peak, reserved in columns), default=0)
    if most <= 0 or height < 3:
        return Text("no step has ended yet", style="dim")
    top = limit if most * 4 >= limit > 0 else most
    top = max(top, most)
    lines = [_line(columns, row, height - 1, top) for row in range(height - 2, -1, -1)]
    text = Text("\n").join(lines)
    first, last = format_count(rows[0].first), format_count(rows[-1].last)
    gap = max(1, len(columns) - len(first) - len(last) - 5)
    text.append(f"\n{'':{_AXIS}}step {first}{'':{gap}}{last}", style="dim")
    return text


def _columns(rows: Sequence[StepRow], width: int) -> list[tuple[int, int]]:
    """For each column the most that was allocated, and reserved, in the steps it stands for."""
    if not rows:
        return []
    first = rows[0].first
    span = max(1, rows[-1].last - first + 1)
    by_column: list[tuple[int, int] | None] = [None] * width
    for row in rows:
        begin = (row.first - first) * width // span
        end = max(begin + 1, (row.last + 1 - first) * width // span)
        peak, reserved = max(row.peak, row.allocated), max(row.reserved, row.peak_reserved)
        for at in range(max(0, begin), min(end, width)):
            column = by_column[at] or (0, 0)
            by_column[at] = max(column[0], peak), max(column[1], reserved)
    columns, last = [], (0, 0)
    for one in by_column:  # where rows are missing, what was there before stands
        last = one or last
        columns.append(last)
    return columns


def _line(columns: Sequence[tuple[int, int]], row: int, height: int, top: int) -> Text:
    label = ""
    if row == height - 1:
        label = format_bytes(top)
    elif row == 0:
        label = "0"
    elif row == (height - 1) // 2:
        label = format_bytes(top * (row + 1) / height)
    line = Text(f"{label:>{_AXIS - 1}} ", style="dim")
    for peak, reserved in columns:
        filled = _filled(peak, row, height, top)
        if filled:
            line.append(_EIGHTHS[filled], style="cyan")
        elif _filled(reserved, row, height, top):
            line.append("·", style="bright_black")
        else:
            line.append(" ")
    return line


def _filled(value: int, row: int, height: int, top: int) -> int:
    """Eighths of a cell that are full."""
    return max(0, min(8, round(8 * (value * height / top - row))))
