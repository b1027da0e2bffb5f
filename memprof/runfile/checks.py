"""What every file's figures must keep to, so that analyses can trust whatever was read.

A file may be damaged or made to do harm: each reader passes what it decoded through here, once.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from memprof.trace import NOT_RECORDED, Column, Events, State

__all__ = [
    "MOST_DEVICES",
    "check_events",
    "check_range",
    "check_state",
    "check_tiles",
    "integers",
    "plain_metadata",
    "plain_settings",
    "plain_text",
]

MOST_DEVICES = 64
"""Of one file: more than any machine has, and few enough to be told one by one."""
_MOST = 1 << 62
"""Addresses, times and sums of sizes below this cannot overflow when two of them are added."""
_LONGEST_TEXT = 1 << 16
_MOST_ITEMS = 32
_DIVISIONS = "roundup_power2_divisions"


def integers(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    """A column of a list of integers.

    numpy by itself would take texts and fractions too, and walk for hours through nested lists.

    Raises:
        TypeError, OverflowError: an element is no integer, or none of 64 bits.
    """
    return np.frombuffer(array("q", values), dtype=np.int64)


def check_range(name: str, column: Column, low: int, high: int) -> None:
    """Raise unless all values lie in ``low`` … ``high - 1``.

    Raises:
        ValueError: one does not.
    """
    if len(column) and not (low <= int(column.min()) and int(column.max()) < high):
        raise ValueError(f"a {name} is outside {low}..{high - 1}")


def check_events(events: Events) -> None:
    """Raise unless addresses, sizes and times are possible ones.

    Raises:
        ValueError: one is not.
    """
    check_range("address", events.address, -_MOST, _MOST)
    check_range("time", events.time_us, NOT_RECORDED, _MOST)
    _check_sizes(events.size)


def check_state(state: State) -> None:
    """Raise unless addresses and sizes are possible ones and blocks lie in segments that exist.

    Raises:
        ValueError: one is not.
    """
    for rows in (state.segments, state.blocks):
        check_range("address", rows.address, -_MOST, _MOST)
        _check_sizes(rows.size)
    _check_sizes(state.blocks.requested)
    check_range("segment", state.blocks.segment, NOT_RECORDED, len(state.segments))
    if not -_MOST < state.unlisted < _MOST:
        raise ValueError("the sums of the segments are impossible")


def check_tiles(state: State) -> None:
    """Raise unless blocks fill their segments without a gap, both in the order of addresses.

    So a recorder finds them, and a replay relies on it. Blocks without segments are a CPU's.

    Raises:
        ValueError: they do not.
    """
    segments, blocks = state.segments, state.blocks
    if not len(segments):
        return
    if not len(blocks):
        raise ValueError("its segments have no blocks")
    at, size = blocks.address, blocks.size
    same = blocks.segment[1:] == blocks.segment[:-1]
    first = np.flatnonzero(np.concatenate(([True], ~same)))
    last = np.append(first[1:], len(blocks)) - 1
    whole = (
        np.array_equal(blocks.segment[first], np.arange(len(segments)))
        and bool((size > 0).all())
        and np.array_equal(at[1:][same], (at + size)[:-1][same])
        and np.array_equal(at[first], segments.address)
        and np.array_equal((at + size)[last], segments.address + segments.size)
        and bool((segments.address[1:] >= (segments.address + segments.size)[:-1]).all())
    )
    if not whole:
        raise ValueError("its blocks do not fill its segments")


def _check_sizes(sizes: Column) -> None:
    check_range("size", sizes, 0, _MOST)
    if float(sizes.sum(dtype=np.float64)) >= _MOST:
        raise ValueError("the sizes add up to more than any memory")


def plain_text(value: object) -> str:
    """A text or a number as text; anything else, which could be endlessly nested, as nothing."""
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    return str(value) if isinstance(value, (bool, int, float)) else ""


def plain_metadata(value: object) -> str:
    """Torch's user metadata, a text or since 2.15 a dict, as one text: ``step=3, part=encoder``."""
    if isinstance(value, dict):
        items = islice(value.items(), _MOST_ITEMS)
        return ", ".join(f"{plain_text(k)[:200]}={plain_text(v)[:200]}" for k, v in items)
    return plain_text(value)


def plain_settings(settings: object) -> dict[str, Any]:
    """Allocator settings as far as they are scalars, or dicts of scalars, by name."""
    if not isinstance(settings, Mapping):
        return {}
    plain = {k: v for k, v in settings.items() if isinstance(k, str) and _is_scalar(v)}
    tables = {k: v for k, v in settings.items() if isinstance(k, str) and isinstance(v, Mapping)}
    for name, table in tables.items():
        keep = _is_division if name == _DIVISIONS else _is_entry
        plain[name] = {k: v for k, v in table.items() if keep(k, v)}
    return plain


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, (str, bool, int, float))


def _is_entry(key: object, value: object) -> bool:
    return isinstance(key, str) and _is_scalar(value)


def _is_division(key: object, value: object) -> bool:
    """``"4": 8``: a power of two in MiB, and into how many parts the way to the next is cut."""
    is_number = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 10
    return is_number and isinstance(value, int) and 0 <= value < 1 << 20
