"""host-memory-growth: memory of the process that no tensor holds grows in every step."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from memprof.loading import load
from memprof.records import DryRun, Readings
from memprof.report.summary import summarize
from memprof.rules.finding import Kind
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, step_columns
from memprof.views.examination import examine
from tests.rules.recorded import Recording

MIB, GIB = 1 << 20, 1 << 30
STEPS = 40
FLAT = [GIB] * STEPS
RISING = [GIB + 20 * MIB * step for step in range(STEPS)]


def readings(*, allocated=None, peaks=None, device="cpu", **values) -> Recording:
    """A reading of the host 5 µs after the end of each step."""
    ends = [100 * (step + 1) for step in range(STEPS)]
    allocated = allocated or [MIB] * STEPS
    steps = step_columns(allocated=allocated, peak_allocated=peaks or allocated, end_us=ends)
    read = Readings("host", "host", [end + 5 for end in ends], values)
    return Recording((TraceBuilder(device=device).alloc(MIB, "a"),), steps, (read,))


def fires():
    return readings(rss=RISING, shared=[MIB] * STEPS)


def looks_alike():
    """A data set that is mapped into memory fills up."""
    return readings(rss=RISING, shared=[value - GIB for value in RISING])


def recorded(folder, **what):
    return load(readings(**what).write(folder / "run.json"))


def host_memory(run):
    return [one for one in findings(run) if one.rule == "host-memory-growth"]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_what_grows_on_the_host_is_found_with_its_rate_and_the_steps_that_are_left(
    tmp_path, device
):
    run = recorded(
        tmp_path, device=device, rss=RISING, shared=[MIB] * STEPS, available=[200 * MIB] * STEPS
    )
    (found,) = host_memory(run)
    assert found.kind is Kind.HOST_GROWTH
    assert found.title == "host memory that no tensor holds grows by 20 MiB per step"
    assert found.bytes_per_step == 20 * MIB
    assert (found.first_step, found.last_step) == (3, 39)
    assert found.bytes == 36 * 20 * MIB
    assert found.steps_left == 10
    assert findings(run)[0].title == found.title


def test_what_is_given_back_after_the_last_step_was_kept_until_then(tmp_path):
    rising = [*RISING[:-1], GIB]
    (found,) = host_memory(recorded(tmp_path, rss=rising, shared=[MIB] * STEPS))
    assert (found.first_step, found.last_step) == (3, 38)
    assert found.bytes == 35 * 20 * MIB
    assert found.bytes_per_step == 20 * MIB


def test_what_is_given_back_before_the_last_step_does_not_pile_up(tmp_path):
    falling = [*RISING[:-2], GIB, GIB]
    assert host_memory(recorded(tmp_path, rss=falling, shared=[MIB] * STEPS)) == []


def test_the_verdict_is_that_growth_and_says_where_to_look(tmp_path):
    run = recorded(tmp_path, rss=RISING, shared=[0] * STEPS)
    verdict = summarize(examine(run), findings(run)).verdict
    assert verdict.level == "leak"
    assert verdict.line == "host memory that no tensor holds grows by 20 MiB per step"
    assert "tracemalloc" in verdict.next


def test_where_the_shared_part_is_not_known_nothing_is_claimed(tmp_path):
    assert host_memory(recorded(tmp_path, rss=RISING)) == []
    assert host_memory(recorded(tmp_path, rss=RISING, shared=[None] * STEPS)) == []


def test_tensors_of_the_cpu_are_not_counted_twice(tmp_path):
    tensors = [value - GIB for value in RISING]
    run = recorded(tmp_path, allocated=tensors, rss=RISING, shared=[0] * STEPS)
    assert host_memory(run) == []


def test_what_freed_tensors_leave_to_the_process_is_no_growth(tmp_path):
    falling = [MIB + GIB - 20 * MIB * step for step in range(STEPS)]
    run = recorded(tmp_path, allocated=falling, rss=[2 * GIB] * STEPS, shared=[0] * STEPS)
    assert host_memory(run) == []


def test_what_is_free_in_the_heap_is_no_growth(tmp_path):
    free = [value - GIB for value in RISING]
    shared = [0] * STEPS
    assert host_memory(recorded(tmp_path, rss=RISING, shared=shared, heap_free=free)) == []
    half = [value // 2 for value in free]
    (found,) = host_memory(recorded(tmp_path, rss=RISING, shared=shared, heap_free=half))
    assert found.bytes_per_step == 10 * MIB
    # Of an allocator that was slow to say so the first readings tell nothing of the others.
    quiet = [*half[:3], *[None] * (STEPS - 3)]
    (found,) = host_memory(recorded(tmp_path, rss=RISING, shared=shared, heap_free=quiet))
    assert found.bytes_per_step == 20 * MIB


def test_what_the_most_tensors_took_stays_with_the_process(tmp_path):
    """A sampling now and then takes more each time, and frees it before the step is over."""
    peaks = [MIB + 20 * MIB * step for step in range(STEPS)]
    run = recorded(tmp_path, peaks=peaks, rss=RISING, shared=[0] * STEPS)
    assert host_memory(run) == []


@pytest.mark.parametrize(
    "rss",
    [
        FLAT,
        [GIB + 4 * MIB * step for step in range(STEPS)],
        [GIB + round(GIB * (1 - 0.8**step)) for step in range(STEPS)],
        [GIB + 20 * MIB * min(step, 20) for step in range(STEPS)],
        [GIB + 200 * MIB * (step % 5) for step in range(STEPS)],
    ],
    ids=["flat", "little", "settling", "stopped", "saw-tooth"],
)
def test_what_settles_or_stays_small_is_no_growth(tmp_path, rss):
    assert host_memory(recorded(tmp_path, rss=rss, shared=[0] * STEPS)) == []


def test_noise_does_not_hide_it(tmp_path):
    noise = np.random.default_rng(0).integers(-30 * MIB, 30 * MIB, STEPS)
    rss = [int(value + by) for value, by in zip(RISING, noise, strict=True)]
    (found,) = host_memory(recorded(tmp_path, rss=rss, shared=[0] * STEPS))
    assert found.bytes_per_step == pytest.approx(20 * MIB, rel=0.1)


@pytest.mark.parametrize(("simulated", "found"), [(None, 1), (DryRun("a card"), 0)])
def test_nothing_is_claimed_of_a_dry_run(tmp_path, simulated, found):
    """The stand-in for the card is in the host's memory, with what the card would hold."""
    run = recorded(tmp_path, device="cuda:0", rss=RISING, shared=[MIB] * STEPS)
    header = msgspec.structs.replace(run.header, dry_run=simulated)
    assert len(host_memory(replace(run, header=header))) == found
