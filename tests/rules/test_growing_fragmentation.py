"""growing-fragmentation: reserved but unallocated memory grows from step to step."""

from __future__ import annotations

from memprof.rules.finding import Kind
from memprof.testing import TraceBuilder, step_columns
from memprof.trace import Frame, Phase
from tests.rules.recorded import Recording, findings_of

MIB = 1 << 20
STEPS = 30
TRAIN = Frame("train", "/home/user/train.py", 10)


def reserves(reserved, allocated) -> Recording:
    """Counters of a device, beside a trace in which each step asks for a little more."""
    trace = TraceBuilder(device="cuda:0")
    for step in range(STEPS):
        trace.label(step=step, phase=Phase.OTHER)
        trace.alloc((30 + 3 * step) * MIB, "x", stack=(TRAIN,)).alloc(512, f"kept{step}").free("x")
    steps = step_columns(reserved=reserved, allocated=allocated, ooms=[0] * STEPS)
    return Recording((trace,), steps)


def fires():
    """10 MiB more are reserved in each step, while tensors stay as they are."""
    return reserves([(100 + 10 * step) * MIB for step in range(STEPS)], [90 * MIB] * STEPS)


def looks_alike():
    """The longest batch came in the warm-up: its segments are cache, and stay as they are."""
    return reserves([900 * MIB] * STEPS, [90 * MIB] * STEPS)


def with_tensors():
    """What is reserved grows with the tensors."""
    allocated = [(90 + 10 * step) * MIB for step in range(STEPS)]
    return reserves([nbytes + 130 * MIB for nbytes in allocated], allocated)


def found_in(program, tmp_path):
    found = findings_of(program, tmp_path / "run.json")
    return [one for one in found if one.kind is Kind.FRAGMENTATION]


def test_it_says_by_how_much_it_grows_and_what_it_has_come_to(tmp_path):
    (found,) = found_in(fires, tmp_path)  # and not the fragmentation at the peak besides
    assert found.rule == "growing-fragmentation"
    assert found.bytes_per_step == 10 * MIB
    assert found.bytes == (100 + 10 * 29 - 90) * MIB
    assert (found.first_step, found.last_step) == (3, 29)
    assert found.title == (
        "300 MiB (77 %) of the reserved memory is unallocated, and grows by 10 MiB per step"
    )
    assert found.remedies[0].fix == "expandable_segments"
    assert found.remedies[0].peak_after < found.remedies[0].peak_before


def test_what_grows_with_the_tensors_is_none(tmp_path):
    rules = {one.rule for one in found_in(with_tensors, tmp_path)}
    assert "growing-fragmentation" not in rules
