"""A leaking CUDA job that records memory history itself, from the job to the finding: a stand-in."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch", reason="a recording needs torch")

import memprof
from memprof.loading import load
from memprof.rules.growth_findings import leaks
from memprof.sources.cuda.snapshot_source import CudaSource
from memprof.testing.cuda import TorchStandIn
from memprof.views.examination import examine

MIB = 1 << 20
STEPS = 30
BURST, BURST_AT = 12, 3
LARGE = {"max_entries": 100_000}
ORDERS: dict[str, dict[int, dict | None]] = {
    "memprof alone": {},
    "the program first": {-1: LARGE},
    "stacks at blocks only": {-1: LARGE | {"context": "state"}},
    "stacks of frees too": {-1: LARGE | {"context": "all", "stacks": "all"}},
    "a small ring": {-1: {"max_entries": 20}},
    "memprof first": {10: LARGE},
    "stopped in the middle": {-1: LARGE, 10: None},
    "on and off": {5: LARGE, 10: None, 15: LARGE, 20: None},
}


@pytest.mark.parametrize("version", ["2.5", "2.11", "2.15"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_leak_is_found_whoever_records_and_whenever(order, version, monkeypatch, tmp_path):
    torch = TorchStandIn(version)
    monkeypatch.setattr(
        "memprof.record.session.event_sources",
        lambda _, interner, loop_watch, __: [CudaSource(interner, loop_watch, torch)],
    )
    # beside steps of microseconds a reading takes long, and would be put off beyond the last one
    monkeypatch.setattr("memprof.record.session.FLUSH_IN_WINDOW_US", 0)
    monkeypatch.setattr("memprof.record.recording.DRAIN_SHARE", math.inf)
    calls = ORDERS[order]

    def program_calls(step: int) -> None:
        if step in calls:
            how = calls[step] or {"enabled": None}
            torch.cuda.memory._record_memory_history(**how)

    program_calls(-1)
    kept = [torch.alloc(10 * MIB)]
    with memprof.track(tmp_path / "run.json", sources=("cuda",), allowance_s=600):
        for step in range(STEPS):
            program_calls(step)
            kept.append(torch.alloc(4 * MIB))
            for _ in range(BURST if step == BURST_AT else 1):  # more than a small ring holds
                torch.free(torch.alloc(16 * MIB))
            memprof.step()
    run = load(tmp_path / "run.json")
    (found,) = leaks(examine(run))
    assert found.site.filename == __file__
    (device,) = examine(run).devices
    assert device.steps.allocated[-1] == (10 + 4 * STEPS) * MIB
    last = [how for _, how in sorted(calls.items())][-1:]
    assert torch._C._cuda_isHistoryEnabled() == (last not in ([], [None]))


def test_settings_that_the_program_makes_as_it_runs_are_those_of_the_recording(
    monkeypatch, tmp_path
):
    torch = TorchStandIn(settings="max_split_size_mb:64")
    monkeypatch.setattr(
        "memprof.record.session.event_sources",
        lambda _, interner, loop_watch, __: [CudaSource(interner, loop_watch, torch)],
    )
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    with memprof.track(tmp_path / "run.json", sources=("cuda",)):
        torch.alloc(MIB)
        memprof.step()
        memprof.step()
    (device,) = load(tmp_path / "run.json").devices
    assert device.info.settings["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    assert device.windows[0].settings == device.info.settings
