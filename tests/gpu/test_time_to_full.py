"""When a card is full is told before it is, from torch's own counters."""

from __future__ import annotations

import pytest

import memprof
from memprof.loading import load
from memprof.record import summaries
from memprof.views.time_to_full import times_to_full

torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")

MIB = 1 << 20


def test_a_leak_is_told_early_and_within_a_tenth(tmp_path, monkeypatch, sources):
    monkeypatch.setattr(summaries, "EVERY_US", 0)
    monkeypatch.setattr("memprof.record.session.FLUSH_IN_WINDOW_US", 0)
    torch.cuda.empty_cache()
    leaked = torch.cuda.get_device_properties(0).total_memory // 256
    told, kept = [], []

    def train(tracker):
        while True:
            work = [torch.empty(size * MIB, device="cuda", dtype=torch.uint8) for size in (64, 40)]
            kept.append(torch.empty(leaked, dtype=torch.uint8, device="cuda"))
            del work
            tracker.step()

    with memprof.track(
        tmp_path / "run.json", sources=sources, on_finding=told.append, allowance_s=1000
    ) as tracker:
        with pytest.raises(torch.OutOfMemoryError) as out:
            train(tracker)
        tracker.failed(out.value)
    step = len(kept)
    kept.clear()
    torch.cuda.empty_cache()
    found = [one for one in told if one.finding == "time_to_full"]
    assert found
    first = found[0]
    assert first.device == "cuda:0"
    left = step - first.step
    assert left > 100
    assert abs(first.details["full_step"] - step) <= 0.1 * left
    assert len(found) <= 5
    assert list(times_to_full(load(tmp_path / "run.json"))) == []  # it has run out
