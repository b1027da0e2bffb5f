"""What memprof must not do to a job on a GPU: wait, change numbers, initialise, leave hooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")

import memprof  # noqa: E402
from memprof.loading import load  # noqa: E402
from tests.gpu.devices import recorded  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
STEPS = 6
ALLOWANCES = [60.0, 0.0]
"""With a window that is open throughout, and with one that closes at the first step's end."""


def job():
    torch.manual_seed(0)
    layers = [m for _ in range(4) for m in (torch.nn.Linear(512, 512), torch.nn.Dropout(0.1))]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(64, 512, device="cuda")

    def step():
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pytest.mark.parametrize("allowance_s", ALLOWANCES)
def test_nothing_synchronizes_while_memprof_records(tmp_path, sources, allowance_s):
    step = job()
    step()
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=allowance_s):
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(STEPS):
                step()
                memprof.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    run = load(tmp_path / "run.json")
    assert run.footer.status == "ok"
    assert run.footer.steps == STEPS
    assert "synchroniz" not in " ".join(note.message for note in run.notes)


@pytest.mark.kernels
def test_opening_and_closing_a_window_waits_for_no_kernel(tmp_path, sources):
    """A kernel of 6e9 clock cycles is under way all the while: some seconds at 1 to 2 GHz."""
    if not hasattr(torch.cuda, "_sleep"):
        pytest.skip("this torch cannot keep a device busy for a given time")
    step = job()
    step()
    with memprof.track(tmp_path / "warm.json", sources=sources):
        step()
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(6_000_000_000)
    done.record()
    with memprof.track(tmp_path / "run.json", sources=sources):
        memprof.step()
    assert not done.query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("allowance_s", ALLOWANCES)
def test_losses_and_random_state_are_bit_equal_with_and_without_memprof(
    tmp_path, sources, allowance_s
):
    def outcome():
        step = job()
        losses = []
        for _ in range(STEPS):
            losses.append(step())
            memprof.step()
        return torch.stack(losses).cpu(), torch.cuda.get_rng_state(), torch.get_rng_state()

    outcome()  # libraries choose their kernels
    plain = outcome()
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=allowance_s):
        tracked = outcome()
    assert all(torch.equal(a, b) for a, b in zip(plain, tracked, strict=True))


def test_cuda_is_not_initialised_by_memprof(tmp_path, sources):
    code = (
        "import torch, memprof\n"
        f"with memprof.track({str(tmp_path / 'run.json')!r}, sources={sources!r}):\n"
        "    torch.ones(8)\n"
        "    memprof.step()\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_cuda_that_the_job_initialises_is_recorded_from_its_first_byte(tmp_path, sources):
    code = (
        "import torch, memprof\n"
        f"with memprof.track({str(tmp_path / 'run.json')!r}, sources={sources!r}):\n"
        "    kept = torch.ones(1 << 20, device='cuda')\n"
        "    memprof.step()\n"
        "    memprof.step()\n"
        "print(torch.cuda.memory_allocated())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    window = recorded(load(tmp_path / "run.json")).windows[0]
    assert 4 << 20 in window.events.size.tolist()
    assert window.end.allocated == int(done.stdout)


def test_nothing_of_torch_stays_replaced_and_its_recorder_is_off(tmp_path, sources):
    before = torch._C._cuda_record_memory_history
    with memprof.track(tmp_path / "run.json", sources=sources):
        job()()
        assert torch._C._cuda_isHistoryEnabled()
    assert torch._C._cuda_record_memory_history is before
    assert not torch._C._cuda_isHistoryEnabled()


def test_the_current_device_stays_the_programs(tmp_path, sources):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    before = torch.cuda.current_device()
    torch.ones(1, device="cuda:0")
    with memprof.track(tmp_path / "run.json", sources=sources):
        for device in ("cuda:1", "cuda:0"):
            torch.ones(1 << 20, device=device)
            memprof.step()
            assert torch.cuda.current_device() == before
    assert torch.cuda.current_device() == before
    assert {d.device for d in load(tmp_path / "run.json").devices} >= {"cuda:0", "cuda:1"}
