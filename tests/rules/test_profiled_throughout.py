"""profiled-throughout: torch's profiler records the whole run, and keeps it in memory."""

from __future__ import annotations

import pytest

from memprof.loading import load
from memprof.records import Finding, Readings
from memprof.report.summary import summarize
from memprof.rules.finding import Kind
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, step_columns
from memprof.trace import Frame
from memprof.views.examination import examine
from tests.rules.recorded import Recording

MIB = 1 << 20
STEPS, AT_ONCE = 20, 400


def profiled(*, calls=STEPS, of=STEPS, risen=AT_ONCE, stack=()) -> Recording:
    """Every step takes 2 MiB more; ``risen`` MiB more are there once the profiler has stopped."""
    ends = [100 * (step + 1) for step in range(STEPS)]
    rss = [MIB * (300 + 2 * step) for step in range(STEPS)]
    read = Readings(
        "host",
        "host",
        [*(end + 5 for end in ends), ends[-1] + 900],
        {"rss": [*rss, rss[0] + risen * MIB]},
    )
    told = Finding("profiled", device="host", step=2, count=calls, details={"calls": of})
    trace = TraceBuilder(device="cpu").alloc(MIB, "a", stack=stack)
    steps = step_columns(allocated=[MIB] * STEPS, end_us=ends)
    return Recording((trace,), steps, (read, told))


def fires():
    return profiled()


def looks_alike():
    """A schedule records a few of the steps."""
    return profiled(calls=17, of=40)


def of_rule(folder, **what):
    run = load(profiled(**what).write(folder / "run.json"))
    return run, [one for one in findings(run) if one.rule == "profiled-throughout"]


def test_the_verdict_says_what_the_process_took_since(tmp_path):
    run, (found,) = of_rule(tmp_path)
    before = 2 * MIB  # of the step before the first that was profiled
    assert (found.kind, found.bytes) == (Kind.HOST_GROWTH, AT_ONCE * MIB - before)
    assert found.title == (
        "torch's profiler records 20 of 20 calls of the model, operator by operator; the process "
        "takes 398 MiB more than at the first"
    )
    assert summarize(examine(run), findings(run)).verdict.line == found.title


def test_the_line_makes_a_profiler_without_a_schedule(tmp_path):
    source = tmp_path / "train.py"
    source.write_text(
        "few = profile(schedule=schedule(wait=5, active=3))\n"
        "with torch.profiler.profile(record_shapes=True) as prof:\n    train()\n"
    )
    _, (found,) = of_rule(tmp_path, stack=(Frame("<module>", str(source), 3),))
    (remedy,) = found.remedies
    assert (remedy.fix, remedy.filename, remedy.line) == ("profiler_schedule", str(source), 2)


def test_a_steady_rise_is_what_the_profiler_keeps(tmp_path):
    """That memory of the host grows is said once, with the cause."""
    count = 40
    ends = [100 * (step + 1) for step in range(count)]
    values = {"rss": [MIB * (300 + 20 * step) for step in range(count)], "shared": [MIB] * count}
    read = Readings("host", "host", [end + 5 for end in ends], values)
    told = Finding("profiled", device="host", step=2, count=count, details={"calls": count})
    trace = TraceBuilder(device="cpu").alloc(MIB, "a")
    steps = step_columns(allocated=[MIB] * count, peak_allocated=[MIB] * count, end_us=ends)
    by_profiler = findings(
        load(Recording((trace,), steps, (read, told)).write(tmp_path / "a.json"))
    )
    assert [one.rule for one in by_profiler if not one.minor] == ["profiled-throughout"]
    by_itself = findings(load(Recording((trace,), steps, (read,)).write(tmp_path / "b.json")))
    assert [one.rule for one in by_itself if not one.minor] == ["host-memory-growth"]


@pytest.mark.parametrize("what", [{"calls": 12, "of": 12}, {"risen": 40}], ids=["few", "small"])
def test_a_few_calls_and_a_small_rise_are_not_told(what, tmp_path):
    assert of_rule(tmp_path, **what)[1] == []
