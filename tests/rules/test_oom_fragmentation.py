"""oom-fragmentation: allocations failed, and much of the reserved memory is unallocated."""

from __future__ import annotations

from memprof.testing import TraceBuilder, step_columns
from memprof.trace import Phase
from tests.rules.recorded import Recording, findings_of, names

MIB = 1 << 20
STEPS = 30


def after_failure(reserved: int, allocated: int) -> Recording:
    """A device that ran out of memory in step 10; since then its counters have been level."""
    trace = TraceBuilder(device="cuda:0").label(step=0, phase=Phase.OTHER)
    for size in range(30, 60, 3):  # each leaves a segment that the next one does not fit into
        trace.alloc(size * MIB, "x").alloc(512, f"kept{size}").free("x")
    steps = step_columns(
        reserved=[reserved * MIB] * STEPS,
        allocated=[allocated * MIB] * STEPS,
        ooms=[int(step > 10) for step in range(STEPS)],
    )
    return Recording((trace,), steps)


def fires():
    return after_failure(reserved=400, allocated=100)


def looks_alike():
    """torch gave its cache back before it failed: the tensors alone were too much."""
    return after_failure(reserved=400, allocated=390)


def test_it_says_how_much_was_in_no_tensor_and_what_would_help(tmp_path):
    (found,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "oom-fragmentation"
    ]
    assert found.bytes == 300 * MIB
    assert found.title == (
        "300 MiB (75 %) of the reserved memory is unallocated, after 1 failed allocation"
    )
    assert found.remedies[0].fix == "expandable_segments"


def test_where_it_grows_that_is_the_finding(tmp_path):
    def growing():
        recording = after_failure(reserved=400, allocated=100)
        steps = recording.steps
        assert steps is not None
        steps.reserved[:] = [(400 + 10 * step) * MIB for step in range(STEPS)]
        return recording

    found = names(growing, tmp_path / "run.json")
    assert "growing-fragmentation" in found
    assert not {"oom-fragmentation", "fragmentation"} & {*found}
