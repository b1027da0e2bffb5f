"""fragmentation: much of the reserved bytes lies in holes that no request fitted."""

from __future__ import annotations

from memprof.rules.finding import Kind
from memprof.testing import TraceBuilder
from memprof.trace import Frame, Phase
from memprof.views.peak_without import Saving
from tests.rules.recorded import findings_of

MIB = 1 << 20
STEPS = 12
TRAIN = Frame("train", "/home/user/train.py", 10)
KEPT = Frame("train", "/home/user/train.py", 11)


def batches(size_of) -> TraceBuilder:
    """Each step makes a batch and beside it a result, which stays in the batch's segment."""
    trace = TraceBuilder(device="cuda:0")
    for step in range(STEPS):
        trace.label(step=step, phase=Phase.OTHER)
        trace.alloc(size_of(step) - MIB - 512, f"x{step}", stack=(TRAIN,))
        trace.alloc(MIB + 512, f"kept{step}", stack=(KEPT,))
        trace.free(f"x{step}")
    return trace


def fires():
    """Every batch is a little longer than all before it."""
    return batches(lambda step: (40 + 4 * step) * MIB)


def looks_alike():
    """The longest batch comes first: what is reserved for it and not used later is cache."""
    trace = TraceBuilder(device="cuda:0")
    for step in range(STEPS):
        trace.label(step=step, phase=Phase.OTHER)
        trace.alloc((80 if step else 600) * MIB, f"x{step}", stack=(TRAIN,)).free(f"x{step}")
    return trace


def test_it_tells_the_reserved_bytes_that_no_tensor_is_in(tmp_path):
    (found,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "fragmentation"
    ]
    reserved = sum((40 + 4 * step) * MIB for step in range(STEPS))
    peak = (84 - 1) * MIB - 512 + STEPS * (MIB + 512)  # the last batch, and every result
    assert found.kind is Kind.FRAGMENTATION
    assert found.match.saving == Saving(reserved, peak)
    assert found.bytes == reserved - peak
    assert found.match.sizes == STEPS
    assert [remedy.fix for remedy in found.remedies] == ["expandable_segments", "static_shapes"]
