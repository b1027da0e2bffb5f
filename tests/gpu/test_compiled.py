"""Compiled models on a GPU, CUDA graphs of torch.compile among them: to the byte, as any other."""

from __future__ import annotations

import gc
import importlib.util
import shutil

import pytest

torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")

import numpy as np  # noqa: E402

import memprof  # noqa: E402
from memprof.loading import load  # noqa: E402
from memprof.views.steps import step_of_event  # noqa: E402
from tests.gpu.devices import examined, recorded  # noqa: E402
from tests.gpu.nets import WIDTH, Net  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("gcc") is None or importlib.util.find_spec("triton") is None,
        reason="torch.compile needs triton and a C compiler",
    ),
    pytest.mark.usefixtures("compiler_is_loaded"),
]
MODES = ["default", "reduce-overhead"]
"""The second captures CUDA graphs: they have a pool of their own, whose state is set back."""
STEPS = 12


def batch():
    return torch.ones(32, WIDTH, device="cuda")


@pytest.fixture(scope="module")
def compiler_is_loaded():
    """torch.compile patches modules when it is first used, and leaves it so.

    It compiles in this process: a pool of workers can take minutes to end.
    """
    from torch._inductor import config

    with config.patch(compile_threads=1):
        for mode in MODES:
            model = torch.compile(torch.nn.Linear(1, 1).cuda(), mode=mode)
            for _ in range(3):
                model(torch.zeros(1, 1, device="cuda")).sum().backward()
                model.zero_grad()
        torch._dynamo.reset()
        yield


@pytest.fixture(params=MODES)
def step(request):
    """A training step of a compiled model, in some steps with two forward passes."""
    torch.manual_seed(0)
    model = Net().cuda()
    compiled = torch.compile(model, mode=request.param)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(number: int) -> None:
        one = compiled(batch())
        another = compiled(batch()) if number % 3 == 2 else one
        (one.square().mean() + another.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    yield train
    torch._dynamo.reset()
    gc.collect()


def test_a_compiled_model_is_recorded_as_torch_counts_it(tmp_path, step, sources):
    live, peaks = [], []
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=120):
        for number in range(STEPS):
            torch.cuda.reset_peak_memory_stats()
            step(number)
            live.append(torch.cuda.memory_allocated())
            peaks.append(torch.cuda.max_memory_allocated())
            memprof.step()
    run = load(tmp_path / "run.json")
    assert run.footer.status == "ok"
    device = examined(run)
    assert device.steps.allocated[:STEPS].tolist() == live
    assert device.steps.peak_allocated[:STEPS].tolist() == peaks
    (window,) = device.windows
    ends = np.searchsorted(step_of_event(window.trace), np.arange(1, STEPS + 1))
    assert window.line.allocated[ends].tolist() == live  # by the events alone


def test_a_model_that_was_compiled_before_goes_on_under_memprof(tmp_path, step, sources):
    for number in range(4):
        step(number)
    with memprof.track(tmp_path / "run.json", sources=sources, allowance_s=120):
        for number in range(STEPS):
            step(number)
            memprof.step()
        gc.collect()
        live, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    run = load(tmp_path / "run.json")
    assert run.footer.status == "ok"
    assert run.footer.steps == STEPS
    end = recorded(run).windows[-1].end
    assert (end.allocated, end.reserved) == (live, reserved)
