"""A command replays each trace of a file once, however many of its parts ask for what that tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.allocator.guided_replay import Guide
from memprof.testing import TraceBuilder, save_snapshot, snapshot, write_run
from memprof.trace import Category, Frame, Phase
from memprof_cli import main

MIB = 1 << 20
TRAIN = (Frame("forward", "/home/me/train.py", 7), Frame("main", "/home/me/train.py", 90))


def full_card() -> TraceBuilder:
    """Steps that leave 20 MiB each, until a request is refused, and a smaller one is too."""
    builder = TraceBuilder()
    for step in range(12):
        builder.label(step=step, phase=Phase.FORWARD)
        builder.alloc(20 * MIB, f"kept {step}", stack=TRAIN, category=Category.ACTIVATION)
    builder.oom(64 * MIB, device_free=4 * MIB)
    builder.oom(32 * MIB, device_free=4 * MIB)
    return builder


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events the model was led along, one entry each time."""
    stretches: list[int] = []
    advance = Guide.advance

    def counted(self: Guide, to: int | None = None) -> None:
        before = self.row
        advance(self, to)
        stretches.append(self.row - before)

    monkeypatch.setattr(Guide, "advance", counted)
    return stretches


def run_main(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


COMMANDS = (["report", "--no-page"], ["report"], ["leaks"], ["oom"])


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_window_of_a_run_is_replayed_once(
    words: list[str], tmp_path: Path, replayed: list[int]
) -> None:
    trace = full_card().build()
    assert run_main(*words, write_run(tmp_path / "run.json", trace)) == 0
    assert replayed == [len(trace.events)]


@pytest.mark.parametrize(
    ("words", "times"), [(COMMANDS[0], 1), (COMMANDS[1], 1), (COMMANDS[2], 0), (COMMANDS[3], 1)]
)
def test_a_snapshot_is_replayed_for_its_failed_request_alone(
    words: list[str], times: int, tmp_path: Path, replayed: list[int]
) -> None:
    trace = full_card().build()
    assert run_main(*words, save_snapshot(tmp_path / "full.pickle", snapshot(trace))) == 0
    assert replayed == [len(trace.events)] * times
