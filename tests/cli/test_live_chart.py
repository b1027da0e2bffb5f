"""The chart of ``memprof live``: which cells are filled, to the eighth."""

from __future__ import annotations

from memprof.live.live_run import StepRow
from memprof_cli.live_chart import chart


def row(first, last, peak, reserved=-1):
    return StepRow(first, last, 0, 1.0, peak, peak, reserved, reserved, peak)


def lines(rows, width=18, height=5, limit=0):
    return chart(rows, width, height, limit).plain.split("\n")


def test_a_column_is_as_high_as_its_bytes():
    drawn = lines([row(n, n, 1024 * (n + 1)) for n in range(8)])
    assert [line[10:] for line in drawn[:4]] == [
        "      ▄█",
        "    ▄███",
        "  ▄█████",
        "▄███████",
    ]
    assert drawn[0].startswith("    8 KiB ")
    assert drawn[3].startswith("        0 ")
    assert drawn[4] == "          step 0 7"


def test_rows_of_several_steps_are_as_wide_as_their_steps():
    drawn = lines([row(0, 5, 1024), row(6, 6, 4096), row(7, 7, 4096)])
    assert [line[10:] for line in drawn[:4]] == ["      ██", "      ██", "      ██", "████████"]


def test_what_is_reserved_is_dotted_above():
    drawn = lines([row(0, 0, 1024, 4096), row(1, 1, 2048, 4096)])
    assert [line[10:] for line in drawn[:4]] == ["········", "········", "····████", "████████"]


def test_the_device_is_the_top_once_a_quarter_of_it_is_used():
    assert lines([row(0, 0, 1024)], limit=4096)[0].startswith("    4 KiB ")
    assert lines([row(0, 0, 1024)], limit=4097)[0].startswith("    1 KiB ")


def test_without_a_step_it_says_so():
    assert chart([], 80, 20).plain == "no step has ended yet"
    assert chart([row(0, 0, 0)], 80, 20).plain == "no step has ended yet"
