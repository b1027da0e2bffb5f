"""What befalls a job of weeks: each time the file loads, results are bit-equal, its exit its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import memprof

torch = pytest.importorskip("torch", reason="there is nothing to record without torch")

from tests import forks  # noqa: E402

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="programs are forked")

TRAIN = """
import sys, torch
def train(steps=12, seed=0, after=lambda step: None, around=None):
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(steps):
        loss = model(torch.randn(8, 16, generator=generator)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        after(step)
    return losses
"""


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.json"


# -- the clock -----------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-24, 24], ids=["back", "forward"])
def test_a_system_clock_that_is_set_delays_no_write_and_no_judgement(path, hours):
    code = (
        TRAIN
        + """
import os, time, memprof
plain = train(24)
real, offset = time.time_ns, 0
time.time_ns = lambda: real() + offset
def after(step):
    global offset
    if step == 11:
        offset = int(sys.argv[2]) * 3_600_000_000_000
    if step > 18:
        time.sleep(0.25)
tracker = memprof.start(sys.argv[1], allowance_s=600)
assert train(24, after=after) == plain
if sys.argv[2] == "-24":
    os.kill(os.getpid(), 9)
"""
    )
    done = forks.run(code, path, hours)
    assert done.returncode == (-signal.SIGKILL if hours < 0 else 0), done.stderr
    assert "recording has ended" not in done.stderr
    run = memprof.load(path)
    steps = run.device("cpu").steps
    assert len(steps) >= 20  # what came after the clock was set had reached the disk
    assert (steps.end_us >= steps.start_us).all()
    if run.footer is not None:
        assert 0 <= run.footer.overhead_us < 3_600_000_000
