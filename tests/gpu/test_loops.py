"""Steps of programs on a GPU in which nothing but operators run: told by their stacks."""

from __future__ import annotations

from pathlib import Path

import pytest

import memprof
from memprof.loading import load
from memprof.rules.ranked_findings import findings
from tests.gpu.patience import LONG_S

torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")

MIB = 1 << 20
TURNS = 40
LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def line_of(text):
    return 1 + next(at for at, line in enumerate(LINES) if line.strip() == text)


def simulate(kept):
    state = torch.zeros(MIB // 4, device="cuda")
    for _ in range(TURNS):
        state = state * 0.5
        kept.append(state.clone())


def first_finding(path):
    """What is said first of a file, whose steps are the turns of that loop."""
    run = load(path)
    assert run.guessed is not None
    assert (run.guessed.line, run.guessed.last) == (line_of("state = state * 0.5"), TURNS - 1)
    first = findings(run)[0]
    assert first.bytes_per_step == MIB
    assert first.site.line == line_of("kept.append(state.clone())")
    return first


def test_a_loop_of_operators_has_steps_a_leak_and_its_holder(tmp_path, sources):
    kept = []
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        simulate(kept)
    first = first_finding(tmp_path / "run.json")
    assert first.holders[0].description.startswith(f"list `kept` ({TURNS} items)")


def test_a_snapshot_of_torchs_own_has_them_too(tmp_path):
    kept = []
    torch.cuda.memory._record_memory_history()
    simulate(kept)
    torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    torch.cuda.memory._record_memory_history(None)
    assert first_finding(tmp_path / "snapshot.pickle").holders == ()
