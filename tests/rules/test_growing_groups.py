"""What is made anew and larger in every step is growth by what its statement does, not says."""

from __future__ import annotations

import os

import pytest

from memprof.loading import load
from memprof.records import Finding, Holder, StepColumns
from memprof.reference_chain import Link, LinkKind
from memprof.rules.finding import Kind
from memprof.rules.growth_findings import leaks
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, write_run
from memprof.trace import EMPTY, Frame, Phase
from memprof.views.examination import examine

STEPS = 40
COPY = Frame("_deepcopy_list", "/usr/lib/python3.12/copy.py", 200)


@pytest.mark.parametrize(
    ("line", "grows"),
    [
        ("cache = torch.cat((cache, x))", True),
        ("cache = torch.column_stack([cache, x])", True),
        ("cache = np.append(cache, x)", True),
        ("cache = f(cache, x)  # like torch.cat", False),
        ("cat = pad = f(cache, x)", False),
        ("cache = f('torch.cat')", False),
    ],
)
def test_a_tensor_that_is_replaced_by_a_larger_one(line, grows, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(f"def main():\n    {line}\n")
    trace = TraceBuilder(device="cpu")
    for step in range(STEPS):
        trace.label(step=step)
        trace.alloc(4096 * (step + 1), f"t{step}", stack=(Frame("main", str(path), 2),))
        if step:
            trace.free(f"t{step - 1}")
    write_run(tmp_path / "run.json", trace.build())
    assert bool(leaks(examine(load(tmp_path / "run.json")))) is grows


@pytest.mark.parametrize(
    ("stored", "rule"),
    [
        ("self.rows = longer", "grown-by-concatenation"),
        ("self.rows = longer[-5:]", "kept-attribute"),  # who holds the whole is not seen
    ],
)
def test_a_tensor_that_is_replaced_now_and_then_from_some_step_on(stored, rule, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(f"def collect(self, row):\n    longer = cat([self.rows, row])\n    {stored}\n")
    os.utime(path, (0, 0))  # older than the recording
    trace = TraceBuilder(device="cpu")
    first, every = 10, 5
    for step in range(80):
        trace.label(step=step)
        count, is_due = divmod(step - first, every)
        if step >= first and not is_due:
            nbytes = (count + 1) << 20
            trace.alloc(nbytes, f"t{count}", stack=(Frame("collect", str(path), 2),))
            if count:
                trace.free(f"t{count - 1}")
        trace.alloc(512, f"s{step}")
        trace.free(f"s{step}")
    write_run(tmp_path / "run.json", trace.build())
    found, *_ = [one for one in findings(load(tmp_path / "run.json")) if one.kind is Kind.LEAK]
    assert found.rule == rule
    assert found.bytes_per_step == (1 << 20) / every


@pytest.mark.parametrize(
    ("line", "inner", "grows"),
    [
        ("best = [x.clone() for x in values]", (), True),
        ("best = f(values)", (COPY,), True),
        ("copied = clone_of(values)", (Frame("copy_all", "/home/user/other.py", 3),), False),
        ("best = f(values)  # deepcopy(values)", (), False),
    ],
)
def test_a_collection_that_is_copied_anew_with_one_more_item(line, inner, grows, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(f"def main():\n    {line}\n")
    trace = TraceBuilder(device="cpu")
    for step in range(STEPS):
        trace.label(step=step)
        for item in range(step + 1):
            trace.alloc(4096, f"t{step}.{item}", stack=(*inner, Frame("main", str(path), 2)))
        for item in range(step):
            trace.free(f"t{step - 1}.{item}")
    write_run(tmp_path / "run.json", trace.build())
    assert bool(leaks(examine(load(tmp_path / "run.json")))) is grows


@pytest.mark.parametrize(
    ("steps", "size_after", "grows"),
    [
        (6, lambda _: 1 << 20, True),
        (9, lambda _: 1 << 20, True),
        (11, lambda _: 1 << 20, True),  # a trend is told by more
        (5, lambda _: 1 << 20, False),  # too few
        (9, lambda _: 1 << 10, False),  # too little
        (9, lambda step: (1 << 20) + 512 * (step % 3), False),  # not the same
        (9, lambda step: 1 << 20 if step < 6 else 0, False),  # it has ended
        (9, lambda step: 1 << 20 if step > 3 else 0, False),  # it has just begun
    ],
)
def test_a_few_steps_are_enough_where_each_adds_the_same(steps, size_after, grows, tmp_path):
    path = tmp_path / "train.py"
    path.write_text("def main():\n    kept.append(f(x))\n")
    trace = TraceBuilder(device="cpu")
    for step in range(steps):
        trace.label(step=step)
        trace.alloc(4096, f"x{step}").free(f"x{step}")
        if size_after(step):
            trace.alloc(size_after(step), f"t{step}", stack=(Frame("main", str(path), 2),))
    numbers = list(range(steps))
    columns = StepColumns(first=numbers, last=numbers, window=[0] * steps)
    write_run(tmp_path / "run.json", trace.build(), steps=columns)
    found = leaks(examine(load(tmp_path / "run.json")))
    assert [one.bytes_per_step for one in found] == ([1 << 20] if grows else [])


def held_in(length, root=LinkKind.GLOBAL):
    """A holder as a search in the job names it: ``store.jobs[7]``."""
    links = [Link(root, "store", "main"), Link(LinkKind.ATTRIBUTE, "jobs", "Store")]
    return Holder(
        LinkKind.ITEM, "", 0, "", [*links, Link(LinkKind.ITEM, "7", "dict", length=length)]
    )


@pytest.mark.parametrize(("length", "grows"), [(STEPS, True), (2, False)])
def test_what_has_no_stack_grows_where_a_container_holds_it(length, grows, tmp_path):
    trace = TraceBuilder(device="cpu")
    for step in range(STEPS):
        trace.label(step=step).alloc(4096, f"t{step}", stack=())
    found = Finding("holders", device="cpu", step=STEPS, stack=0, holders=[held_in(length)])
    write_run(tmp_path / "run.json", trace.build(), more=(found,))
    made = leaks(examine(load(tmp_path / "run.json")))
    assert [one.bytes_per_step for one in made] == ([4096.0] if grows else [])


@pytest.mark.parametrize("grows", [True, False])
def test_what_only_looks_come_upon_grows_with_its_container(grows, tmp_path):
    """A thread makes a tensor a step; the looks at them come ever more rarely."""
    looks, seen = (0, 3, 5, 7, 9, 11, 13, 15, 17, 30, 37), 0
    trace = TraceBuilder(device="cpu")
    for step in range(STEPS):
        trace.label(step=step)
        if step in looks:
            for number in range(seen, step + 1):
                trace.alloc(4096, f"t{number}", stack=())
            seen = step + 1
    lengths = (9, 17, 33) if grows else (33, 33, 33)
    more = [
        Finding("holders", device="cpu", step=length, stack=0, holders=[held_in(length)])
        for length in lengths
    ]
    write_run(tmp_path / "run.json", trace.build(), more=more)
    found = leaks(examine(load(tmp_path / "run.json")))
    assert [one.bytes for one in found] == ([31 * 4096] if grows else [])


@pytest.mark.parametrize(
    ("late", "grows"),
    [
        (4, True),  # the loop is over, and another one goes on
        (5, False),  # the same loop goes on, and what it filled is full
    ],
)
def test_what_a_loop_made_that_is_over_has_grown(late, grows, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "def main():\n    for batch in batches:\n        kept.append(f(batch))\n"
        "    for batch in kept:\n        g(batch)\n"
        if late == 4
        else "def main():\n    for batch in batches:\n        if room:\n"
        "            kept.append(f(batch))\n        g(batch)\n"
    )
    made = 3 if late == 4 else 4
    trace, steps = TraceBuilder(device="cpu"), 100
    for step in range(steps):
        trace.label(step=step)
        if step < steps - 7:
            trace.alloc(1 << 20, f"t{step}", stack=(Frame("main", str(path), made),))
        trace.alloc(4096, f"x{step}", stack=(Frame("main", str(path), 5),)).free(f"x{step}")
    numbers = list(range(steps))
    columns = StepColumns(first=numbers, last=numbers, window=[0] * steps)
    write_run(tmp_path / "run.json", trace.build(), steps=columns)
    found = leaks(examine(load(tmp_path / "run.json")))
    assert [one.bytes_per_step for one in found] == ([1 << 20] if grows else [])


@pytest.mark.parametrize(
    ("root", "grows"), [(LinkKind.GLOBAL, True), (LinkKind.LOCAL, False), (None, False)]
)
def test_what_a_library_joins_grows_where_the_program_keeps_it(root, grows, tmp_path):
    """A library's running function keeps a cache while one prompt is answered, and no longer."""
    folder = tmp_path / "site-packages" / "models"
    folder.mkdir(parents=True)
    library, path = folder / "cache.py", tmp_path / "serve.py"
    library.write_text("def update(self, keys):\n    self.keys = torch.cat([self.keys, keys])\n")
    path.write_text("def serve(model):\n    model(prompt)\n    model(token)\n")
    trace = TraceBuilder(device="cpu")
    for step in range(STEPS):
        trace.label(step=step)
        stack = (Frame("update", str(library), 2), Frame("serve", str(path), 2 + step % 2))
        trace.alloc(4096 * (step + 1), f"t{step}", stack=stack)
        if step:
            trace.free(f"t{step - 1}")
    built = trace.build()
    rows = range(1, len(built.tables.stacks))
    holder = held_in(8, root) if root is not None else None
    more = [
        Finding("holders", device="cpu", step=STEPS, stack=row, holders=[holder])
        for row in rows
        if holder is not None
    ]
    write_run(tmp_path / "run.json", built, more=tuple(more))
    assert bool(leaks(examine(load(tmp_path / "run.json")))) is grows


@pytest.mark.parametrize(("decorator", "share"), [("@torch.no_grad()", 0.0), ("@timed", 1.0)])
def test_what_is_made_where_gradients_are_off_serves_no_graph(decorator, share, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(f"{decorator}\ndef collect(net, x):\n    kept.append(net(x))\n")
    os.utime(path, (0, 0))  # older than the recording
    trace = TraceBuilder(device="cpu")
    for step in range(STEPS):
        trace.label(step=step, phase=Phase.BACKWARD)
        trace.alloc(512, f"g{step}")
        trace.free(f"g{step}")
        trace.label(step=step, phase=Phase.FORWARD, module="Net")
        trace.alloc(1 << 20, f"t{step}", stack=(Frame("collect", str(path), 3),))
    write_run(tmp_path / "run.json", trace.build())
    (found,) = leaks(examine(load(tmp_path / "run.json")))
    assert found.growth.forward_share == share


LIBRARY_LINES = {
    "joins": "def update(self, keys):\n    self.keys = torch.cat([self.keys, keys])\n",
    "copies": "def update(self):\n    return [one.detach().clone() for one in self.preds]\n",
    "makes": "def update(self, keys):\n    self.keys = keys + 1\n",
}


def kept_by(path, whose):
    """Who keeps a library's object: an object of the program's, or a running function alone."""
    links = [Link(LinkKind.LOCAL, "app", "main", str(path), 2)]
    if whose == "program":
        links.append(Link(LinkKind.ATTRIBUTE, "encoded", "App", str(path), 3))
    links += [Link(LinkKind.ATTRIBUTE, "layers", "Cache"), Link(LinkKind.ITEM, "0", "list")]
    return Holder(LinkKind.ITEM, "", 0, "", links)


def in_a_library(tmp_path, line):
    """Frames of a library's line, and of the program's that calls it."""
    library, path = tmp_path / "site-packages" / "models" / "cache.py", tmp_path / "serve.py"
    library.parent.mkdir(parents=True)
    library.write_text(LIBRARY_LINES[line])
    path.write_text("def main():\n    model(prompt)\n")
    return (Frame("update", str(library), 2), Frame("main", str(path), 2)), path


def is_leak(tmp_path, path, whose, *traces):
    built = [trace.build() for trace in traces]
    more = [
        Finding("holders", device="cpu", step=1, stack=row, holders=[kept_by(path, whose)])
        for row in range(1, len(built[0].tables.stacks))
    ]
    write_run(tmp_path / "run.json", *built, more=tuple(more))
    return bool(leaks(examine(load(tmp_path / "run.json"))))


@pytest.mark.parametrize(
    ("line", "whose", "later", "grows"),
    [
        ("joins", "program", 200, True),
        ("joins", "nobody", 200, False),  # an answer that is being generated
        ("makes", "program", 200, False),
        ("joins", "program", 5, False),  # it was emptied where no step was recorded
    ],
)
def test_caches_of_several_prompts_are_followed_up_to_steps_that_were_not_recorded(
    line, whose, later, grows, tmp_path
):
    stack, path = in_a_library(tmp_path, line)
    first, second, last = TraceBuilder(device="cpu"), TraceBuilder(device="cpu"), {}
    for step in range(60):
        key = step % 4 if step >= 16 else step // 4  # one prompt after the other comes in
        first.label(step=step).alloc(4096 * (step + 1), f"t{step}", stack=stack)
        if key in last:
            first.free(last[key])
        last[key] = f"t{step}"
    second.label()
    for key in last:  # what replaced them came between the windows
        second.existing(4096 * 90, f"unseen{key}")
    for step in range(100, 105):
        second.label(step=step).alloc(4096 * later, f"t{step}", stack=stack)
        second.free(f"unseen{step % 4}" if step < 104 else "t100")
    assert is_leak(tmp_path, path, whose, first, second) is grows


@pytest.mark.parametrize(("whose", "grows"), [("program", True), ("nobody", False)])
def test_a_collection_that_a_library_copies_again_and_again(whose, grows, tmp_path):
    """What collects its values copies them at each call, so that none of them grows old."""
    stack, path = in_a_library(tmp_path, "copies")
    trace = TraceBuilder(device="cpu")
    for step in range(STEPS):
        trace.label(step=step)
        for number in range(step):
            trace.free(f"t{step - 1}.{number}")
        for number in range(step + 1):
            trace.alloc(4096, f"t{step}.{number}", stack=stack)
    assert is_leak(tmp_path, path, whose, trace) is grows


def test_a_copied_collection_grows_by_so_much_a_step_between_windows_too(tmp_path):
    """The last look came upon the library's call that copies: an earlier one knew who keeps it."""
    stack, path = in_a_library(tmp_path, "copies")
    windows = []
    for first, last in ((0, 14), (30, 34)):
        trace = TraceBuilder(device="cpu")
        trace.label()
        for number in range(first):  # made between the windows
            trace.existing(4096, f"t{first - 1}.{number}")
        for step in range(first, last):
            trace.label(step=step)
            for number in range(step):
                trace.free(f"t{step - 1}.{number}")
            for number in range(step + 1):
                trace.alloc(4096, f"t{step}.{number}", stack=stack)
        windows.append(trace.build())
    passing = Holder(
        LinkKind.ITEM,
        *("", 0, ""),
        [Link(LinkKind.LOCAL, "state", "update", stack[0].filename, 2), Link(LinkKind.ITEM, "0")],
    )
    more = [
        Finding("holders", device="cpu", step=step, stack=row, holders=[holder])
        for row in (1, 2)  # each window has its own number for the stack
        for step, holder in ((12, kept_by(path, "program")), (33, passing))
    ]
    write_run(tmp_path / "run.json", *windows, more=tuple(more))
    (found,) = leaks(examine(load(tmp_path / "run.json")))
    assert found.bytes_per_step == 4096
    assert "`app.encoded.layers`" in found.title


@pytest.mark.parametrize(("trained", "grows"), [(91, True), (80, True), (60, False)])
def test_training_that_is_over_has_grown_whatever_is_evaluated_last(trained, grows, tmp_path):
    """Forward passes after the last optimizer's step count as steps, in the same loop."""
    path = tmp_path / "train.py"
    path.write_text("for step in range(90):\n    replace(step)\n    evaluate(step)\n")
    trace, steps = TraceBuilder(device="cpu"), 100
    for step in range(steps):
        trace.label(step=step, phase=Phase.BACKWARD if step < trained else Phase.FORWARD)
        trace.alloc(4096, f"x{step}", stack=(Frame("<module>", str(path), 3),)).free(f"x{step}")
        if step < trained:
            trace.alloc(1 << 20, f"t{step}", stack=(Frame("<module>", str(path), 2),))
    numbers = list(range(steps))
    columns = StepColumns(first=numbers, last=numbers, window=[0] * steps)
    write_run(tmp_path / "run.json", trace.build(), steps=columns)
    found = leaks(examine(load(tmp_path / "run.json")))
    assert [one.bytes_per_step for one in found] == ([1 << 20] if grows else [])


def test_an_evaluation_that_ends_the_program_collects_as_it_did_before(tmp_path):
    """In training each was over before a step's end; the last one counts as steps of its own."""
    path = tmp_path / "train.py"
    path.write_text("def probe():\n    kept.append(f(x))\n")
    trace, steps = TraceBuilder(device="cpu"), 60
    for step in range(steps):
        trace.label(step=step)
        for part in range(12 if step < 45 and step % 5 == 0 else 0):
            trace.alloc(1 << 20, f"p{step}.{part}", stack=(Frame("probe", str(path), 2),))
        for part in range(12 if step < 45 and step % 5 == 0 else 0):
            trace.free(f"p{step}.{part}")
        if step >= 45:
            trace.alloc(1 << 20, f"t{step}", stack=(Frame("probe", str(path), 2),))
    numbers = list(range(steps))
    columns = StepColumns(first=numbers, last=numbers, window=[0] * steps)
    write_run(tmp_path / "run.json", trace.build(), steps=columns)
    assert leaks(examine(load(tmp_path / "run.json"))) == ()


@pytest.mark.parametrize(("kind", "grows"), [(LinkKind.CPP_CYCLE, True), (LinkKind.LOCAL, False)])
def test_what_a_cycle_through_cpp_keeps_of_an_earlier_loop_leaks(kind, grows, tmp_path):
    """What a name has may be what the later loop works with; a cycle's nobody can reach."""
    path = tmp_path / "train.py"
    path.write_text(
        "def main():\n    for task in tasks:\n        learn(task)\n"
        "    for task in tasks:\n        judge(task)\n"
    )
    os.utime(path, (0, 0))
    trace = TraceBuilder(device="cpu")
    for step in range(2 * STEPS):
        trace.label(step=step)
        line = 3 if step < STEPS else 5
        trace.alloc(1 << 20, f"t{step}", stack=(Frame("main", str(path), line),))
        if step >= STEPS:
            trace.free(f"t{step}")
    links = [Link(kind, "kept", "main"), Link(LinkKind.GRAD, "grad", "Parameter")]
    holders = [Holder(kind, str(path), 3, "learn(task)", links)]
    finding = Finding(
        "holders", device="cpu", step=8, stack=1, holders=holders, details={"reason": "growth"}
    )
    run = load(write_run(tmp_path / "run.json", trace.build(), more=[finding]))
    assert [one.bytes_per_step for one in leaks(examine(run))] == ([1 << 20] if grows else [])


@pytest.mark.parametrize(
    ("with_graphs", "last", "freed", "grows"),
    [
        (True, STEPS - 5, False, True),
        (False, STEPS - 5, False, False),  # tables that a cache fills with
        (True, STEPS // 2, False, False),  # it is given no more
        (True, STEPS - 5, True, False),  # something takes from it
    ],
)
def test_what_few_steps_give_to_a_list_of_graphs_grows(with_graphs, last, freed, grows, tmp_path):
    """Rollouts between the trainings: looks in the first of them saw the list become longer."""
    trace = TraceBuilder(device="cpu")
    rollouts = (0, last // 2, last)
    for step in range(STEPS):
        trace.label(step=step)
        for number in range(8 if step in rollouts else 0):
            trace.alloc(1 << 20, f"t{step}.{number}", stack=(Frame("main", "train.py", 3),))
        if freed and step == STEPS // 2:
            trace.free("t0.3")
        trace.alloc(512, "moment", stack=(Frame("main", "train.py", 4),)).free("moment")
    graph = [
        Link(LinkKind.AUTOGRAD_NODE, nodes=(("MeanBackward0", 1),)),
        Link(LinkKind.SAVED_TENSOR, "mat1", "AddmmBackward0"),
    ]
    more = []
    for length in (3, 5, 7):
        (holder,) = [held_in(length)]
        links = [*holder.links, *(graph if with_graphs else [])]
        kept = Holder(LinkKind.ITEM, "", 0, "", links)
        more.append(Finding("holders", device="cpu", step=0, stack=1, holders=[kept]))
    write_run(tmp_path / "run.json", trace.build(), more=more)
    found = leaks(examine(load(tmp_path / "run.json")))
    assert [one.bytes for one in found] == ([24 << 20] if grows else [])


@pytest.mark.parametrize(
    ("steps_of", "sizes", "grows"),
    [
        (range(2, 15, 2), [1 << 20] * 7, True),
        (range(2, 9, 2), [1 << 20] * 4, False),  # too few to tell
        ((2, 4, 5, 8, 10, 12), [1 << 20] * 6, False),  # as a cache is asked
        (range(2, 15, 2), [n << 20 for n in range(1, 8)], False),  # what is told by its trend
    ],
)
def test_a_copy_that_a_list_is_given_now_and_then_grows_in_a_short_run(
    steps_of, sizes, grows, tmp_path
):
    trace = TraceBuilder(device="cpu")
    given = dict(zip(steps_of, sizes, strict=True))
    for step in range(15):
        trace.label(step=step)
        if step in given:
            trace.alloc(given[step], f"t{step}", stack=(Frame("main", "train.py", 3),))
        trace.alloc(512, "moment", stack=(Frame("main", "train.py", 4),)).free("moment")
    more = [Finding("holders", device="cpu", step=11, stack=2, holders=[held_in(5)])]
    write_run(tmp_path / "run.json", trace.build(), more=more)
    found = leaks(examine(load(tmp_path / "run.json")))
    assert [one.bytes_per_step for one in found] == ([1 << 19] if grows else [])


@pytest.mark.parametrize(
    ("rounds", "grows"),
    [
        ((20, 20), False),  # two answers, each as long as the other
        ((20, 12), False),
        ((40,), True),  # one without an end
        ((8, 40), True),  # no longer what the first one was
    ],
)
def test_a_tensor_that_begins_anew_with_each_round(rounds, grows, tmp_path):
    """Whatever it begins with is large: a prompt, beside which each token adds little."""
    path = tmp_path / "train.py"
    path.write_text("def main():\n    cache = torch.cat((cache, x))\n")
    trace = TraceBuilder(device="cpu")
    lengths = [length for steps in rounds for length in range(steps)]
    for step, length in enumerate(lengths):
        trace.label(step=step)
        trace.alloc((100 + length) << 16, f"t{step}", stack=(Frame("main", str(path), 2),))
        if step:
            trace.free(f"t{step - 1}")
    write_run(tmp_path / "run.json", trace.build())
    assert bool(leaks(examine(load(tmp_path / "run.json")))) is grows


@pytest.mark.parametrize(("length", "grows"), [(60, True), (14, False), (0, False)])
def test_a_copied_collection_is_followed_where_later_steps_only_show_its_list(
    length, grows, tmp_path
):
    """Between the windows it was copied on, and the last one saw no call that copies."""
    stack, path = in_a_library(tmp_path, "copies")
    first, last = TraceBuilder(device="cpu"), TraceBuilder(device="cpu")
    for step in range(40):
        first.label(step=step)
        for number in range(step):
            first.free(f"t{step - 1}.{number}")
        for number in range(step + 1):
            first.alloc(4096, f"t{step}.{number}", stack=stack)
    last.label()
    for number in range(length):
        last.existing(4096, f"unseen{number}")
    for step in range(100, 105):
        last.label(step=step).alloc(512, f"x{step}").free(f"x{step}")
    built = [first.build(), last.build()]
    holders = [listed(path, 14), listed(path, length)] if length else [listed(path, 14)]
    more = [
        Finding("holders", device="cpu", step=39 + 60 * at, stack=row, holders=[holder])
        for at, (row, holder) in enumerate(zip((1, EMPTY), holders, strict=False))
    ]
    write_run(tmp_path / "run.json", *built, more=tuple(more))
    assert bool(leaks(examine(load(tmp_path / "run.json")))) is grows


def listed(path, length):
    """A list of an attribute of the program's own object, of that length by now."""
    links = [
        Link(LinkKind.GLOBAL, "collector", "Collector", str(path)),
        Link(LinkKind.ATTRIBUTE, "values", "Collector", str(path)),
        Link(LinkKind.ITEM, "0", "list", length=length, grows=True),
    ]
    return Holder(LinkKind.ITEM, str(path), 1, "", links)


def held_as_item(path, item, *, grows):
    """An item of a list ``best`` of 30, of which looks at that item have seen it become longer."""
    links = [
        Link(LinkKind.LOCAL, "best", "main", str(path), 2),
        Link(LinkKind.ITEM, item, "list", length=30, grows=grows),
        Link(LinkKind.ATTRIBUTE, "state", "Node"),
    ]
    return Holder(LinkKind.ITEM, str(path), 2, "best.append(search())", links)


@pytest.mark.parametrize("grows", [True, False])
def test_a_list_grows_whichever_of_its_items_looks_have_followed(grows, tmp_path):
    """A search makes four states a step, of which its result keeps three."""
    path = tmp_path / "train.py"
    path.write_text("def main():\n    best.append(search())\n")
    trace, steps, every = TraceBuilder(device="cpu"), 300, 25
    for step in range(steps):
        trace.label(step=step)
        for number in range(4):
            trace.alloc(4096, f"t{step}.{number}", stack=(Frame("main", str(path), 2),))
        if step % every == every - 1:
            for one in range(step - every + 1, step + 1):
                for number in range(1 if step > every else 4):  # of the first nothing stays
                    trace.free(f"t{one}.{number}")
    holders = [held_as_item(path, "20", grows=False), held_as_item(path, "0", grows=grows)]
    found = Finding("holders", device="cpu", step=steps - 1, stack=1, holders=holders)
    write_run(tmp_path / "run.json", trace.build(), more=(found,))
    made = leaks(examine(load(tmp_path / "run.json")))
    per_step = pytest.approx(3 * 4096, rel=0.03)  # up to the middle of a search
    assert [one.bytes_per_step for one in made] == ([per_step] if grows else [])
