"""What memprof records on a GPU, against torch's own counters, to the byte."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")

import numpy as np  # noqa: E402

import memprof  # noqa: E402
from memprof.loading import load  # noqa: E402
from memprof.views.steps import step_of_event  # noqa: E402
from tests.gpu.devices import examined, recorded  # noqa: E402
from tests.gpu.patience import LONG_S  # noqa: E402

MIB = 1 << 20
STEPS = 6


def trained_by_adam(width: int = 512):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(4)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        model(torch.ones(64, width, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def of_awkward_sizes():
    """Requests whose blocks are larger than their bytes rounded up, as no split is worth it."""
    kept = []

    def step() -> None:
        held = [
            torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")
            for mib in (11, 19.5, 3, 0.3, 1.5, 25.1, 0.001)
        ]
        del held[1::2]
        kept.append(torch.empty(700, dtype=torch.uint8, device="cuda"))

    return step


def in_two_streams():
    side = torch.cuda.Stream()

    def step() -> None:
        here = torch.ones(MIB, device="cuda")
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            there = here * 2
            here.record_stream(side)
        torch.cuda.default_stream().wait_stream(side)
        there.record_stream(torch.cuda.default_stream())

    return step


@pytest.mark.parametrize("job", [trained_by_adam, of_awkward_sizes, in_two_streams])
def test_live_and_peak_bytes_equal_torchs_counters_at_every_step(tmp_path, sources, job):
    step = job()
    live, peaks = [], []
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        for _ in range(STEPS):
            torch.cuda.reset_peak_memory_stats()
            step()
            live.append(torch.cuda.memory_allocated())
            peaks.append(torch.cuda.max_memory_allocated())
            memprof.step()
    device = examined(load(tmp_path / "run.json"))
    assert device.steps.allocated[:STEPS].tolist() == live
    assert device.steps.peak_allocated[:STEPS].tolist() == peaks
    (window,) = device.windows
    ends = np.searchsorted(step_of_event(window.trace), np.arange(1, STEPS + 1))
    assert window.line.allocated[ends].tolist() == live  # by the events alone


def test_the_state_at_the_windows_end_is_torchs(tmp_path, sources):
    step = of_awkward_sizes()
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        step()
    device = recorded(load(tmp_path / "run.json"))
    stats = torch.cuda.memory_stats()
    end = device.windows[-1].end
    assert end.reserved == torch.cuda.memory_reserved()
    assert end.allocated == torch.cuda.memory_allocated()
    assert end.active == stats["active_bytes.all.current"]
    assert int(end.blocks.requested.sum()) == stats["requested_bytes.all.current"]


def test_between_windows_the_counters_of_every_step_are_torchs(tmp_path, sources):
    step = trained_by_adam()
    live, reserved = [], []
    with memprof.track(tmp_path / "run.json", sources=sources, max_events=0):
        for _ in range(STEPS):
            step()
            live.append(torch.cuda.memory_allocated())
            reserved.append(torch.cuda.memory_reserved())
            memprof.step()
    steps = recorded(load(tmp_path / "run.json")).steps
    assert steps.allocated[-1] == live[-1]
    assert set(steps.allocated.tolist()) <= set(live)
    assert set(steps.reserved.tolist()) <= set(reserved)


@pytest.mark.parametrize("allowance_s", [60.0, 0.0])
def test_the_programs_own_peak_counters_read_as_without_memprof(tmp_path, sources, allowance_s):
    def peaks() -> tuple[int, int]:
        step = trained_by_adam()
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(STEPS):
            step()
            memprof.step()
        return torch.cuda.max_memory_allocated() - before, torch.cuda.memory_stats()["num_ooms"]

    peaks()  # cuBLAS takes its workspace in the first
    gc.collect()
    torch.cuda.empty_cache()
    plain = peaks()
    gc.collect()
    torch.cuda.empty_cache()
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=allowance_s):
        tracked = peaks()
    assert tracked == plain


def test_memory_that_memprof_itself_takes_on_the_device_is_none(tmp_path, sources):
    step = trained_by_adam()
    step()
    gc.collect()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    step()
    gc.collect()
    one_step = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=LONG_S):
        step()
        memprof.step()
    gc.collect()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - before == one_step
