"""Bytes, durations and counts to and from text; the only place that writes "MiB"."""

from __future__ import annotations

import re

from memprof.errors import SettingsError

__all__ = [
    "format_bytes",
    "format_count",
    "format_duration",
    "format_percent",
    "parse_bytes",
    "parse_duration_s",
]

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FACTORS = {
    "": 1,
    "b": 1,
    **{f"{p}{s}": 1024**e for e, p in enumerate("kmgtp", start=1) for s in ("", "ib", "i")},
    **{f"{p}b": 1000**e for e, p in enumerate("kmgtp", start=1)},
}
# compiled when first asked for: a recording begins without them
_SIZE = r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*"
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)"
_DURATION = r"(?i)\s*[0-9]+(?:\.[0-9]+)?\s*|(?:\s*[0-9]+(?:\.[0-9]+)?\s*(?:s|min|m|h|d)\s*)+"


def format_bytes(nbytes: float) -> str:
    """``nbytes`` in binary units with three significant digits: ``22.6 GiB``, ``-512 B``."""
    sign, value = ("-" if nbytes < 0 else ""), abs(nbytes)
    for unit in _BINARY:
        if value < 999.5 or unit == _BINARY[-1]:  # 1000 KiB would not fit three digits
            return f"{sign}{_three_digits(value)} {unit}"
        value /= 1024
    raise AssertionError("unreachable: the last unit always returns")


def _three_digits(value: float) -> str:
    if value == int(value) and value < 1000:
        return str(int(value))
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def parse_bytes(text: str) -> int:
    """Bytes from ``"24GiB"``, ``"512 MiB"``, ``"1.5g"`` (binary) or ``"24GB"`` (decimal).

    Raises:
        SettingsError: the text is no size.
    """
    match = re.fullmatch(_SIZE, text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise SettingsError(f"{text!r} is not a size", "write it like 24GiB, 512MiB or 80GB")
    nbytes: int = round(float(match[1]) * factor)
    return nbytes


def parse_duration_s(text: str) -> float:
    """Seconds from ``"10m"``, ``"90s"``, ``"1h30m"``, ``"2 d"`` or a bare number of seconds.

    Raises:
        SettingsError: the text is no duration.
    """
    if re.fullmatch(_DURATION, text) is None:
        raise SettingsError(f"{text!r} is not a duration", "write it like 90s, 10m or 1h30m")
    return sum(float(n) * _SECONDS[unit.lower()[:1]] for n, unit in re.findall(_PART, text))


def format_duration(duration_us: float) -> str:
    """Microseconds as the largest fitting unit: ``850 µs``, ``4.0 s``, ``2 h 05 min``."""
    value = abs(duration_us)
    sign = "-" if duration_us < 0 else ""
    if value < 999.5:
        return f"{sign}{value:.0f} µs"
    if value < 999_500:
        return f"{sign}{_three_digits(value / 1e3)} ms"
    if value < 119.5e6:
        return f"{sign}{value / 1e6:.1f} s"
    minutes = round(value / 60e6)
    if minutes < 120:
        return f"{sign}{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{sign}{hours} h {minutes:02d} min"
    days, hours = divmod(round(value / 3600e6), 24)
    return f"{sign}{days} d {hours:02d} h"


def format_count(count: int) -> str:
    """A count with thousands separated: ``1,024,000``."""
    return f"{count:,}"


def format_percent(part: float, whole: float) -> str:
    """``part`` of ``whole`` in percent without decimals above one: ``37 %``, ``< 0.1 %``."""
    if not whole:
        return "0 %"
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "< 0.1 %"
    return f"{share:.1f} %" if 0 < abs(share) < 1 else f"{share:.0f} %"
