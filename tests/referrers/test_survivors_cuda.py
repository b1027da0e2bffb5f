"""Leaks of CUDA tensors, from the recording to the command, on a stand-in: no test of a GPU."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest
from click.testing import CliRunner

import memprof
from memprof_cli.leaks import command

torch = pytest.importorskip("torch", reason="survivors are torch's tensors")

from tests.sources.pretended import Pretended, recorded_device  # noqa: E402

STEPS = 40


@pytest.fixture
def device(monkeypatch) -> Pretended:
    """A device that `memprof.track` records, for tensors that pretend to lie on it."""
    return recorded_device(monkeypatch)


def train(path, device, keep, steps=STEPS):
    """A training loop that hands each step's loss to ``keep``."""
    with memprof.track(path, sources=("cuda",), allowance_s=60), device:
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 4))
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(steps):
            loss = model(torch.ones(16, 32)).square().mean()
            keep(loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return memprof.load(path)


def findings(run, reason):
    return [f for f in run.findings if f.finding == "holders" and f.details["reason"] == reason]


def test_the_holder_of_growing_cuda_memory_is_found_and_logged_once(tmp_path, device, caplog):
    outputs: list[object] = []
    with caplog.at_level(logging.WARNING, logger="memprof"):
        run = train(tmp_path / "run.json", device, outputs.append)
    found = findings(run, "growth")[-1]
    assert found.device == "cuda:0"
    assert "outputs" in found.holders[0].description
    assert found.bytes == found.count * 512
    assert [m for m in caplog.messages if "memory grows by" in m] == [
        m
        for m in caplog.messages
        if m.startswith("memprof: memory grows by 512 B per step since step 0")
    ]
    outputs.clear()


def test_the_command_names_site_holder_and_fix_of_a_leak_on_cuda(tmp_path, device):
    losses: list[object] = []
    train(tmp_path / "run.json", device, losses.append)
    losses.clear()
    told = CliRunner().invoke(command, ["--fail-on-leak", str(tmp_path / "run.json")])
    assert told.exit_code == 3
    assert "grows by 512 B per step: list `losses`" in told.output
    assert "loss = model(torch.ones(16, 32)).square().mean()" in told.output
    assert "item" in told.output


def test_what_a_healthy_loop_makes_on_cuda_is_no_finding(tmp_path, device):
    run = train(tmp_path / "run.json", device, lambda loss: None)
    assert findings(run, "growth") == []


def test_memory_that_only_the_collector_frees_is_timed_on_cuda(tmp_path, device):
    class Result:
        def __init__(self, loss):
            self.loss, self.me = loss, self

    def keep(loss):
        Result(loss)
        gc.collect(0)

    gc.collect()
    run = train(tmp_path / "run.json", device, keep)
    garbage = [f for f in run.findings if f.finding == "garbage"]
    assert sum(f.count for f in garbage) >= STEPS - 2


def test_looking_for_holders_keeps_no_cuda_tensor_alive(tmp_path, device):
    dead: list[weakref.ref[object]] = []
    kept: list[object] = []

    def keep(loss):
        kept.append(loss.detach().clone())
        dead.append(weakref.ref(loss))

    collecting = gc.isenabled()
    gc.disable()
    try:
        train(tmp_path / "run.json", device, keep)
        assert [ref for ref in dead if ref() is not None] == []
    finally:
        if collecting:
            gc.enable()


def test_blocks_that_no_object_owns_are_said_to_have_no_owner(tmp_path, device):
    workspace = 8_519_680
    with device.stand_in.backward_thread():
        device.stand_in.alloc(workspace)
    run = train(tmp_path / "run.json", device, lambda loss: None)
    (found,) = [f for f in findings(run, "resident") if f.bytes == workspace]
    assert found.holders[0].description.startswith("no Python owner found: it has the size of a")
