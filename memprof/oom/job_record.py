"""What the job wrote down of a failed allocation, read with care: a damaged file may hold anything.

The failure that it belongs to is put together next door.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from memprof.trace import NOT_RECORDED, Frame, Tables

__all__ = [
    "Neighbour",
    "first_known",
    "fraction_of",
    "integer",
    "live_categories",
    "live_stacks",
    "neighbours",
]

_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process on the device."""

    pid: int
    name: str
    bytes: int
    """`NOT_RECORDED` where the driver does not say."""


def fraction_of(facts: Mapping[str, Any], total: int, otherwise: float) -> float:
    """The share of the device that torch allowed itself then; it may have been set late."""
    limit = integer(facts, "limit")
    return limit / total if 0 < limit < total else otherwise


def first_known(value: int, otherwise: int) -> int:
    """The value where it is positive, else the other; `NOT_RECORDED` where neither is."""
    return value if value > 0 else (otherwise or NOT_RECORDED)


def integer(facts: Mapping[str, Any], name: str) -> int:
    """Bytes or a row of that name; `NOT_RECORDED` where there is none."""
    value = facts.get(name)
    return value if _is_size(value) else NOT_RECORDED


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def live_categories(facts: Mapping[str, Any]) -> dict[str, int]:
    """Bytes alive then, by category."""
    live = facts.get("live")
    sums = live.get("category") if isinstance(live, dict) else None
    sums_record = sums if isinstance(sums, dict) else {}
    return {str(name): size for name, size in sums_record.items() if _is_size(size)}


def live_stacks(
    tables: Tables | None, facts: Mapping[str, Any]
) -> tuple[tuple[tuple[Frame, ...], int], ...]:
    """What each recorded stack held then, in bytes."""
    live = facts.get("live")
    rows = live.get("stacks") if isinstance(live, dict) else None
    if tables is None or not isinstance(rows, list):
        return ()
    pairs = [row for row in rows if isinstance(row, list) and len(row) == 2]
    return tuple(
        (tables.stack(row), size)
        for row, size in pairs
        if _is_size(row) and row < len(tables.stacks) and _is_size(size)
    )


def neighbours(facts: Mapping[str, Any]) -> tuple[Neighbour, ...]:
    """The other processes on the device, as the driver listed them."""
    processes = facts.get("processes")
    rows = processes if isinstance(processes, list) else []
    return tuple(
        Neighbour(integer(row, "pid"), str(row.get("name") or ""), integer(row, "bytes"))
        for row in rows
        if isinstance(row, dict)
    )
