"""growth-outside-torch: device memory of the process beyond torch's allocator grows."""

from __future__ import annotations

from memprof.records import Readings
from memprof.rules.finding import Kind
from memprof.testing import TraceBuilder, step_columns
from memprof.trace import Phase
from tests.rules.recorded import Recording, findings_of

MIB = 1 << 20
STEPS = 40


def readings(values, name="process_used", reserved=None) -> Recording:
    """What NVML said after each step, beside 80 MiB of segments that hold no tensor any more."""
    trace = TraceBuilder(device="cuda:0").label(step=0, phase=Phase.OTHER)
    trace.alloc(80 * MIB, "x").free("x").alloc(MIB, "y")
    ends = [1000 * (step + 1) for step in range(len(values))]
    steps = step_columns(
        allocated=[MIB] * len(values), reserved=reserved or [2 * MIB] * len(values), end_us=ends
    )
    read = Readings("nvml", "cuda:0", [end + 1 for end in ends], {name: values})
    return Recording((trace,), steps, (read,))


def fires():
    return readings([(500 + 8 * step) * MIB for step in range(STEPS)])


def looks_alike():
    """The process takes more and more of the device, but it is torch that does."""
    reserved = [(100 + 8 * step) * MIB for step in range(STEPS)]
    return readings([nbytes + 500 * MIB for nbytes in reserved], reserved=reserved)


def outside(values, tmp_path, name="process_used"):
    found = findings_of(lambda: readings(values, name), tmp_path / "run.json")
    return [one for one in found if one.rule == "growth-outside-torch"]


RISING = [(500 + 8 * step) * MIB for step in range(STEPS)]


def test_it_says_at_what_rate_and_that_torch_s_cache_could_make_room(tmp_path):
    (found,) = outside(RISING, tmp_path)
    assert found.kind is Kind.NON_TORCH
    assert found.bytes_per_step == 8 * MIB
    assert found.bytes == (500 + 8 * 39 - 2) * MIB
    assert found.title == "memory on cuda:0 outside torch's allocator grows by 8 MiB per step"
    (remedy,) = found.remedies
    assert remedy.fix == "empty_cache"
    assert remedy.why.startswith("80 MiB of segments hold no tensor")


def test_in_a_container_it_does_not_say_whose_it_is(tmp_path):
    (found,) = outside(RISING, tmp_path, name="used")
    assert found.match.of_any_process
    assert found.match.tentative
    assert found.bytes_per_step == 8 * MIB
    assert "the driver does not tell them apart" in found.title


def test_a_driver_that_died_in_the_middle_leaves_what_was_read_before(tmp_path):
    (found,) = outside([*RISING, *[None] * 10], tmp_path)
    assert found.bytes_per_step == 8 * MIB
    assert outside([None] * STEPS, tmp_path) == []


def test_a_context_that_was_made_once_is_no_growth(tmp_path):
    assert outside([500 * MIB] * 5 + [700 * MIB] * 35, tmp_path) == []
