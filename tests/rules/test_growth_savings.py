"""The peaks with and without growth: of the whole run, and of steps with several passes."""

from __future__ import annotations

import pytest

from memprof.loading import load
from memprof.records import Finding, Holder, StepColumns
from memprof.reference_chain import Link, LinkKind
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder
from memprof.trace import Frame, Phase
from tests.rules.recorded import Recording

MIB = 1 << 20
RECORDED, STEPS = 20, 100
WORK, WEIGHTS = 8 * MIB, 4 * MIB
PART = 2 * MIB
"""What large blocks are whole multiples of."""
SOURCE = """\
def main():
    for batch in loader:
        history.append(model(batch))
"""


def run_of(tmp_path, peak_after):
    """Twenty recorded steps that keep a MiB each, and eighty counted ones with such peaks."""
    source = tmp_path / "train.py"
    source.write_text(SOURCE)
    trace = TraceBuilder(device="cpu").existing(WEIGHTS, "weights")
    for step in range(RECORDED):
        trace.label(step=step).alloc(WORK, f"work{step}")
        trace.alloc(MIB, f"kept{step}", stack=(Frame("main", str(source), 3),)).free(f"work{step}")
    numbers = list(range(STEPS))
    allocated = [WEIGHTS + MIB * (step + 1) for step in numbers]
    columns = StepColumns(
        first=numbers,
        last=numbers,
        allocated=allocated,
        peak_allocated=[
            peak_after(step, one) for step, one in zip(numbers, allocated, strict=True)
        ],
        window=[0 if step < RECORDED else -1 for step in numbers],
    )
    links = [
        Link(LinkKind.GLOBAL, "history", "__main__"),
        Link(LinkKind.ITEM, "0", "list", length=RECORDED, grows=True),
    ]
    holder = Holder(LinkKind.GLOBAL, str(source), 3, "history.append(model(batch))", links)
    search = Finding("holders", device="cpu", step=RECORDED - 1, stack=0, holders=[holder])
    return load(Recording((trace,), columns, (search,)).write(tmp_path / "run.json"))


def test_growth_that_goes_on_after_its_window_is_taken_off_the_peak_that_it_came_to(tmp_path):
    run = run_of(tmp_path, lambda _step, allocated: allocated + WORK)
    (found,) = (one for one in findings(run) if one.bytes_per_step)
    assert found.bytes_per_step == MIB
    (first, *_) = found.remedies
    assert first.peak_before == WEIGHTS + STEPS * MIB + WORK
    assert first.peak_after == WEIGHTS + WORK + MIB  # that of the step itself


def test_another_peak_stays_but_for_what_had_grown_by_then(tmp_path):
    evaluated, evaluation = 40, 500 * MIB

    def peak(step, allocated):
        return allocated + (evaluation if step == evaluated else WORK)

    (found,) = (one for one in findings(run_of(tmp_path, peak)) if one.bytes_per_step)
    (first, *_) = found.remedies
    assert first.peak_before == WEIGHTS + (evaluated + 1) * MIB + evaluation
    assert first.peak_after == WEIGHTS + evaluation + MIB


@pytest.mark.parametrize("counted", [0, WORK])
def test_a_window_that_has_the_highest_peak_tells_it_alone(tmp_path, counted):
    def peak(step, _allocated):
        return WEIGHTS + MIB * (step + 1) + WORK if step < RECORDED else counted

    (found,) = (one for one in findings(run_of(tmp_path, peak)) if one.bytes_per_step)
    assert found.remedies[0].peak_before == WEIGHTS + RECORDED * MIB + WORK


@pytest.mark.parametrize("passes", [1, 4])
def test_of_several_passes_in_a_step_one_is_there_at_a_time(tmp_path, passes):
    """Each is over with its backward pass, and what it saved is gone when the next makes as much."""
    source = tmp_path / "train.py"
    source.write_text(SOURCE)
    trace = TraceBuilder(device="cpu").existing(WEIGHTS, "weights")
    for step in range(RECORDED):
        for number in range(passes):
            trace.label(step=step, phase=Phase.FORWARD)
            trace.alloc(MIB, f"kept{step}.{number}", stack=(Frame("main", str(source), 3),))
            trace.label(step=step, phase=Phase.BACKWARD)
            trace.alloc(512, f"work{step}.{number}").free(f"work{step}.{number}")
    run = load(Recording((trace,)).write(tmp_path / "run.json"))
    (found,) = (one for one in findings(run) if one.bytes_per_step)
    assert found.remedies[0].peak_before == WEIGHTS + RECORDED * passes * MIB + 512
    assert found.remedies[0].peak_after == WEIGHTS + MIB + 512


@pytest.mark.parametrize("is_copy", [True, False])
def test_what_is_copied_of_all_that_is_kept_is_as_small_as_at_first(tmp_path, is_copy):
    """Each step joins the list, which takes as much again; or works with what is always as large."""
    source = tmp_path / "train.py"
    source.write_text(SOURCE + "        torch.cat(history)\n")
    trace = TraceBuilder(device="cpu").existing(WEIGHTS, "weights")
    for step in range(RECORDED):
        trace.label(step=step)
        trace.alloc(PART, f"kept{step}", stack=(Frame("main", str(source), 3),))
        size = (step + 1) * PART if is_copy else RECORDED * PART
        trace.alloc(size, f"all{step}", stack=(Frame("main", str(source), 4),)).free(f"all{step}")
    run = load(Recording((trace,)).write(tmp_path / "run.json"))
    (found,) = (one for one in findings(run) if one.bytes_per_step)
    assert found.remedies[0].peak_before == WEIGHTS + 2 * RECORDED * PART
    assert found.remedies[0].peak_after == WEIGHTS + (2 if is_copy else 1 + RECORDED) * PART
