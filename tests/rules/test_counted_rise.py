"""What counters say of a rise: how much of it came in windows."""

from __future__ import annotations

import numpy as np
import pytest

from memprof.loading import load
from memprof.records import StepColumns
from memprof.rules.counted_rise import CountedRise, stays_level
from memprof.rules.growth_findings import leaks
from memprof.run import Steps
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Frame
from memprof.views.examination import examine

MIB = 1 << 20


def test_what_rises_between_two_windows_is_none_of_theirs():
    steps = np.array([*range(5), 10, 11, 40])
    least = np.array([0, 1, 2, 3, 4, 50, 51, 90])
    risen = CountedRise(90, 0, 40, steps, least)
    assert risen.within(np.array([0, 1, 2, 3, 4, 10, 11])) == 4 + 1
    assert risen.within(np.array([2, 3])) == 2
    assert risen.within(np.array([], dtype=np.int64)) == 0


def test_growth_that_takes_the_place_of_something_else_leaves_the_level():
    steps = np.arange(10)
    allocated = np.array([100, 140, 180, 220, 220, 225, 230, 222, 224, 231])
    counted = Steps.build(first=steps, last=steps, allocated=allocated)
    assert stays_level(counted, 4, 9, 60)
    assert not stays_level(counted, 1, 9, 60)  # the whole has risen meanwhile
    assert not stays_level(counted, 4, 9, 20)
    assert not stays_level(counted, 0, 9, 1000)  # nothing was counted before
    assert not stays_level(counted, 4, 10, 1000)  # nor then


@pytest.mark.parametrize("is_full", [True, False])
def test_items_of_a_full_list_that_another_line_makes_are_no_leak(is_full, tmp_path):
    """Of a list nobody knows: it is filled for twelve steps, and its items replaced in the next."""
    source = tmp_path / "pool.py"
    source.write_text("\n\n\nimages.append(image)\n\nimages[at] = image\n")
    appends, replaces = ((Frame("query", str(source), line),) for line in (4, 6))
    trace, there, allocated = TraceBuilder(device="cpu"), [], []
    for step in range(30):
        trace.label(step=step)
        for number in range(4 if step < 12 else 2):
            name = f"{step}.{number}"
            trace.alloc(MIB, name, stack=appends if step < 12 else replaces)
            there.append(name)
            if step >= 12 and is_full:
                trace.free(there.pop(0))
        allocated.append(len(there) * MIB)
    steps = list(range(30))
    columns = StepColumns(first=steps, last=steps, allocated=allocated, window=[0] * 30)
    run = load(write_run(tmp_path / "run.json", trace.build(), steps=columns))
    assert [one.site.line for one in leaks(examine(run))] == ([] if is_full else [6])
