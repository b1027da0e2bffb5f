"""Growth that no finding explains is told in bytes, and is no pass for `--fail-on-leak`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

import memprof
from memprof.loading import load
from memprof.records import Finding, Holder, StepColumns
from memprof.reference_chain import Link, LinkKind
from memprof.report.summary import summarize
from memprof.rules.finding import Kind
from memprof.rules.ranked_findings import findings
from memprof.rules.run_rule import RunMatch
from memprof.rules.unexplained_growth import unexplained_growth
from memprof.testing import TraceBuilder, save_snapshot, snapshot, write_run
from memprof.trace import Category, Frame
from memprof.views.examination import examine
from memprof_cli.leaks import command

MIB = 1 << 20
STEPS = 24


def recording(tmp_path, size_after, line="cache = f(cache, x)", stack=True):
    """One tensor that every step replaces by one of ``size_after(step)`` bytes."""
    source = tmp_path / "train.py"
    source.write_text(f"def main():\n    {line}\n")
    made_at = (Frame("main", str(source), 2),) if stack else ()
    trace = TraceBuilder(device="cpu")
    for step in range(STEPS):
        trace.label(step=step)
        trace.alloc(size_after(step), f"t{step}", stack=made_at)
        if step:
            trace.free(f"t{step - 1}")
    numbers = list(range(STEPS))
    steps = StepColumns(
        first=numbers,
        last=numbers,
        allocated=[size_after(step) for step in numbers],
        window=[0] * STEPS,
    )
    return write_run(tmp_path / "run.json", trace.build(), steps=steps)


def growing(step):
    return MIB * (step + 1)


def test_what_no_finding_explains_is_told_in_bytes(tmp_path):
    run = load(recording(tmp_path, growing))
    assert all(one.kind is Kind.WASTE for one in findings(run))
    told = unexplained_growth(examine(run), findings(run))
    assert (told.bytes, told.per_step, told.explained) == (20 * MIB, MIB, 0)
    assert (told.first_step, told.last_step) == (3, 23)
    assert str(told) == (
        "allocated bytes rise by 1 MiB per step, 20 MiB over steps 3 to 23, "
        "and no finding explains it"
    )


def test_waste_that_has_most_of_it_is_named(tmp_path):
    """As graphs of earlier steps, of which too few were recorded to be told as growth."""
    source = tmp_path / "train.py"
    source.write_text("def main():\n    h = step(h)\n")
    trace = TraceBuilder(device="cpu")
    for step in range(STEPS):
        trace.label(step=step)
        trace.alloc(MIB, f"t{step}", stack=(Frame("main", str(source), 2),))
    numbers = list(range(STEPS))
    allocated = [growing(step) for step in numbers]
    steps = StepColumns(first=numbers, last=numbers, allocated=allocated, window=[0] * STEPS)
    run = load(write_run(tmp_path / "run.json", trace.build(), steps=steps))
    (leak,) = (one for one in findings(run) if one.kind is Kind.LEAK)
    waste = replace(leak, kind=Kind.WASTE, minor=False)
    assert unexplained_growth(examine(run), ()).waste is None
    rise = unexplained_growth(examine(run), [waste])
    assert rise.waste is waste
    assert str(rise) == "allocated bytes rise by 1 MiB per step, 20 MiB over steps 3 to 23"
    assert rise.way_on == f"of these, {waste.title}"
    of_one_step = replace(waste, first_step=waste.last_step)
    for other in (replace(waste, minor=True), of_one_step):
        rise = unexplained_growth(examine(run), [other])
        assert rise.waste is None
        assert str(rise).endswith("and no finding explains it")


def test_it_is_the_verdict_and_fails_the_command(tmp_path):
    path = recording(tmp_path, growing)
    examination = examine(load(path))
    verdict = summarize(examination).verdict
    assert verdict.level == "leak"
    assert verdict.line.startswith("allocated bytes rise by 1 MiB per step")
    done = CliRunner().invoke(command, [str(path), "--fail-on-leak"])
    assert done.exit_code == 3
    assert "no leak" not in done.output


def test_what_a_finding_holds_is_explained(tmp_path):
    run = load(recording(tmp_path, growing, line="cache = torch.cat((cache, x))"))
    found = findings(run)
    assert [one.kind.value for one in found] == ["leak"]
    assert unexplained_growth(examine(run), found) is None
    assert unexplained_growth(examine(run), ()).bytes == 20 * MIB


@pytest.mark.parametrize(
    "size_after",
    [
        lambda _: 64 * MIB,
        lambda step: MIB * (1 + min(step, 12)),  # full after half of the steps
        lambda step: MIB * (1 + step % 6),  # given back again and again
        lambda step: 64 * MIB + 1024 * step,  # too little to look for
        lambda step: (
            MIB * (min(step, 7) + (step in (20, 22)) * 2 + (step == 23) * 3)
        ),  # a late load
        lambda step: MIB * step // 10 + 20 * MIB * (step >= 22),  # one, and little else
    ],
)
def test_what_settles_falls_or_is_small_is_no_growth(tmp_path, size_after):
    path = recording(tmp_path, size_after)
    run = load(path)
    assert unexplained_growth(examine(run), findings(run)) is None
    done = CliRunner().invoke(command, [str(path), "--fail-on-leak"])
    assert done.exit_code == 0


def test_who_had_what_grew_when_the_job_was_searched_last_is_told(tmp_path):
    run = load(recording(tmp_path, growing))
    links = (
        Link(LinkKind.LOCAL, "sessions", "reply"),
        Link(LinkKind.ITEM, "'b'", "dict", length=4),
    )
    searches = [
        Finding(
            finding="holders",
            device="cpu",
            step=step,
            holders=[Holder(links=links)],
            details={"reason": reason},
        )
        for step, reason in ((7, "growth"), (11, "growth"), (15, "resident"))
    ]
    told = unexplained_growth(examine(replace(run, findings=tuple(searches))), ())
    assert (told.searched_step, told.holder.links) == (11, links)
    assert told.way_on.startswith("when the job was searched last, in step 11, dict `sessions`")
    assert told.way_on.endswith("had what grew: look there first")


@pytest.mark.parametrize(
    ("limit", "stack", "is_told"),
    [(16, 1, False), (-1, 1, True), (16, 2, True)],
    ids=["has it", "has no bound", "has something else"],
)
def test_what_a_container_with_a_bound_has_is_explained(limit, stack, is_told, tmp_path):
    """Conversations are so many and no more; the cache of each is joined anew with every turn."""
    run = load(recording(tmp_path, growing))
    link = Link(LinkKind.ITEM, "'b'", "LRUCache", length=9, limit=limit)
    search = Finding(
        finding="holders",
        device="cpu",
        step=11,
        stack=stack,
        holders=[Holder(links=[Link(LinkKind.LOCAL, "sessions", "reply"), link])],
        details={"reason": "growth"},
    )
    told = unexplained_growth(examine(replace(run, findings=(search,))), ())
    assert (told is not None) is is_told


def test_bytes_without_a_stack_are_said_to_have_none(tmp_path):
    source = tmp_path / "train.py"
    source.write_text("def main():\n    pass\n")
    trace = TraceBuilder(device="cpu")
    for step in range(STEPS):
        trace.label(step=step)
        trace.alloc(MIB * (1 + step % 3), f"t{step}")
    numbers = list(range(STEPS))
    held = [sum(MIB * (1 + s % 3) for s in range(step + 1)) for step in numbers]
    steps = StepColumns(first=numbers, last=numbers, allocated=held, window=[0] * STEPS)
    run = load(write_run(tmp_path / "run.json", trace.build(), steps=steps))
    told = unexplained_growth(examine(run), ())
    assert told.bare_bytes == sum(MIB * (1 + s % 3) for s in range(3, STEPS - 2))
    assert "other threads or C++ made them" in told.way_on
    by_numpy = replace(told, by_allocator=True)
    assert "stack: NumPy, another library or a thread without Python made them" in by_numpy.way_on


def replay(tmp_path, limit, category=Category.UNKNOWN, after="", in_cycle=False):
    """One more tensor with every step, in a deque of so many items at most.

    ``in_cycle``: a dict of what has the deque, as of a callback's own variables, leads to it, too.
    """
    source = tmp_path / "train.py"
    source.write_text(f"def put(replay, x):\n    replay.frames.append(x)\n{after}")
    trace = TraceBuilder(device="cpu")
    for step in range(STEPS):
        trace.label(step=step)
        trace.alloc(MIB, f"t{step}", stack=(Frame("main", str(source), 2),), category=category)
    numbers = list(range(STEPS))
    held = [MIB * (step + 1) for step in numbers]
    steps = StepColumns(first=numbers, last=numbers, allocated=held, window=[0] * STEPS)
    links = [
        Link(LinkKind.LOCAL, "replay", "Replay"),
        Link(LinkKind.ATTRIBUTE, "frames", "deque"),
        Link(LinkKind.ITEM, "3", "deque", length=STEPS, limit=limit),
    ]
    holder = Holder(LinkKind.ITEM, str(source), 2, "replay.frames.append(x)", links)
    around = [
        Link(LinkKind.CYCLE, "", "", length=3),
        Link(LinkKind.ATTRIBUTE, "locals", "Replay"),
        Link(LinkKind.ITEM, "'replay'", "dict", length=2 * STEPS),
        *links[1:],
    ]
    cycle = Holder(LinkKind.CYCLE, str(source), 2, "replay.frames.append(x)", around)
    holders = [cycle, holder] if in_cycle else [holder]
    finding = Finding("holders", device="cpu", step=STEPS, stack=1, holders=holders)
    return load(write_run(tmp_path / "run.json", trace.build(), steps=steps, more=[finding]))


def test_what_fills_a_container_with_a_bound_is_explained(tmp_path):
    run = replay(tmp_path, limit=100)
    assert [one.kind for one in findings(run) if not one.minor] == []
    assert unexplained_growth(examine(run), ()) is None


def test_a_cycle_that_leads_to_it_as_well_makes_it_no_garbage(tmp_path):
    run = replay(tmp_path, limit=100, in_cycle=True)
    assert [one.kind for one in findings(run) if not one.minor] == []
    (leak,) = findings(replay(tmp_path, limit=-1, in_cycle=True))
    assert leak.kind is Kind.CYCLE


def test_what_fills_a_container_that_the_program_keeps_short_is_explained(tmp_path):
    guard = "    if len(replay.frames) > 100:\n        replay.frames.popleft()\n"
    run = replay(tmp_path, limit=-1, after=guard)
    assert [one.kind for one in findings(run) if not one.minor] == []
    assert unexplained_growth(examine(run), ()) is None


@pytest.mark.parametrize(("library", "is_told"), [("torch/optim/lbfgs", False), ("mine", True)])
def test_what_fills_the_history_of_lbfgs_is_explained(library, is_told, tmp_path):
    """It keeps ``history_size`` pairs and no more, and a few large steps are no finding."""
    made_at = (
        Frame("LBFGS.step", f"/env/site-packages/{library}.py", 397),
        Frame("main", str(tmp_path / "train.py"), 2),
    )
    trace = TraceBuilder(device="cpu")
    for step in range(STEPS):
        trace.label(step=step, module="net")
        trace.alloc(MIB, f"pair {step}", stack=made_at, category=Category.OPTIMIZER_STATE)
    numbers = list(range(STEPS))
    held = [MIB * (step + 1) for step in numbers]
    steps = StepColumns(first=numbers, last=numbers, allocated=held, window=[0] * STEPS)
    run = load(write_run(tmp_path / "run.json", trace.build(), steps=steps))
    assert (unexplained_growth(examine(run), ()) is not None) == is_told


def test_a_container_without_a_bound_leaks(tmp_path):
    run = replay(tmp_path, limit=-1)
    (leak,) = findings(run)
    assert (leak.kind, leak.bytes_per_step) == (Kind.LEAK, MIB)


def test_graphs_in_a_container_with_a_bound_may_go_on_to_those_that_fell_out(tmp_path):
    run = replay(tmp_path, limit=100, category=Category.ACTIVATION)
    (leak,) = findings(run)
    assert (leak.kind, leak.bytes_per_step, leak.confidence) == (Kind.LEAK, MIB, 0.5)


@pytest.mark.parametrize(("at_the_end", "is_growth"), [(60, False), (230, True)])
def test_few_counts_late_must_go_on_as_before(tmp_path, at_the_end, is_growth):
    source = tmp_path / "train.py"
    source.write_text("pass\n")
    trace = TraceBuilder(device="cpu")
    numbers = [*range(STEPS), 220, 221]
    held = [MIB * (step + 1) for step in range(STEPS)] + [MIB * at_the_end] * 2
    steps = StepColumns(first=numbers, last=numbers, allocated=held, window=[0] * len(numbers))
    for step in range(STEPS):
        trace.label(step=step)
        trace.alloc(MIB, f"t{step}")
    run = load(write_run(tmp_path / "run.json", trace.build(), steps=steps))
    assert (unexplained_growth(examine(run), ()) is not None) == is_growth


def test_stretches_that_are_counted_densely_do_not_hide_what_rises_between_them(tmp_path):
    source = tmp_path / "train.py"
    source.write_text("pass\n")
    numbers = [*range(18), 28, *range(80, 85), *range(103, 108), 198]
    dense = [MIB * (30 + 2 * step // 3) for step in range(18)]
    held = [*dense, 45 * MIB, *[66 * MIB + at for at in range(10)], 105 * MIB]
    steps = StepColumns(first=numbers, last=numbers, allocated=held, window=[0] * len(numbers))
    trace = TraceBuilder(device="cpu")
    for step in range(18):
        trace.label(step=step)
        trace.alloc(MIB, f"t{step}")
    run = load(write_run(tmp_path / "run.json", trace.build(), steps=steps))
    growth = unexplained_growth(examine(run), ())
    assert growth is not None
    assert (growth.last_step, growth.bytes) == (198, 73 * MIB)


def test_a_snapshot_says_what_rises_by_the_turns_of_its_loop(tmp_path):
    trace = TraceBuilder()
    for turn in range(24):
        for line in (2, 3):
            stack = [Frame("<module>", "/home/me/train.py", line)]
            trace.alloc(512, f"{line} {turn}", stack=stack).free(f"{line} {turn}")
        trace.alloc((1 + turn % 3) << 20, f"kept {turn}")  # in no thread of Python's
    save_snapshot(tmp_path / "snapshot.pickle", snapshot(trace.build()))
    examination = examine(load(tmp_path / "snapshot.pickle"))
    growth = unexplained_growth(examination, findings(examination.run, examination))
    assert growth is not None
    assert (growth.first_step, growth.last_step) == (3, 23)
    assert growth.bytes == sum(1 + turn % 3 for turn in range(4, 24)) << 20
    assert growth.way_on.endswith(
        "of what stayed have no stack: autograd's threads made them, or C++"
    )


def test_what_the_holder_of_a_finding_holds_besides_is_explained(tmp_path):
    """A finding of one line's tensors names a list, which has those of another line as well."""
    path, box = tmp_path / "run.json", []
    with memprof.track(path, sources=["cpu"], allowance_s=60) as tracker:
        for _ in range(STEPS):
            box.append(torch.ones(1 << 16))
            box.append(torch.ones(1 << 18))
            tracker.step()
    run = load(path)
    (found,) = (one for one in findings(run) if one.kind is Kind.LEAK)
    of_one_line = replace(found, bytes=found.bytes // 5, bytes_per_step=found.bytes_per_step / 5)
    assert unexplained_growth(examine(run), [of_one_line]) is None
    without = replace(of_one_line, holders=())
    assert unexplained_growth(examine(run), [without]).explained == without.bytes


@pytest.mark.parametrize("minor", [False, True])
def test_what_a_headline_of_waste_is_about_may_become_larger_with_its_batches(minor, tmp_path):
    """Logits of batches that are sorted by their lengths."""
    run = load(recording(tmp_path, growing))
    waste = [replace(one, minor=minor) for one in findings(run)]
    assert {(one.kind, one.bytes) for one in waste} == {(Kind.WASTE, STEPS * MIB)}
    growth = unexplained_growth(examine(run), waste)
    assert (growth.bytes if growth is not None else 0) == (20 * MIB if minor else 0)


def test_a_finding_over_a_run_beside_what_rises_leaves_it_told(tmp_path):
    """It has no tensors of a window: stored views, entries that nothing reads."""
    run = load(recording(tmp_path, growing))
    waste = [replace(one, match=RunMatch(device="cpu"), stack=()) for one in findings(run)]
    assert {one.kind for one in waste} == {Kind.WASTE}
    assert unexplained_growth(examine(run), waste).bytes == 20 * MIB


def test_what_a_library_collects_is_the_same_wherever_it_was_called_from(tmp_path):
    """An evaluation within the training has a finding; one behind it was cut off."""
    library = "/x/site-packages/transformers"
    within = tuple(
        Frame(name, f"{library}/{file}.py", line)
        for name, file, line in (
            ("torch_pad_and_concatenate", "trainer_pt_utils", 86),
            ("nested_concat", "trainer_pt_utils", 128),
            ("EvalLoopContainer.add", "trainer_pt_utils", 376),
            ("Trainer.evaluation_loop", "trainer", 3023),
        )
    )
    trace = TraceBuilder(device="cpu")
    for step in range(STEPS):
        trace.label(step=step)
        stack = (*within, Frame("main", "/x/train.py", 3))
        trace.alloc(growing(step), f"t{step}", stack=stack)
        if step:
            trace.free(f"t{step - 1}")
    numbers = list(range(STEPS))
    counts = [growing(step) for step in numbers]
    steps = StepColumns(first=numbers, last=numbers, allocated=counts, window=[0] * STEPS)
    run = load(write_run(tmp_path / "run.json", trace.build(), steps=steps))
    (told,) = (one for one in findings(run) if one.rule == "collected-predictions")
    by_training = (
        Frame("Trainer.train", f"{library}/trainer.py", 9),
        Frame("main", "/x/train.py", 2),
    )
    other_way = replace(told, stack=(*within, *by_training))
    assert unexplained_growth(examine(run), [other_way]) is None
    elsewhere = replace(told, stack=(Frame("joined", "/x/train.py", 2), *by_training), match=None)
    assert unexplained_growth(examine(run), [elsewhere]) is not None


def thawing(tmp_path, module_of):
    """With every second step states of Adam for a module's parameters."""
    source = tmp_path / "train.py"
    source.write_text("def fit(optimizer):\n    optimizer.step()\n")
    trace = TraceBuilder(device="cpu")
    for number in range(STEPS // 2):
        trace.label(step=0, module=f"net.{number}")
        trace.alloc(MIB, f"weight {number}", category=Category.PARAMETER)
    allocated = []
    made_at = (Frame("fit", str(source), 2),)
    for step in range(STEPS):
        if step % 2:
            trace.label(step=step, module=module_of(step // 2))
            for state in ("mean", "square"):
                name = f"{state} {step}"
                trace.alloc(MIB, name, stack=made_at, category=Category.OPTIMIZER_STATE)
        trace.label(step=step)
        trace.alloc(512, f"t{step}", stack=made_at)
        trace.free(f"t{step}")
        allocated.append(MIB * (STEPS // 2 + 2 * ((step + 1) // 2)))
    numbers = list(range(STEPS))
    steps = StepColumns(first=numbers, last=numbers, allocated=allocated, window=[0] * STEPS)
    return load(write_run(tmp_path / "run.json", trace.build(), steps=steps))


@pytest.mark.parametrize(
    ("module_of", "is_told"),
    [
        (lambda number: f"net.{number}", False),  # a layer after the other is unfrozen
        (lambda number: "net.0", True),  # optimizers that are made anew and kept
    ],
)
def test_states_that_each_parameter_gets_once_are_no_growth(module_of, is_told, tmp_path):
    run = thawing(tmp_path, module_of)
    told = unexplained_growth(examine(run), ())
    assert (told is not None) == is_told
