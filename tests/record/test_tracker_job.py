"""The job comes first: what track() leaves as it was, and what outlives a kill."""

from __future__ import annotations

import gc
import time
import weakref
from pathlib import Path

import pytest

import memprof

torch = pytest.importorskip("torch", reason="there is nothing to record without torch")

from tests import forks  # noqa: E402
from tests.tracked import FakeReadings, flat, of_kind  # noqa: E402


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.json"


# The job comes first.

TRAIN = """
import sys, torch
torch.manual_seed(0)
def train(steps=12):
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses
"""


def test_losses_are_equal_bit_for_bit_with_and_without(path):
    code = (
        TRAIN
        + """
import memprof
plain = train()
torch.manual_seed(0)
with memprof.track(sys.argv[1]):
    recorded = train()
torch.manual_seed(0)
with memprof.track(sys.argv[1], max_events=0):
    counted = train()
assert plain == recorded == counted
"""
    )
    done = forks.run(code, path)
    assert done.returncode == 0, done.stderr
    assert of_kind(path, "footer")[0]["steps"] == 12


def test_steps_are_found_by_themselves_and_a_real_run_loads(path):
    recorded = "import memprof\nwith memprof.track(sys.argv[1], allowance_s=600): train()"
    done = forks.run(TRAIN + recorded, path)
    assert done.returncode == 0, done.stderr
    run = memprof.load(path)
    cpu = run.device("cpu")
    assert list(cpu.steps.first) == list(range(12))
    assert cpu.windows[0].start is not None
    assert cpu.windows[0].end is not None
    assert run.footer.steps == 12


def test_nothing_of_the_job_is_kept_alive(path):
    with memprof.track(path, sources=["cpu"]) as tracker:
        tensor = torch.ones(1000)
        seen = weakref.ref(tensor.untyped_storage()), weakref.ref(tensor)
        tracker.step()
        del tensor
        gc.collect()
        assert [ref() for ref in seen] == [None, None]


def test_a_step_that_goes_on_for_long_reaches_the_disk_before_its_end(path, monkeypatch):
    monkeypatch.setattr("memprof.record.session.FLUSH_IN_WINDOW_US", 0)
    monkeypatch.setattr("memprof.record.recording.DRAIN_SHARE", 1e9)  # however long a drain takes
    layer = torch.nn.Linear(4, 4)
    with memprof.track(path, sources=["cpu"], sample_interval_s=100) as tracker:
        tracker.step()
        before = path.stat().st_size
        for _ in range(5):
            layer(torch.ones(2, 4))
        assert path.stat().st_size > before


@pytest.mark.slow
def test_killed_at_any_moment_every_flushed_record_comes_back(tmp_path):
    code = """
import sys, time
from memprof.records import Header, StepColumns, StepsRecord
from memprof.runfile.writer import RunWriter
writer = RunWriter(sys.argv[1], Header((1, 0), 1))
print("go", flush=True)
for number in range(10**9):
    columns = StepColumns(first=[number], last=[number], allocated=[number * 4096])
    writer.write(StepsRecord("cpu", columns))
    writer.flush()
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""
    for attempt in range(100):
        path = tmp_path / f"run{attempt}.json"
        with forks.started(code, path) as job:
            assert job.stdout.readline() == b"go\n"
            time.sleep((attempt % 17) * 0.001)
            job.kill()
            told = job.stdout.read().split(b"\n")[:-1]
        steps = memprof.load(path).devices[0].steps if told else None
        if steps is not None:
            assert len(steps) >= len(told)
            assert list(steps.allocated) == [4096 * n for n in range(len(steps))]


def test_the_sampler_reads_at_its_start_and_at_its_end(path):
    readings = FakeReadings()
    with memprof.track(path, sources=[readings], sample_interval_s=100):
        assert readings.is_open
    assert readings.looks == 2
    assert not readings.is_open
    assert flat(r["values"]["looks_count"] for r in of_kind(path, "readings")) == [1, 2]
