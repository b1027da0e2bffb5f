"""cache-emptied: `empty_cache` gives back in every step what the next step asks for again."""

from __future__ import annotations

from memprof.rules.finding import Kind
from memprof.testing import TraceBuilder
from memprof.trace import Frame, Phase
from tests.rules.recorded import findings_of

MIB = 1 << 20
STEPS = 12
TRAIN = Frame("train", "/home/user/train.py", 10)


def emptied(steps) -> TraceBuilder:
    """A job that empties the cache at the end of these of its steps."""
    trace = TraceBuilder(device="cuda:0")
    for step in range(STEPS):
        trace.label(step=step, phase=Phase.OTHER)
        trace.alloc(8 * MIB, f"x{step}", stack=(TRAIN,)).free(f"x{step}")
        if step in steps:
            trace.empty_cache()
    return trace


def fires():
    return emptied(range(STEPS))


def looks_alike():
    """The end of each of three epochs, before a validation that needs other sizes."""
    return emptied((3, 7, 11))


def test_it_tells_what_a_step_asks_the_driver_for(tmp_path):
    (found,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "cache-emptied"
    ]
    assert (found.kind, found.bytes) == (Kind.WASTE, 8 * MIB)


def test_torch_empties_the_cache_itself_where_memory_runs_out(tmp_path):
    def failing():
        return emptied(range(STEPS)).oom(64 * MIB)

    rules = [one.rule for one in findings_of(failing, tmp_path / "run.json")]
    assert "cache-emptied" not in rules
