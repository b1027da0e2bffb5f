"""memprof what-if in words: the table at any width, what ran out, and what it all comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.testing import TraceBuilder, save_snapshot, snapshot
from memprof_cli import main, what_if

DATA = Path(__file__).resolve().parents[1] / "data"
MIB = 1 << 20


def told(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["what-if", *map(str, args)])
    assert not ended.value.code
    return capsys.readouterr().out


def full(folder: Path) -> Path:
    """30 MiB are asked for where 20 MiB of two stacks with one line lie on 27 MiB."""
    builder = TraceBuilder().alloc(12 * MIB, "a").alloc(8 * MIB, "b")
    return save_snapshot(
        folder / "oom.pickle", snapshot(builder.oom(30 * MIB, device_free=7 * MIB).build())
    )


def fragmented(folder: Path) -> Path:
    """Sizes that grow a little each time, so that no hole ever fits."""
    builder = TraceBuilder()
    for number in range(8):
        builder.alloc((20 + 4 * number) * MIB, f"t{number}")
        if number:
            builder.free(f"t{number - 1}")
    return save_snapshot(folder / "holes.pickle", snapshot(builder.build()))


def plain(folder: Path) -> Path:
    return save_snapshot(
        folder / "plain.pickle", snapshot(TraceBuilder().alloc(20 * MIB, "a").build())
    )


def test_it_says_what_to_set_where_a_setting_reserves_less(tmp_path, capsys):
    last = told(capsys, fragmented(tmp_path)).strip().splitlines()[-1]
    assert " MiB less would be reserved with PYTORCH_CUDA_ALLOC_CONF=expandable" in last


def test_it_says_that_no_setting_helps_where_none_does(tmp_path, capsys):
    text = told(capsys, plain(tmp_path))
    assert "none of these settings reserves noticeably less than the recorded ones" in text


def test_where_all_run_out_it_names_what_to_type(tmp_path, capsys):
    file = full(tmp_path)
    text = told(capsys, file)
    assert f"none of these settings lets it go on: `memprof oom {file}` says what would" in text


def test_a_card_on_which_nothing_fits_is_not_looked_for_in_the_recording(tmp_path, capsys):
    text = told(capsys, plain(tmp_path), "--gpu", "10MiB", "--search")
    assert "none of these settings lets it go on: --fit finds a card that does" in text


@pytest.mark.parametrize(
    ("recording", "retries"),
    [("sizes-torch2.15.0", "1 retry"), ("training-torch2.15.0", "3 retries")],
)
def test_the_smallest_card_is_told_with_the_retries_that_it_takes(recording, retries, capsys):
    text = told(capsys, DATA / f"stub-{recording}.pickle.gz", "--fit")
    assert f", with {retries}; a card of 4 GiB" in text


def test_without_a_search_nothing_is_concluded(tmp_path, capsys):
    assert "settings lets" not in told(capsys, plain(tmp_path), "--gpu", "10MiB")


def test_a_narrow_terminal_has_the_configurations_and_what_they_hold(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(what_if, "WIDTH", 80)
    lines = told(capsys, fragmented(tmp_path)).splitlines()
    assert " ".join(lines[1].split()) == "configuration allocated reserved unused out of memory"
    assert lines[2].startswith("recorded  ")
    assert any(line.startswith("expandable_segments:True  ") for line in lines)
    assert max(map(len, lines[:-2])) <= 80


def test_what_was_alive_is_told_once_a_line(tmp_path, capsys):
    text = told(capsys, full(tmp_path))
    assert "20 MiB in 2 blocks" in text


@pytest.mark.parametrize(
    ("card", "says"), [("64MiB", "fits in 64 MiB, "), ("8MiB", "does not fit in 8 MiB")]
)
def test_of_a_card_it_says_at_the_end_whether_the_run_fits(card, says, tmp_path, capsys):
    last = told(capsys, plain(tmp_path), "--gpu", card).strip().splitlines()[-1]
    assert last.startswith(says)
    assert ("to spare" in last) is says.startswith("fits")
