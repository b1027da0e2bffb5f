"""Bytes, durations and counts as text, and sizes from text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memprof.errors import SettingsError
from memprof.units import (
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    parse_bytes,
    parse_duration_s,
)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (512, "512 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1 KiB"),
        (1536, "1.50 KiB"),
        (-512, "-512 B"),
        (24_209_134_592, "22.5 GiB"),
        (1 << 40, "1 TiB"),
        (3000 << 50, "3000 PiB"),
        (1023 * 1024, "1.00 MiB"),
        (0.5, "0.50 B"),
    ],
)
def test_bytes_have_three_digits_in_binary_units(nbytes: float, text: str) -> None:
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("24GiB", 24 << 30),
        ("512 MiB", 512 << 20),
        ("1.5g", 3 << 29),
        ("24GB", 24_000_000_000),
        (" 10 ", 10),
        ("7b", 7),
        (".5k", 512),
        ("1Ti", 1 << 40),
    ],
)
def test_sizes_are_read_in_binary_and_decimal_units(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 XB", "1e9", "nan", "1 2", "0x10", "½"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_bytes(text)
    assert "24GiB" in caught.value.hint


@given(st.integers(0, 1 << 60))
def test_a_size_that_was_written_reads_back_within_half_a_percent(nbytes: int) -> None:
    assert parse_bytes(format_bytes(nbytes)) == pytest.approx(nbytes, rel=0.006)


@pytest.mark.parametrize(
    ("duration_us", "text"),
    [
        (0, "0 µs"),
        (850, "850 µs"),
        (12_300, "12.3 ms"),
        (4_000_000, "4.0 s"),
        (119_000_000, "119.0 s"),
        (120_000_000, "2 min"),
        (7_500_000_000, "2 h 05 min"),
        (200_000_000_000, "2 d 08 h"),
        (-850, "-850 µs"),
    ],
)
def test_durations_use_the_largest_fitting_unit(duration_us: float, text: str) -> None:
    assert format_duration(duration_us) == text


def test_counts_and_shares_are_written_for_people() -> None:
    assert format_count(1024000) == "1,024,000"
    assert [format_percent(p, 1000) for p in (370, 4, 0, 1000)] == ["37 %", "0.4 %", "0 %", "100 %"]
    assert format_percent(1, 0) == "0 %"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5 m", 90), ("10min", 600), ("1h30m", 5400), (" 2 D ", 172_800)],
)
def test_durations_are_read_in_their_units(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5x", "-3s", "1h30", "m"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a duration") as refused:
        parse_duration_s(text)
    assert "1h30m" in refused.value.hint
