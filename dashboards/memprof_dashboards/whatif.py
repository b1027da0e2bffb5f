"""The table "what if": replays under other settings or on another card, run elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.units import format_bytes, format_count, format_percent
from memprof.what_if.changed_run import DeviceWhatIf, Fit, Row
from memprof_dashboards.text import escaped

__all__ = ["tables"]

_COLUMNS = (
    "Configuration",
    "Peak reserved",
    "",
    "Against recorded",
    "Unused then",
    "Largest free block",
    "Driver calls",
    "Retries",
    "Ends",
)


def tables(answers: Sequence[DeviceWhatIf]) -> str:
    """One table a device; nothing where nothing was asked."""
    answer_tables = [_table(answer) for answer in answers if answer.rows]
    if not answer_tables:
        return ""
    count = sum(len(answer.rows) for answer in answers)
    return (
        '<details class="whatif"><summary><h2>What if</h2> '
        f"the same allocations under {format_count(count)} configurations, replayed by the "
        f"allocator model</summary>{''.join(answer_tables)}</details>"
    )


def _table(answer: DeviceWhatIf) -> str:
    most = max(row.outcome.peak_reserved for row in answer.rows)
    reserved_before = answer.rows[0].outcome.peak_reserved
    head = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    body = "".join(_row(row, reserved_before, most) for row in answer.rows)
    fits = "".join(f"<li>{_fit(fit)}</li>" for fit in answer.fits)
    return (
        f"<table><caption>{escaped(answer.device)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{f'<ul>{fits}</ul>' if fits else ''}"
    )


def _row(row: Row, reserved_before: int, most: int) -> str:
    outcome = row.outcome
    share = 100 * outcome.peak_reserved / most if most else 0
    cells = (
        f"<code>{escaped(row.configuration)}</code>",
        format_bytes(outcome.peak_reserved),
        f'<div class="gauge"><span style="width:{share:.1f}%"></span></div>',
        _against(outcome.peak_reserved, reserved_before),
        format_bytes(outcome.unallocated),
        format_bytes(outcome.largest_free),
        format_count(outcome.driver_allocs + outcome.driver_frees),
        format_count(outcome.retries),
        _end(row),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _against(reserved: int, reserved_before: int) -> str:
    if reserved == reserved_before:
        return "the same"
    sign = "+" if reserved > reserved_before else ""
    share = format_percent(reserved, reserved_before)
    return f"{sign}{format_bytes(reserved - reserved_before)} ({share})"


def _end(row: Row) -> str:
    oom = row.outcome.oom
    if oom is None:
        return "runs through"
    return f'<b class="bad">out of memory</b> at event {format_count(oom.event)}'


def _fit(fit: Fit) -> str:
    card = f"a card of {format_bytes(fit.card)}" if fit.card else "none of the common cards"
    cost = f"; it gives its cache up {format_count(fit.retries)} ×" if fit.retries else ""
    return (
        f"<code>{escaped(fit.configuration)}</code> fits on {card}: torch must be able to hold "
        f"{format_bytes(fit.bytes)}{cost}"
    )
