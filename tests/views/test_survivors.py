"""Lives over windows with gaps, in units of the steps whose ends were recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memprof.loading import load
from memprof.records import SCHEMA_VERSION, DeviceInfo, Finding, Header, Holder, StepColumns
from memprof.reference_chain import Link
from memprof.rules.finding import Kind
from memprof.rules.growth_findings import leaks
from memprof.run import DeviceRun, Run, Steps
from memprof.testing import TraceBuilder, write_run
from memprof.trace import (
    Action,
    Annotation,
    Blocks,
    BlockState,
    Events,
    Frame,
    Label,
    State,
    Tables,
    Trace,
)
from memprof.views.examination import examine
from memprof.views.survivors import OUTLIVED, survival

LINE = Frame("step", "/home/me/train.py", 7)
TABLES = Tables(
    frames=(LINE,),
    stacks=((), (0,)),
    labels=(
        Label(),
        *(Label(step=s) for s in range(200)),
        *(Label(step=s, module="Net.head") for s in range(200)),
    ),
)
OF_HEAD = 200
"""Further on is the label of the same step, of the module that is the head now."""


def state(steps):
    count = len(steps)
    return State(
        blocks=Blocks.build(
            count,
            address=np.arange(count) * 512 + 512,
            size=np.full(count, 512),
            requested=np.full(count, 512),
            state=np.full(count, BlockState.ACTIVE_ALLOCATED),
            segment=np.full(count, -1),
            stack=np.ones(count),
            label=[s + 1 for s in steps],
        )
    )


def window(there, steps, first_address=1 << 30):
    """One tensor made in each step, nothing freed; ``there`` are the steps of what is alive at first."""
    events = Events.build(
        action=[Action.ALLOC] * len(steps),
        address=[first_address + 512 * s for s in steps],
        size=[512] * len(steps),
        time_us=[1000 * s for s in steps],
        stack=[1] * len(steps),
        label=[s + 1 for s in steps],
    )
    return Trace(device="cuda:0", events=events, tables=TABLES, start=state(there))


def run_of(*windows, findings=(), steps=None, readings=(), total_bytes=0):
    numbers = [[int(TABLES.labels[i].step) for i in w.events.label] for w in windows]
    if steps is None:
        flat = [s for part in numbers for s in part]
        steps = Steps.build(
            len(flat),
            first=flat,
            last=flat,
            allocated=[512 * (i + 1) for i in range(len(flat))],
            window=[w for w, part in enumerate(numbers) for _ in part],
        )
    info = DeviceInfo("cuda:0", total_bytes=total_bytes)
    device = DeviceRun("cuda:0", info, windows, steps)
    header = Header(schema=SCHEMA_VERSION, created_us=0)
    return Run("", header, (device,), findings=findings, readings=readings)


def test_what_outlives_a_window_goes_on_in_the_next():
    first, then = list(range(10)), list(range(50, 55))
    seen = survival(examine(run_of(window([], first), window(first, then))).devices[0])
    assert seen.steps.tolist() == first + then
    assert seen.lives.allocated_in.tolist() == list(range(15))
    assert set(seen.lives.freed_in.tolist()) == {OUTLIVED}


def test_what_died_between_two_windows_died_when_the_second_began():
    first, then = list(range(10)), list(range(50, 55))
    seen = survival(examine(run_of(window([], first), window(first[:4], then))).devices[0])
    assert seen.lives.freed_in[:10].tolist() == [OUTLIVED] * 4 + [10] * 6


def test_what_belongs_to_no_module_any_more_is_known_by_its_step():
    """The last head is owned as the first window ends, and another is as the second begins."""
    first, then = list(range(10)), list(range(50, 55))
    earlier = window([], first)
    label = earlier.events.label.copy()
    label[-1] += OF_HEAD
    owned = replace(earlier, events=replace(earlier.events, label=label))
    lives = survival(examine(run_of(owned, window(first, then))).devices[0]).lives
    assert lives.allocated_in.tolist() == list(range(15))
    assert set(lives.freed_in.tolist()) == {OUTLIVED}


def unlabelled(window):
    """As in a history that the program records: no state at the start, and nobody saw it made."""
    blocks = window.start.blocks
    end = replace(blocks, label=np.zeros(len(blocks), dtype=np.int32))
    return replace(window, start=None, end=State(blocks=end))


def test_what_a_later_window_finds_without_a_label_is_known_by_its_address():
    first, then = list(range(10)), list(range(50, 55))
    later = unlabelled(window(first[:4], then))
    same = window([], first, first_address=512)
    moved = window([], first, first_address=1 << 20)
    for earlier, of_first in ((same, [OUTLIVED] * 4 + [10] * 6), (moved, [10] * 10)):
        lives = survival(examine(run_of(earlier, later)).devices[0]).lives
        assert lives.freed_in[lives.allocated_in >= 0].tolist() == of_first + [OUTLIVED] * 5
        assert (lives.allocated_in < 0).sum() == 4 - of_first.count(OUTLIVED)


def test_a_leak_is_followed_over_windows_with_gaps():
    first, then = list(range(10)), list(range(50, 55))
    found = leaks(examine(run_of(window([], first), window(first, then))))
    assert [(f.kind, f.bytes_per_step, f.site.line) for f in found] == [(Kind.LEAK, 512.0, 7)]


def test_growth_that_stopped_before_the_last_window_is_no_leak():
    first, then = list(range(10)), list(range(50, 58))
    quiet = Events.build(
        action=[Action.OTHER] * len(then),
        time_us=[1000 * s for s in then],
        label=[s + 1 for s in then],
    )
    second = Trace(device="cuda:0", events=quiet, tables=TABLES, start=state(first))
    assert leaks(examine(run_of(window([], first), second))) == ()


def test_the_steps_until_the_device_is_full_are_counted():
    found = leaks(examine(run_of(window([], list(range(20))), total_bytes=20 * 512 + 51200)))
    assert found[0].steps_left == 100.0


def test_a_container_with_a_bound_is_no_leak():
    link = Link("item", "3", "deque", length=20, limit=1000)
    holder = Holder(kind="item", links=[Link("global", "recent"), link])
    finding = Finding("holders", device="cuda:0", stack=1, holders=[holder])
    assert leaks(examine(run_of(window([], list(range(20))), findings=(finding,)))) == ()


def test_the_holder_found_in_the_job_names_the_leak():
    links = [Link("global", "kept", "train"), Link("item", "0", "list", length=20)]
    holder = Holder(kind="item", filename="train.py", line=9, links=links)
    finding = Finding("holders", device="cuda:0", stack=1, holders=[holder])
    found = leaks(examine(run_of(window([], list(range(20))), findings=(finding,))))
    assert (
        found[0].title == "grows by 512 B per step: list `kept` (20 items), global `kept` of train"
    )
    assert found[0].holders == (holder,)


def test_a_snapshot_with_profiler_steps_shows_leaks_too():
    trace = window([], list(range(20)))
    marks = tuple(
        Annotation(f"ProfilerStep#{s}", 1000 * s - 500, 1000 * s + 400) for s in range(20)
    )
    bare = Events.build(**{n: getattr(trace.events, n) for n in Events.names() if n != "label"})
    snapshot = Trace(device="cuda:0", events=bare, tables=TABLES, start=State(), annotations=marks)
    header = Header(schema=SCHEMA_VERSION, created_us=0)
    device = DeviceRun("cuda:0", DeviceInfo("cuda:0"), (snapshot,))
    found = leaks(examine(Run("", header, (device,), is_snapshot=True)))
    assert [(f.bytes_per_step, f.site.line) for f in found] == [(512.0, 7)]


@pytest.mark.parametrize(("more_bytes", "goes_on"), [(0, False), (512, False), (8192, True)])
def test_what_is_freed_where_little_follows_was_there_to_the_end(more_bytes, goes_on, tmp_path):
    """The last step ended with the program: its functions had returned by then.

    A number that is computed of the result, to be printed, is no further step.
    """
    trace = TraceBuilder(device="cpu")
    for step in range(30):
        trace.label(step=step)
        trace.alloc(4096, f"t{step}", stack=(LINE,))
    for step in range(29):
        trace.free(f"t{step}")
    if more_bytes:
        trace.alloc(more_bytes, "more", stack=(LINE,))
    numbers = list(range(30))
    steps = StepColumns(first=numbers, last=numbers, window=[0] * 30)
    run = load(write_run(tmp_path / "run.json", trace.build(), steps=steps))
    lives = survival(examine(run).devices[0])
    assert lives.steps.tolist() == numbers
    assert bool(lives.outlast(np.arange(27)).all()) is not goes_on
    assert bool(leaks(examine(run))) is not goes_on


@pytest.mark.parametrize("together", [1, 2, 8])
def test_steps_that_have_a_row_in_common_are_told_apart_by_their_labels(together, tmp_path):
    """As where loops of the program's data were guessed to be thousands of steps."""
    trace = TraceBuilder(device="cpu")
    for step in range(40):
        trace.label(step=step).alloc(1 << 20, f"t{step}", stack=(LINE,))
    first = [0, *range(1, 39, together)]
    last = [0, *(min(one + together - 1, 38) for one in first[1:])]
    columns = StepColumns(
        first=first, last=last, allocated=[(at + 1) << 20 for at in last], window=[0] * len(last)
    )
    run = load(write_run(tmp_path / "run.json", trace.build(), steps=columns))
    (device,) = examine(run).devices
    assert len(survival(device)) == 39
    (leak,) = leaks(examine(run))
    assert leak.bytes_per_step == 1 << 20
