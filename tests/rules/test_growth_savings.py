"""The peaks with and without growth: of the whole run, and of steps with several passes."""

from __future__ import annotations

import dataclasses

import pytest

from memprof.loading import load
from memprof.records import Finding, Holder, StepColumns
from memprof.reference_chain import Link, LinkKind
from memprof.rules.case import Case
from memprof.rules.ranked_findings import findings
from memprof.rules.saving import at_overall_peak
from memprof.testing import TraceBuilder
from memprof.trace import Frame, Phase
from memprof.views.examination import examine
from memprof.views.peak_without import Saving
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


def run_of(tmp_path, peak_after, grows_until=STEPS):
    """Twenty recorded steps that keep a MiB each, and eighty counted ones with such peaks."""
    source = tmp_path / "train.py"
    source.write_text(SOURCE)
    trace = TraceBuilder(device="cpu").existing(WEIGHTS, "weights")
    for step in range(RECORDED):
        trace.label(step=step).alloc(WORK, f"work{step}")
        trace.alloc(MIB, f"kept{step}", stack=(Frame("main", str(source), 3),)).free(f"work{step}")
    numbers = list(range(STEPS))
    allocated = [WEIGHTS + MIB * min(step + 1, grows_until) for step in numbers]
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


def test_growth_that_is_over_has_no_part_in_a_later_peak(tmp_path):
    evaluated, evaluation = 90, 500 * MIB

    def peak(step, allocated):
        return allocated + (evaluation if step == evaluated else WORK)

    run = run_of(tmp_path, peak, grows_until=RECORDED)
    (first, *_) = next(one for one in findings(run) if one.bytes_per_step).remedies
    assert first.peak_before == WEIGHTS + RECORDED * MIB + evaluation
    # What was counted in the last recorded step cannot be told from that after it.
    assert first.peak_before - first.peak_after == RECORDED * MIB


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


def test_steps_that_keep_ever_more_keep_as_much_as_the_first_without_the_growth(tmp_path):
    """Every hook that was left so far keeps a result of its own in each step."""
    source = tmp_path / "train.py"
    source.write_text(SOURCE)
    trace = TraceBuilder(device="cpu").existing(WEIGHTS, "weights")
    for step in range(RECORDED):
        trace.label(step=step)
        for number in range(step + 1):
            trace.alloc(MIB, f"{step}.{number}", stack=(Frame("main", str(source), 3),))
    run = load(Recording((trace,)).write(tmp_path / "run.json"))
    first = next(one for one in findings(run) if one.bytes_per_step).remedies[0]
    assert first.peak_before == WEIGHTS + RECORDED * (RECORDED + 1) // 2 * MIB
    # Of each of the last step's tensors a whole number of bytes is left.
    assert first.peak_after == pytest.approx(WEIGHTS + MIB, abs=RECORDED)


def test_growth_that_is_made_anew_at_one_line_is_cut_on_each_way_to_it(tmp_path):
    """In each step all hooks so far replace what they have, in the training and in a test."""
    source = tmp_path / "train.py"
    source.write_text("def hook(output):\n    rows = torch.cat([rows, output])\n")
    hook = Frame("hook", str(source), 2)
    ways = [(hook, Frame(name, str(source), 9)) for name in ("train", "test")]
    trace = TraceBuilder(device="cpu").existing(WEIGHTS, "weights")
    for step in range(RECORDED):
        trace.label(step=step)
        for number, way in enumerate(ways):
            trace.alloc((step + 1) * MIB, f"{step}.{number}", stack=way)
            if step or number:
                trace.free(f"{step - 1 + number}.{1 - number}")
    run = load(Recording((trace,)).write(tmp_path / "run.json"))
    first = next(one for one in findings(run) if one.bytes_per_step).remedies[0]
    assert first.peak_before == WEIGHTS + 2 * RECORDED * MIB
    assert first.peak_after == WEIGHTS + 2 * MIB


@pytest.mark.parametrize("is_one_line", [True, False])
def test_what_one_change_saves_of_two_holders_is_said_of_both(is_one_line, tmp_path):
    source = tmp_path / "train.py"
    source.write_text(
        "def add(self, batch):\n    self.rows.append(batch)\n\n\n"
        "def log(self, batch):\n    self.rows.append(batch)\n"
    )
    functions = ("add", "add") if is_one_line else ("add", "log")
    lines = [2 if name == "add" else 6 for name in functions]
    trace = TraceBuilder(device="cpu").existing(WEIGHTS, "weights")
    for step in range(RECORDED):
        trace.label(step=step)
        for number, (name, line) in enumerate(zip(functions, lines, strict=True)):
            stack = Frame(name, str(source), line), Frame("main", str(source), 10 + number)
            trace.alloc(MIB, f"{step}.{number}", stack=stack)
    searches = []
    for number, (name, line) in enumerate(zip(("first", "second"), lines, strict=True), start=1):
        links = [
            Link(LinkKind.GLOBAL, name, "__main__"),
            Link(LinkKind.ATTRIBUTE, "rows", "Log"),
            Link(LinkKind.ITEM, "0", "list", length=RECORDED, grows=True),
        ]
        holder = Holder(LinkKind.GLOBAL, str(source), line, "self.rows.append(batch)", links)
        searches.append(
            Finding("holders", device="cpu", step=RECORDED - 1, stack=number, holders=[holder])
        )
    run = load(Recording((trace,), None, tuple(searches)).write(tmp_path / "run.json"))
    first, second = (one.remedies[0] for one in findings(run) if one.bytes_per_step)
    assert first.peak_before == second.peak_before == WEIGHTS + 2 * RECORDED * MIB
    saved = (RECORDED - 1) * (2 if is_one_line else 1) * MIB
    assert first.peak_before - first.peak_after == second.peak_before - second.peak_after == saved


def test_a_copy_of_all_that_is_kept_and_of_what_was_there_before(tmp_path):
    """A check before the first step has added to the list; of what is made each half is dropped."""
    source = tmp_path / "train.py"
    source.write_text(SOURCE + "        torch.cat(history)\n")
    trace = TraceBuilder(device="cpu").existing(WEIGHTS, "weights").existing(2 * PART, "checked")
    for step in range(RECORDED):
        trace.label(step=step)
        for name in ("kept", "dropped"):
            trace.alloc(PART, f"{name}{step}", stack=(Frame("main", str(source), 3),))
        trace.free(f"dropped{step}")
        size = (2 + step + 1) * PART
        trace.alloc(size, f"all{step}", stack=(Frame("main", str(source), 4),)).free(f"all{step}")
    run = load(Recording((trace,)).write(tmp_path / "run.json"))
    first = next(one for one in findings(run) if one.bytes_per_step).remedies[0]
    assert first.peak_before == WEIGHTS + 2 * PART + (RECORDED + 2 + RECORDED) * PART
    # What the first step keeps, and the first copy: of itself and of what was there
    assert first.peak_after == WEIGHTS + 2 * PART + (1 + 3) * PART


def test_a_hook_that_goes_keeps_nothing_of_rare_calls_either(tmp_path):
    """It keeps the result of a line that each step calls, and a test after every tenth as well."""
    source = tmp_path / "train.py"
    source.write_text(
        "def forward(self, x):\n    return self.last(x)\n\n\nm.register_forward_hook(h)\n"
    )
    line = Frame("forward", str(source), 2)
    trace = TraceBuilder(device="cpu").existing(WEIGHTS, "weights")
    for step in range(4 * RECORDED):
        trace.label(step=step)
        trace.alloc(MIB, f"kept{step}", stack=(line, Frame("train", str(source), 9)))
        if step % 10 == 9:
            trace.alloc(4 * MIB, f"rare{step}", stack=(line, Frame("test", str(source), 9)))
    links = [
        Link(LinkKind.HOOK, "forward hook", "Net", filename=str(source), line=5),
        Link(LinkKind.ITEM, "0", "list", length=RECORDED, grows=True),
    ]
    holder = Holder(LinkKind.HOOK, str(source), 5, "m.register_forward_hook(h)", links)
    search = Finding("holders", device="cpu", step=60, stack=1, holders=[holder])
    run = load(Recording((trace,), None, (search,)).write(tmp_path / "run.json"))
    found = next(one for one in findings(run) if one.bytes_per_step)
    by_fix = {one.fix: one for one in found.remedies}
    kept = 4 * RECORDED * (1 + 0.4) * MIB
    assert by_fix["remove_hook"].peak_before == WEIGHTS + kept
    assert by_fix["remove_hook"].peak_after <= WEIGHTS + (1 + 3 * 4) * MIB  # of the last 30 steps
    assert by_fix["del_ref"].peak_after >= WEIGHTS + 0.4 * 4 * RECORDED * MIB


def test_what_is_made_anew_and_larger_was_growing_before_its_window_as_well(tmp_path):
    """In its window it would be as small as at first with what came before it taken off, too."""
    source = tmp_path / "train.py"
    source.write_text("def main():\n    for x in loader:\n        c = torch.cat([c, x])\n")
    trace, first = TraceBuilder(device="cpu").existing(WEIGHTS, "weights"), 60
    trace.label(step=first - 1).existing(first * MIB, f"cache{first - 1}")
    numbers = list(range(first + RECORDED))
    for step in numbers[first:]:
        made_at = (Frame("main", str(source), 3),)
        trace.label(step=step).alloc((step + 1) * MIB, f"cache{step}", stack=made_at)
        trace.free(f"cache{step - 1}")
    columns = StepColumns(
        first=numbers,
        last=numbers,
        allocated=[WEIGHTS + (step + 1) * MIB for step in numbers],
        window=[0 if step >= first else -1 for step in numbers],
    )
    links = [Link(LinkKind.GLOBAL, "c", "__main__")]
    holder = Holder(LinkKind.GLOBAL, str(source), 3, "c = torch.cat([c, x])", links)
    search = Finding("holders", device="cpu", step=numbers[-1], stack=0, holders=[holder])
    run = load(Recording((trace,), columns, (search,)).write(tmp_path / "run.json"))
    (found,) = (one for one in findings(run) if one.bytes_per_step)
    assert (found.growth.is_replaced, found.bytes_per_step) == (True, MIB)
    in_window = found.remedies[0]
    saving = Saving(in_window.peak_before, in_window.peak_after)
    since_start = Case(dataclasses.replace(found, first_step=0), examine(run))
    whole = at_overall_peak(saving, since_start)
    assert whole == Saving(saving.before, saving.after - first * MIB)
