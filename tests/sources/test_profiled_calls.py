"""How many calls of a model torch's profiler records is told, and nothing where none is on."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import memprof  # noqa: E402


def called(path, profiled, steps=20):
    """A recording of so many calls, ``profiled`` of them the last."""
    model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        for step in range(steps):
            if step == steps - profiled:
                profiler.start()
            model(x).sum().backward()
            tracker.step()
        if profiled:
            profiler.stop()
    return [one for one in memprof.load(path).findings if one.finding == "profiled"]


def test_calls_while_a_profiler_is_on_are_counted_from_the_first(tmp_path):
    found = called(tmp_path / "run.json", profiled=15)
    assert (found[-1].count, found[-1].step) == (15, 5)
    assert found[-1].details == {"calls": 20}


def test_without_a_profiler_there_is_nothing_to_tell(tmp_path):
    assert called(tmp_path / "run.json", profiled=0) == []
