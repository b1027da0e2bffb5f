"""Running out of memory, from the job to the post-mortem: through a stand-in, not on a GPU."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="a recording needs torch")

import torch

import memprof
from memprof.loading import load
from memprof.oom.post_mortem import OomCause, post_mortems
from memprof.sources.cuda.snapshot_source import CudaSource
from memprof.testing.cuda import StandInOutOfMemoryError, TorchStandIn
from tests import forks
from tests.exhausting import MIB, fragmented, leaking, peaking, recorder


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    return recorder(monkeypatch, tmp_path)


def test_a_leak_is_named_and_freeing_it_is_shown_to_be_enough(recorded):
    run = recorded(TorchStandIn(capacity=128 * MIB), leaking)
    (told,) = post_mortems(run)
    assert told.cause is OomCause.LEAK
    assert told.why.endswith("exhausting.py:39 in leaking")
    assert told.failure.recorded == "event"
    freed = next(r for r in told.rescues.fitting if r.kind == "free")
    assert freed.peak_allocated <= 60 * MIB
    assert told.failure.label.step > 5


def test_the_peak_of_a_step_is_told_apart_from_a_leak(recorded):
    run = recorded(TorchStandIn(capacity=100 * MIB), peaking)
    (told,) = post_mortems(run)
    assert told.cause is OomCause.PEAK
    assert told.shortage > 0
    assert told.failure.requested == 10 * MIB
    assert "peaking" in told.asked_by
    assert told.sites[0].name.endswith("in peaking")
    card = next(r for r in told.rescues.tried if r.kind == "card")
    assert card.fits
    assert card.peak_reserved >= 110 * MIB


def test_fragmentation_is_shown_by_the_settings_that_end_it(recorded):
    run = recorded(TorchStandIn(capacity=64 * MIB), fragmented)
    (told,) = post_mortems(run)
    assert told.cause is OomCause.FRAGMENTATION
    assert told.shortage == 0
    assert told.failure.unused == 22 * MIB
    expandable = next(r for r in told.rescues.tried if r.change.endswith("segments:True"))
    assert expandable.fits
    assert expandable.peak_reserved <= 64 * MIB


def test_memory_in_other_hands_is_told_apart(recorded):
    stand_in = TorchStandIn(capacity=100 * MIB, outside=4 << 30)
    (told,) = post_mortems(recorded(stand_in, peaking))
    assert told.cause is OomCause.OTHERS
    assert told.failure.outside == 4 << 30
    without = next(r for r in told.rescues.tried if r.kind == "others")
    assert without.fits


def test_a_limit_of_the_programs_own_is_told_as_what_kept_the_memory_away(recorded):
    stand_in = TorchStandIn(capacity=1000 * MIB)
    stand_in.cuda.set_per_process_memory_fraction(100 * MIB / (1512 * MIB))
    (told,) = post_mortems(recorded(stand_in, peaking))
    assert told.cause is OomCause.LIMIT
    assert told.failure.free == 900 * MIB
    assert any(r.kind == "limit" and r.fits for r in told.rescues.tried)


def test_what_a_limit_kept_away_is_not_called_unused(recorded):
    def half_used(stand_in):
        kept = [stand_in.alloc(8 * MIB) for _ in range(8)]  # two in each of four segments
        for address in kept[::2]:
            stand_in.free(address)
        stand_in.alloc(56 * MIB)

    stand_in = TorchStandIn(capacity=1000 * MIB)
    stand_in.cuda.set_per_process_memory_fraction(100 * MIB / (1512 * MIB))
    (told,) = post_mortems(recorded(stand_in, half_used))
    (weight,) = (w for w in told.weights if w.cause is OomCause.FRAGMENTATION)
    assert weight.why.startswith("68 MiB were unused or free when 56 MiB were asked")
    assert told.failure.free > 900 * MIB


def test_a_limit_that_was_set_before_anything_was_allocated_is_known_too(recorded):
    stand_in = TorchStandIn(capacity=8000 * MIB)
    stand_in.cuda.set_per_process_memory_fraction(0.25)
    (told,) = post_mortems(recorded(stand_in, lambda torch: torch.alloc(4000 * MIB)))
    assert told.cause is OomCause.LIMIT
    assert told.failure.fraction == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("reserve", "cause"),
    [("1G", OomCause.LIMIT), ("2.1G", OomCause.OTHERS), ("1G,", OomCause.OTHERS)],
)
def test_a_request_beyond_the_addresses_of_a_segment_is_told_as_what_the_program_set(
    recorded, reserve, cause
):
    stand_in = TorchStandIn(capacity=1000 * MIB, outside=4 << 30)
    run = recorded(stand_in, lambda torch: torch.alloc(2048 * MIB))
    (device,) = (one for one in run.devices if one.device == "cuda:0")
    conf = f"expandable_segments:{not reserve.endswith(',')},expandable_segments_reserve:{reserve}"
    windows = tuple(
        replace(trace, settings={"PYTORCH_CUDA_ALLOC_CONF": conf}) for trace in device.windows
    )
    (told,) = post_mortems(replace(run, devices=(replace(device, windows=windows),)))
    assert told.cause is cause
    assert bool(told.advice) == (cause is OomCause.LIMIT) == ("lets a segment have 1" in told.why)


def test_the_finding_holds_what_was_asked_held_and_free(recorded):
    run = recorded(TorchStandIn(capacity=100 * MIB), peaking)
    (finding,) = (f for f in run.findings if f.finding == "oom")
    assert finding.device == "cuda:0"
    assert finding.bytes == 10 * MIB  # what torch would have asked of the driver
    assert finding.details["allocated"] == 100 * MIB
    assert finding.details["device_total"] == 612 * MIB
    assert "unread" not in finding.details
    frames = run.devices[0].windows[-1].stack(finding.stack)
    assert any(frame.name == "peaking" for frame in frames)
    assert sum(size for _, size in finding.details["live"]["stacks"]) == 100 * MIB


def training(stand_in: TorchStandIn) -> None:
    """A model with weights in float32 that fails in its forward pass."""

    class Grow(torch.nn.Linear):
        def forward(self, x):
            for _ in range(12):
                stand_in.alloc(10 * MIB)
            return super().forward(x)

    model = torch.nn.Sequential(Grow(4, 4))
    model(torch.ones(1, 4))


@pytest.mark.parametrize("autocast", ["", "bfloat16"])
def test_a_job_that_computes_in_bfloat16_already_is_not_told_to(recorded, autocast):
    stand_in = TorchStandIn(capacity=100 * MIB)
    stand_in.autocast = autocast
    run = recorded(stand_in, training)
    (finding,) = (f for f in run.findings if f.finding == "oom")
    assert finding.details["autocast"] == autocast
    (told,) = post_mortems(run)
    assert any(r.kind == "bf16" for r in told.rescues.tried) == (not autocast)
    (batch,) = (r for r in told.rescues.tried if r.kind == "batch")
    assert batch.fits


def test_a_job_that_survives_its_failures_has_a_record_of_each(recorded):
    def searching(stand_in):
        for size in (400, 200, 100, 50):
            try:
                stand_in.free(stand_in.alloc(size * MIB))
            except StandInOutOfMemoryError:
                continue
            memprof.step()

    run = recorded(TorchStandIn(capacity=80 * MIB), searching)
    found = [f for f in run.findings if f.finding == "oom"]
    assert [f.bytes for f in found] == [400 * MIB, 200 * MIB, 100 * MIB]
    (told,) = post_mortems(run)
    assert told.failure.times == 3
    assert told.failure.requested == 100 * MIB
    assert run.footer is not None
    assert run.footer.status == "ok"


def test_everything_is_on_disk_before_the_error_goes_on(monkeypatch, tmp_path):
    stand_in = TorchStandIn(capacity=100 * MIB)
    monkeypatch.setattr(
        "memprof.record.session.event_sources",
        lambda _, interner, loop_watch, __: [CudaSource(interner, loop_watch, stand_in)],
    )
    path = tmp_path / "run.json"
    with memprof.track(path, sources=("cuda",)):
        with pytest.raises(StandInOutOfMemoryError):
            peaking(stand_in)
        copy = Path(tmp_path / "killed.json")
        copy.write_bytes(path.read_bytes())  # what a job that is killed now would leave
    run = load(copy)
    assert run.footer is None
    (told,) = post_mortems(run)
    assert told.failure.recorded == "event"
    assert told.cause is OomCause.PEAK
    assert "peaking" in told.asked_by


KILLED = """
import os, signal, sys
import memprof, memprof.record.session
from memprof.sources.cuda.snapshot_source import CudaSource
from memprof.testing.cuda import StandInOutOfMemoryError, TorchStandIn
import torch

stand_in = TorchStandIn(capacity=100 << 20)
memprof.record.session.event_sources = lambda _, interner, loop_watch, __: [
    CudaSource(interner, loop_watch, stand_in)
]

def grow():
    while True:
        stand_in.alloc(30 << 20)

with memprof.track(sys.argv[1], sources=("cuda",)):
    try:
        grow()
    except StandInOutOfMemoryError:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_job_that_is_killed_right_after_its_failure_has_left_the_whole_record(tmp_path):
    path = tmp_path / "run.json"
    done = forks.run(KILLED, path)
    assert done.returncode == -signal.SIGKILL
    (told,) = post_mortems(load(path))
    assert told.failure.recorded == "event"
    assert (told.failure.requested, told.failure.allocated) == (30 * MIB, 90 * MIB)
    assert told.asked_by.endswith("in grow")
    assert any(r.kind == "card" and r.fits for r in told.rescues.tried)


def test_a_failure_on_another_thread_is_recorded_with_that_thread_s_stack(recorded):
    def in_threads(stand_in):
        def work():
            with suppress(StandInOutOfMemoryError):
                stand_in.alloc(200 * MIB)

        for _ in range(3):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        memprof.step()

    run = recorded(TorchStandIn(capacity=100 * MIB), in_threads)
    assert [f.bytes for f in run.findings if f.finding == "oom"] == [200 * MIB] * 3
    (told,) = post_mortems(run)
    assert told.asked_by.endswith("in work")


def test_a_failure_in_backward_is_recorded_though_autograd_s_threads_have_no_frames(recorded):
    def backward(stand_in):
        stand_in.alloc(60 * MIB)
        with stand_in.backward_thread():
            stand_in.alloc(60 * MIB)

    run = recorded(TorchStandIn(capacity=100 * MIB), backward)
    (told,) = post_mortems(run)
    assert (told.failure.requested, told.shortage) == (60 * MIB, 20 * MIB)
    assert run.footer is not None


def test_a_search_for_the_batch_size_leaves_a_short_record_of_each_failure(recorded, tmp_path):
    def searching(stand_in):
        for i in range(200):
            stand_in.alloc(512 + i)
        for size in range(700, 100, -2):
            with suppress(StandInOutOfMemoryError):
                stand_in.free(stand_in.alloc(size * MIB))

    run = recorded(TorchStandIn(capacity=100 * MIB), searching)
    found = [f for f in run.findings if f.finding == "oom"]
    assert [f.bytes for f in found] == [size * MIB for size in range(700, 100, -2)]
    full = [f for f in found if "live" in f.details]
    assert found[0] in full
    assert 1 <= len(full) < len(found) / 2
    assert all(f.details["allocated"] > 0 for f in found)  # counters are always there
    (told,) = post_mortems(run)
    assert told.failure.times == 300


def test_each_device_s_first_failure_is_told_in_full(recorded):
    def both(stand_in):
        for device in (0, 1):
            stand_in.alloc(90 * MIB, device)
        for device in (0, 1):
            with suppress(StandInOutOfMemoryError):
                stand_in.alloc(40 * MIB, device)

    run = recorded(TorchStandIn(devices=2, capacity=100 * MIB), both)
    found = [f for f in run.findings if f.finding == "oom"]
    assert [(f.device, "live" in f.details) for f in found] == [("cuda:0", True), ("cuda:1", True)]
    first, second = post_mortems(run)
    assert (first.failure.device, second.failure.device) == ("cuda:1", "cuda:0")
    assert first.shortage == second.shortage == 30 * MIB


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_s_failure_does_not_come_into_the_parent_s_file(recorded):
    def forking(stand_in):
        child = os.fork()
        if child == 0:
            with suppress(StandInOutOfMemoryError):
                stand_in.alloc(200 * MIB)
            os._exit(0)
        os.waitpid(child, 0)
        memprof.step()

    run = recorded(TorchStandIn(capacity=100 * MIB), forking)
    assert [f for f in run.findings if f.finding == "oom"] == []


TOO_LARGE = """
import sys
import memprof
import torch

class TooLarge(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.empty(1 << 60, dtype=torch.uint8)

if __name__ == "__main__":
    with memprof.track(sys.argv[1], sources=("cpu",)):
        next(iter(torch.utils.data.DataLoader(TooLarge(), num_workers=1)))
"""


def test_a_data_loader_s_worker_that_runs_out_is_told_by_its_own_line(tmp_path):
    path, script = tmp_path / "run.json", tmp_path / "too_large.py"
    script.write_text(TOO_LARGE)
    done = forks.run_file(script, path)
    assert "Caught RuntimeError in DataLoader worker process 0" in done.stderr
    (finding,) = (f for f in load(path).findings if f.finding == "oom")
    assert (finding.device, finding.bytes) == ("cpu", 1 << 60)
    assert finding.details["worker"] == "DataLoader worker process 0"
    (told,) = post_mortems(load(path))
    assert told.asked_by.endswith("too_large.py:11 in __getitem__")


def test_host_memory_that_runs_out_is_read_from_the_exception(tmp_path):
    path = tmp_path / "run.json"

    def job():
        with memprof.track(path, sources=("cpu",)):
            kept = torch.ones(1 << 18)
            torch.empty(1 << 60, dtype=torch.uint8)
            del kept

    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        job()
    (finding,) = (f for f in load(path).findings if f.finding == "oom")
    assert (finding.device, finding.bytes) == ("cpu", 1 << 60)
    (told,) = post_mortems(load(path))
    assert told.asked_by.endswith("in job")
    assert told.failure.allocated >= 4 << 18
    assert any(group.bytes == 4 << 18 for group in told.sites)


def test_another_exception_is_no_failed_allocation(tmp_path):
    path = tmp_path / "run.json"
    with pytest.raises(RuntimeError, match="shape"), memprof.track(path, sources=("cpu",)):
        raise RuntimeError("shape mismatch of 12 bytes")
    assert [f for f in load(path).findings if f.finding == "oom"] == []
