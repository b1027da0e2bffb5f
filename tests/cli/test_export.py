"""`memprof export`: a recording as a snapshot of torch's."""

from __future__ import annotations

import pytest

from memprof.loading import load
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Phase
from memprof_cli import main

MIB = 1 << 20


def run_command(*words):
    with pytest.raises(SystemExit) as end:
        main(["export", *map(str, words)])
    return int(end.value.code or 0)


@pytest.fixture
def recording(tmp_path):
    """Two windows of one device: 3 MiB are alive at the end of the first, 5 MiB of the second."""
    first = TraceBuilder("cuda:0").label(step=0, phase=Phase.FORWARD, module="net")
    second = TraceBuilder("cuda:0")
    first.alloc(3 * MIB, "a")
    second.alloc(5 * MIB, "b")
    return write_run(tmp_path / "run.json", first.build(), second.build())


def test_the_last_window_is_written_beside_the_recording(recording, capsys):
    assert run_command(recording) == 0
    path = recording.with_suffix(".pickle")
    assert f"{path} written (cuda:0)" in capsys.readouterr().out
    (device,) = load(path).devices
    assert device.windows[0].end.allocated == 5 * MIB


def test_another_window_is_written_where_it_is_asked_for(recording, tmp_path):
    assert run_command(recording, "--window", 0, "-o", tmp_path / "first.pickle") == 0
    (device,) = load(tmp_path / "first.pickle").devices
    assert device.windows[0].end.allocated == 3 * MIB
    metadata = [label.annotation for label in device.windows[0].tables.labels]
    assert any("net" in text for text in metadata)


def test_a_window_that_is_not_there_is_said(recording, capsys):
    assert run_command(recording, "--window", 7) == 1
    assert "holds no window 7" in capsys.readouterr().err


def test_a_snapshot_is_not_written_over_itself(recording):
    assert run_command(recording) == 0
    snapshot = recording.with_suffix(".pickle")
    before = snapshot.read_bytes()
    assert run_command(snapshot) == 0
    assert snapshot.read_bytes() == before
    assert recording.with_name("run-exported.pickle").exists()


def test_a_folder_that_is_not_there_is_said(recording, tmp_path, capsys):
    assert run_command(recording, "-o", tmp_path / "none" / "x.pickle") == 1
    assert "cannot write" in capsys.readouterr().err
