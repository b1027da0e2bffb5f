"""What memprof records on a GPU against torch's own counters, and what it must not disturb."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")

import memprof  # noqa: E402
from memprof.analysis.examination import examine  # noqa: E402
from memprof.loading import load  # noqa: E402
from memprof.trace import Action, Phase  # noqa: E402

STEPS = 6


def model_and_optimizer():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512) for _ in range(4)]
    model = torch.nn.Sequential(*layers).cuda()
    return model, torch.optim.Adam(model.parameters())


def one_step(model, optimizer):
    loss = model(torch.ones(64, 512, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def test_live_and_peak_bytes_equal_torchs_counters_at_every_step(tmp_path):
    model, optimizer = model_and_optimizer()
    live, peaks = [], []
    with memprof.track(tmp_path / "run.json", sources=("cuda",)):
        for _ in range(STEPS):
            torch.cuda.reset_peak_memory_stats()
            one_step(model, optimizer)
            live.append(torch.cuda.memory_allocated())
            peaks.append(torch.cuda.max_memory_allocated())
            memprof.step()
    (device,) = examine(load(tmp_path / "run.json")).devices
    assert list(device.steps.allocated[:STEPS]) == live
    assert list(device.steps.peak_allocated[:STEPS]) == peaks


def test_reserved_bytes_at_the_windows_end_are_torchs(tmp_path):
    model, optimizer = model_and_optimizer()
    with memprof.track(tmp_path / "run.json", sources=("cuda",)):
        one_step(model, optimizer)
    (device,) = load(tmp_path / "run.json").devices
    assert device.windows[-1].end.reserved == torch.cuda.memory_reserved()
    assert device.windows[-1].end.allocated == torch.cuda.memory_allocated()


def test_the_programs_own_peak_counters_read_as_without_memprof(tmp_path):
    def peaks():
        model, optimizer = model_and_optimizer()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(STEPS):
            one_step(model, optimizer)
        return torch.cuda.max_memory_allocated() - before

    plain = peaks()
    with memprof.track(tmp_path / "run.json", sources=("cuda",)):
        tracked = peaks()
    assert tracked == plain


def test_nothing_synchronizes_while_memprof_records(tmp_path):
    model, optimizer = model_and_optimizer()
    one_step(model, optimizer)
    with memprof.track(tmp_path / "run.json", sources=("cuda",)):
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(STEPS):
                one_step(model, optimizer)
                memprof.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert load(tmp_path / "run.json").footer.status == "ok"


def test_losses_are_bit_equal_with_and_without_memprof(tmp_path):
    def losses():
        model, optimizer = model_and_optimizer()
        return torch.stack([one_step(model, optimizer) for _ in range(STEPS)]).cpu()

    plain = losses()
    with memprof.track(tmp_path / "run.json", sources=("cuda",)):
        tracked = losses()
    assert torch.equal(plain, tracked)


def test_allocations_of_every_phase_are_labelled(tmp_path):
    model, optimizer = model_and_optimizer()
    with memprof.track(tmp_path / "run.json", sources=("cuda",)):
        for _ in range(3):
            one_step(model, optimizer)
    window = load(tmp_path / "run.json").devices[0].windows[0]
    allocs = window.events.take(window.events.action == Action.ALLOC)
    phases = {window.label(int(row)).phase for row in allocs.label}
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER} <= phases


def test_blocks_of_every_stream_are_recorded(tmp_path):
    side = torch.cuda.Stream()
    with memprof.track(tmp_path / "run.json", sources=("cuda",)):
        with torch.cuda.stream(side):
            kept = torch.ones(1 << 20, device="cuda")
        memprof.step()
    window = load(tmp_path / "run.json").devices[0].windows[0]
    assert kept.data_ptr() in set(window.events.address.tolist())
    assert side.cuda_stream in set(window.events.stream.tolist())


def test_a_captured_graph_and_a_compiled_model_run_as_before(tmp_path):
    graph, static = torch.cuda.CUDAGraph(), torch.ones(256, 256, device="cuda")
    compiled = torch.compile(lambda x: (x @ x).relu())
    with memprof.track(tmp_path / "run.json", sources=("cuda",)):
        wanted = compiled(static).clone()
        with torch.cuda.graph(graph):
            out = static @ static
        graph.replay()
        memprof.step()
    assert torch.allclose(out.relu(), wanted)
    assert load(tmp_path / "run.json").footer.status == "ok"


def test_cuda_is_not_initialised_by_memprof(tmp_path):
    code = (
        "import torch, memprof\n"
        f"with memprof.track({str(tmp_path / 'run.json')!r}):\n"
        "    torch.ones(8)\n"
        "    memprof.step()\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
