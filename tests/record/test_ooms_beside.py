"""Running out of memory beside torch's allocator, from the error to the post-mortem."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

pytest.importorskip("torch", reason="a recording needs torch")

import memprof
from memprof.oom.post_mortem import OomCause, post_mortems
from memprof.record import session
from memprof.report.summary import summarize
from memprof.sources.cuda.source_with_owners import OwnedCudaSource
from memprof.testing.cuda import StandInOutOfMemoryError, TorchStandIn
from memprof.views.examination import examine
from memprof_cli import main

MIB = 1 << 20
CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
CUDA = "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    def record(stand_in, job, **options):
        monkeypatch.setattr(
            session,
            "event_sources",
            lambda _, interner, loop_watch, __: [OwnedCudaSource(interner, loop_watch, stand_in)],
        )
        path = tmp_path / "run.json"
        with suppress(RuntimeError), memprof.track(path, sources=("cuda",), **options):
            job(stand_in)
        return memprof.load(path)

    return record


def filling(text: str, unused: int):
    """60 MiB in a tensor and ``unused`` MiB in torch's cache when an error is raised."""

    def job(stand_in):
        stand_in.alloc(60 * MIB)
        if unused:
            stand_in.free(stand_in.alloc(unused * MIB))
        memprof.step()
        raise RuntimeError(text)

    return job


@pytest.mark.parametrize("options", [{}, {"max_events": 0}], ids=["in a window", "between"])
def test_what_torch_held_without_using_it_is_named_first(recorded, options):
    stand_in = TorchStandIn(capacity=2 << 30)
    (told,) = post_mortems(recorded(stand_in, filling(CUBLAS, 400), **options))
    failure = told.failure
    assert (failure.device, failure.beside, failure.call) == (
        "cuda:0",
        "cuBLAS",
        "cublasCreate(handle)",
    )
    assert failure.requested == -1
    assert (failure.allocated, failure.unused) == (60 * MIB, 400 * MIB)
    assert told.cause is OomCause.RESERVED
    assert told.line == (
        "cuda:0 ran out of memory because torch kept what it did not use: cuBLAS could not "
        "allocate memory in cublasCreate(handle)"
    )
    assert told.why.startswith("torch held 460 MiB, of which 400 MiB reserved but unused")
    assert told.asked_by.endswith("in job")
    assert "expandable_segments:True" in " ".join(told.advice)
    assert not any("smaller batch" in one for one in told.advice)
    assert sum(group.bytes for group in told.sites) == 60 * MIB


def test_between_windows_whole_segments_without_a_tensor_are_told_with_what_frees_them(recorded):
    run = recorded(TorchStandIn(capacity=2 << 30), filling(CUBLAS, 400), max_events=0)
    (told,) = post_mortems(run)
    assert told.advice[0].startswith("torch.cuda.empty_cache() before that call: 400 MiB")
    (window,) = run.devices[0].windows
    assert (len(window.events), window.end.allocated) == (0, 60 * MIB)


def test_where_tensors_hold_the_card_a_smaller_batch_is_what_helps(recorded):
    (told,) = post_mortems(recorded(TorchStandIn(capacity=100 * MIB, outside=0), filling(CUDA, 0)))
    assert told.cause is OomCause.PEAK
    assert "tensors held 60 MiB" in told.why
    assert [one.partition(":")[0] for one in told.advice] == ["a smaller batch, or checkpointing"]
    assert told.failure.asynchronous
    assert told.rescues.tried == ()


def test_the_screen_says_where_it_was_reported_and_who_failed(recorded, capsys):
    run = recorded(TorchStandIn(capacity=2 << 30), filling(CUDA, 0))
    with pytest.raises(SystemExit) as ended:
        main(["oom", run.source])
    assert not ended.value.code
    text = " ".join(capsys.readouterr().out.split())
    assert "CUDA could not allocate memory outside torch's allocator" in text
    assert "not told: CUDA, reported at" in text
    assert "may come from an earlier call" in text
    with pytest.raises(SystemExit):
        main(["oom", run.source, "--json"])
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert device["asked"]["bytes"] is None
    assert (device["asked"]["beside"], device["asked"]["asynchronous"]) == ("CUDA", True)
    assert device["advice"]


def test_the_report_says_it_too(recorded):
    run = recorded(TorchStandIn(capacity=2 << 30), filling(CUBLAS, 400))
    verdict = summarize(examine(run)).verdict
    assert verdict.level == "oom"
    assert "cuBLAS could not allocate memory in cublasCreate(handle)" in verdict.line


def test_it_is_told_though_torch_had_a_failure_of_its_own_just_before(recorded):
    def job(stand_in):
        with suppress(StandInOutOfMemoryError):
            stand_in.alloc(900 * MIB)
        filling(CUBLAS, 0)(stand_in)

    run = recorded(TorchStandIn(capacity=100 * MIB), job)
    found = [f for f in run.findings if f.finding == "oom"]
    assert [f.details.get("beside", "") for f in found] == ["", "cuBLAS"]
    (told,) = post_mortems(run)
    assert told.failure.beside == "cuBLAS"
    assert told.failure.times == 2


def test_a_request_that_was_rejected_in_advance_has_its_size(recorded):
    text = (
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        "per_process_memory_fraction limit. Requested size: 104857600 bytes"
    )
    (told,) = post_mortems(recorded(TorchStandIn(capacity=2 << 30), filling(text, 0)))
    assert told.failure.rejected
    assert told.failure.requested == 100 * MIB


def test_rejections_that_the_program_survived_are_counted(recorded):
    def job(stand_in):
        memprof.step()
        stats = stand_in.cuda.memory_stats_as_nested_dict
        stand_in.cuda.memory_stats_as_nested_dict = lambda i: stats(i) | {"num_oom_rejections": 2}
        stand_in.alloc(MIB)
        memprof.step()

    stand_in = TorchStandIn(capacity=2 << 30)
    stand_in.alloc(MIB)
    run = recorded(stand_in, job)
    (finding,) = (f for f in run.findings if f.finding == "oom")
    assert finding.details == {"from": "counter"}
    assert run.footer.devices[0].ooms == 2


def test_a_thread_that_cannot_wait_leaves_its_failure_to_be_told_later(recorded, monkeypatch):
    monkeypatch.setattr(session, "PATIENCE_S", 0.05)
    entered, leave = threading.Event(), threading.Event()

    def busy(_finding):
        entered.set()
        leave.wait(300)

    def job(stand_in):
        def failing():
            entered.wait(300)
            with suppress(StandInOutOfMemoryError):
                stand_in.alloc(300 * MIB)
            leave.set()

        thread = threading.Thread(target=failing)
        thread.start()
        with suppress(StandInOutOfMemoryError):
            stand_in.alloc(200 * MIB)  # its finding is told to `busy` under the lock
        thread.join()
        memprof.step()

    run = recorded(TorchStandIn(capacity=100 * MIB), job, on_finding=busy)
    found = [f for f in run.findings if f.finding == "oom"]
    assert sorted(f.bytes for f in found) == [200 * MIB, 300 * MIB]
    assert any("recorded late and briefly" in note.message for note in run.notes)


def test_where_nothing_of_what_is_known_fills_the_card_no_cause_is_named(recorded):
    (told,) = post_mortems(recorded(TorchStandIn(capacity=2 << 30), filling(CUBLAS, 0)))
    assert told.cause is OomCause.UNKNOWN
    assert told.why == "torch held 60 MiB"


UNCAUGHT = f"""
import torch
x = torch.ones(1000)
raise RuntimeError({CUBLAS!r})
"""


@pytest.mark.parametrize("way", ["variable", "command"])
def test_an_error_that_ends_the_process_is_seen_too(tmp_path, way):
    path, script = tmp_path / "run.json", tmp_path / "script.py"
    script.write_text(UNCAUGHT)
    command = [sys.executable, str(script)]
    environment = dict(os.environ)
    if way == "variable":
        environment["MEMPROF"] = str(path)
    else:
        command[1:1] = ["-m", "memprof_cli", "run", "-o", str(path)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 1
    assert "CUBLAS_STATUS_ALLOC_FAILED" in done.stderr
    (finding,) = (f for f in memprof.load(path).findings if f.finding == "oom")
    assert (finding.details["beside"], finding.details["call"]) == (
        "cuBLAS",
        "cublasCreate(handle)",
    )
