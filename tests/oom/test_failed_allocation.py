"""Which failed allocation is told, from events and from what the job wrote, and in which window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memprof.loading import load
from memprof.oom.failed_allocation import failures
from memprof.oom.post_mortem import post_mortems
from memprof.records import Finding
from memprof.report.summary import Summary, summarize
from memprof.run import Run
from memprof.testing import TraceBuilder, save_snapshot, snapshot, write_run
from memprof.trace import Frame, Trace
from memprof.views.examination import examine

MIB = 1 << 20
MODEL = (Frame("build", "/home/me/train.py", 3),)
_LATER_US = 60_000_000


def quiet(device: str = "cuda:0", size: int = 8 * MIB) -> Trace:
    return TraceBuilder(device).alloc(size, "a", stack=MODEL).build()


def told(device: str, **more: Any) -> Finding:
    """The job's own record of a failure, long after the trace."""
    at_us = int(quiet().events.time_us[-1]) + _LATER_US
    details = {"allocated": 8 * MIB, "reserved": 10 * MIB, "device_free": 2 * MIB}
    return Finding("oom", device, 20, at_us, bytes=30 * MIB, details={**details, **more})


def summary_of(run: Run) -> Summary:
    return summarize(examine(run))


def test_a_failure_that_only_the_job_told_of_is_the_verdict(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "r", quiet(), more=[told("cuda:0")]))
    summary = summary_of(run)
    assert summary.verdict.level == "oom"
    assert summary.verdict.line == (
        "cuda:0 ran out of memory: 30 MiB asked, 2 MiB free on the device"
    )
    assert summary.verdict.why == "tensors held 8 MiB, and 2 MiB more was reserved but unused"
    assert summary.devices[0].ooms == 1


def test_failures_that_the_job_counted_together_are_all_counted(tmp_path: Path) -> None:
    counted = Finding("oom", "cuda:0", 3, told("cuda:0").time_us, count=7)
    run = load(write_run(tmp_path / "r", quiet(), more=[told("cuda:0"), counted]))
    assert summary_of(run).devices[0].ooms == 8
    assert failures(run)[0].times == 8


def test_a_failure_of_memory_that_was_not_recorded_is_the_verdict_too(tmp_path: Path) -> None:
    host = Finding("oom", "cpu", 20, told("cpu").time_us, stack=1, bytes=1 << 46)
    run = load(write_run(tmp_path / "r", quiet(), more=[host]))
    summary = summary_of(run)
    assert summary.verdict.line == "cpu ran out of memory: 64 TiB asked"
    assert summary.verdict.why == "what tensors held then is not in the file"
    assert [(d.device, d.ooms) for d in summary.devices] == [("cuda:0", 0), ("cpu", 1)]
    assert "cpu: nothing of its memory was recorded" in summary.unseen
    (dead,) = post_mortems(run)
    assert dead.asked_by == "me/train.py:3 in build"


def test_a_run_without_any_figure_that_ran_out_is_not_called_empty(tmp_path: Path) -> None:
    host = Finding("oom", "cpu", bytes=1 << 46)
    assert summary_of(load(write_run(tmp_path / "r", more=[host]))).verdict.level == "oom"


def test_a_failure_of_no_device_at_all_adds_none(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "r", quiet(), more=[told("../../etc"), told("")]))
    assert [d.device for d in run.devices] == ["cuda:0"]
    assert summary_of(run).verdict.level == "ok"


@pytest.mark.parametrize("as_snapshot", [True, False])
def test_summary_and_post_mortem_tell_the_same_failure(tmp_path: Path, as_snapshot: bool) -> None:
    builder = TraceBuilder().alloc(20 * MIB, "a").oom(90 * MIB, device_free=7 * MIB)
    builder.alloc(3 * MIB, "b").oom(30 * MIB, device_free=4 * MIB)
    trace = builder.build()
    if as_snapshot:
        run = load(save_snapshot(tmp_path / "x.pickle", snapshot(trace)))
    else:
        run = load(write_run(tmp_path / "r", trace))
    (dead,) = post_mortems(run)
    verdict = summary_of(run).verdict
    assert (dead.failure.requested, dead.failure.allocated) == (30 * MIB, 23 * MIB)
    assert verdict.line == "cuda:0 ran out of memory: 30 MiB asked, 4 MiB free on the device"
    assert verdict.why.startswith("tensors held 23 MiB")


def test_the_latest_failure_of_several_devices_is_the_verdict(tmp_path: Path) -> None:
    first = TraceBuilder("cuda:0").alloc(20 * MIB, "a").oom(90 * MIB).build()
    later = TraceBuilder("cuda:1").alloc(8 * MIB, "a").wait(_LATER_US).oom(30 * MIB).build()
    run = load(write_run(tmp_path / "r", first, later))
    assert summary_of(run).verdict.line.startswith("cuda:1 ran out of memory: 30 MiB asked")
    assert post_mortems(run)[0].failure.device == "cuda:1"


def test_an_examination_at_hand_changes_nothing_of_what_is_told(tmp_path: Path) -> None:
    builder = TraceBuilder().alloc(20 * MIB, "a", stack=MODEL).free("a").alloc(3 * MIB, "b")
    run = load(write_run(tmp_path / "r", quiet(), builder.oom(30 * MIB, device_free=4).build()))
    examination = examine(run)
    (alone,), (shared,) = failures(run), failures(run, examination)
    assert shared.window is examination.devices[0].windows[1]
    figures = [
        "number",
        "event",
        "allocated",
        "reserved",
        "pending",
        "largest_free",
        "free",
        "requested",
    ]
    assert [getattr(alone, f) for f in figures] == [getattr(shared, f) for f in figures]


def renumbered(path: Path, numbers: dict[tuple[str, int], int]) -> Run:
    """The run with other numbers of windows, as a recorder gives them over all devices."""
    records = json.loads(path.read_bytes())
    for record in records:
        key = record.get("device", ""), record.get("window", -1)
        if key in numbers:
            record["window"] = numbers[key]
    path.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    return load(path)


def test_a_failure_is_seen_in_the_window_that_was_open_whatever_other_devices_had(
    tmp_path: Path,
) -> None:
    # The recorder counts windows over all devices: 1 was a moment of cuda:0 alone.
    windows = [quiet("cuda:0"), quiet("cuda:0", 1 * MIB), quiet("cuda:1"), quiet("cuda:1", 6 * MIB)]
    more = [told("cuda:1", window=2, allocated=0), told("cuda:0", window=1, allocated=0)]
    path = write_run(tmp_path / "r", *windows, more=more)
    found = {f.device: f for f in failures(renumbered(path, {("cuda:1", 1): 2}))}
    assert (found["cuda:1"].number, found["cuda:1"].allocated) == (1, 6 * MIB)
    assert (found["cuda:0"].number, found["cuda:0"].allocated) == (1, 1 * MIB)


@pytest.mark.parametrize("window", [1, 99, -1, "2", None, 1.5, [0]])
def test_a_window_that_is_not_in_the_file_is_not_taken_for_another(
    tmp_path: Path, window: object
) -> None:
    path = write_run(
        tmp_path / "r", quiet("cuda:1"), quiet("cuda:1"), more=[told("cuda:1", window=window)]
    )
    run = renumbered(path, {("cuda:1", 1): 2})
    assert run.findings[0].details["window"] == -1
    (failure,) = failures(run)
    assert (failure.number, failure.window) == (-1, None)
