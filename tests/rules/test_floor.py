"""What is a headline: what a person would act on."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="the programs train")

import msgspec
import numpy as np
import torch
from torch import nn

from memprof.loading import load
from memprof.records import DeviceInfo, Finding, Holder, Site
from memprof.reference_chain import Link, LinkKind, Unowned
from memprof.rules.finding import Growth, Kind, Remedy, RuleFinding
from memprof.rules.floor import is_minor, is_needed
from memprof.rules.frameworks import typed
from memprof.rules.ranked_findings import findings
from memprof.rules.rule import Match
from memprof.runfile.writer import RunWriter
from memprof.testing import TraceBuilder, run_records, step_columns, write_run
from memprof.trace import Frame
from memprof.views.examination import examine
from tests.rules.recorded import findings_of

KIB = 1 << 10


def teaches(batch):
    """A teacher without ``no_grad``, whose gradients no optimizer clears, and a small student."""

    def program():
        teacher = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
        student = nn.Linear(256, 256)
        optimizer = torch.optim.Adam(student.parameters(), 0.1)

        def step(number):
            x = torch.randn(batch, 256)
            wanted = teacher(x).detach()
            (wanted - student(x)).square().mean().backward()
            teacher(x[:1]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


def test_a_mistake_that_is_a_small_part_of_the_peak_is_no_headline(tmp_path):
    found = findings_of(teaches(8192), tmp_path / "run.json")
    assert all(one.minor for one in found)


def test_a_mistake_that_is_a_large_part_is_one_in_a_small_program_too(tmp_path):
    found = findings_of(teaches(64), tmp_path / "run.json")
    assert [one.rule for one in found if not one.minor] == ["unused-gradients"]
    assert found[0].remedies[0].saves_bytes > 512 * KIB


def trains_deep():
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(8)))

    def step(number):
        model(torch.randn(4096, 128)).square().mean().backward()
        model.zero_grad()

    return step


def test_what_a_program_needs_is_its_largest_part_and_no_headline(tmp_path):
    found = findings_of(trains_deep, tmp_path / "run.json")
    assert found
    assert all(one.minor for one in found)
    assert is_needed(found[0])


@pytest.mark.parametrize(
    ("path", "fix", "code"),
    [
        ("/x/transformers/trainer.py", "checkpoint", "TrainingArguments(gradient_checkpointing"),
        ("C:\\x\\transformers\\trainer.py", "smaller_batch", "TrainingArguments(per_device_eval"),
        ("/x/lightning/pytorch/loops/fit_loop.py", "micro_batches", "Trainer(accumulate_grad"),
        ("/x/lightning/pytorch/loops/fit_loop.py", "checkpoint", "torch.utils.checkpoint"),
        ("/x/train.py", "bucket_view", "DistributedDataParallel(model, gradient_as_bucket_view"),
        ("/x/train.py", "del_ref", ""),
    ],
)
def test_where_a_framework_drives_the_loop_its_switch_is_what_to_type(path, fix, code):
    said = typed(fix, (Frame("forward", "/x/model.py", 3), Frame("train", path, 9)), "cuda:0")
    assert said.startswith(code) if code else not said


def makes_all_pairs():
    first, second = torch.randn(600, 64), torch.randn(600, 64)

    def step(number):
        with torch.no_grad():
            pairs = first[:, None, :] * second[None, :, :]
            return pairs.softmax(0).amax(-1).sum().item()

    return step


def test_a_line_that_makes_most_of_the_peak_at_once_is_a_headline(tmp_path):
    found = findings_of(makes_all_pairs, tmp_path / "run.json")
    assert [one.rule for one in found if not one.minor] == ["largest"]
    assert found[0].remedies[0].fix == "chunk"


@pytest.mark.parametrize(("size", "is_minor"), [(32, True), (4096, False)])
def test_growth_that_would_come_to_nothing_is_no_headline(size, is_minor, tmp_path):
    def trains():
        model, history = nn.Linear(1024, 1024), []

        def step(number):
            history.append(model(torch.randn(1, 1024)).detach().repeat(1, 4)[0, :size].clone())

        return step

    found = [one for one in findings_of(trains, tmp_path / "run.json") if one.bytes_per_step]
    assert [one.minor for one in found[:1]] == [is_minor]


@pytest.mark.parametrize(
    ("size", "is_minor"), [(2 << 10, True), (16 << 10, False)], ids=["2 MiB", "16 MiB"]
)
def test_results_that_grow_beside_a_peak_of_many_times_their_size_are_no_headline(
    size, is_minor, tmp_path
):
    """What they come to in a thousand steps, beside a peak of 512 MiB."""
    source = tmp_path / "train.py"
    source.write_text("def main(results, x):\n    results.append(x)\n")
    trace = TraceBuilder(device="cpu")
    for step in range(40):
        trace.label(step=step)
        trace.alloc(size, f"t{step}", stack=(Frame("main", str(source), 2),))
        trace.alloc(512 << 20, f"work{step}")
        trace.free(f"work{step}")
    links = [
        Link(LinkKind.LOCAL, "results", "main", str(source), 1),
        Link(LinkKind.ITEM, "3", "list", length=40),
    ]
    holder = Holder(LinkKind.ITEM, str(source), 2, "results.append(x)", links)
    held = Finding("holders", device="cpu", step=39, stack=1, holders=[holder])
    (found,) = findings(load(write_run(tmp_path / "run.json", trace.build(), more=[held])))
    assert (found.bytes_per_step, found.remedies[0].fix) == (size, "clear_container")
    assert found.minor is is_minor


@pytest.mark.parametrize(("size", "is_minor"), [(256, True), (512, False)])
def test_results_that_come_to_little_are_no_headline_in_a_small_program_either(
    size, is_minor, tmp_path
):
    """A quarter of a MiB in a thousand steps, or half a MiB, beside a peak of 64 KiB."""
    source = tmp_path / "train.py"
    source.write_text("def main(results, x):\n    results.append(x)\n")
    trace = TraceBuilder(device="cpu").existing(64 << 10, "weights")
    for step in range(40):
        trace.label(step=step)
        trace.alloc(size, f"t{step}", stack=(Frame("main", str(source), 2),))
    links = [
        Link(LinkKind.LOCAL, "results", "main", str(source), 1),
        Link(LinkKind.ITEM, "3", "list", length=40),
    ]
    holder = Holder(LinkKind.ITEM, str(source), 2, "results.append(x)", links)
    held = Finding("holders", device="cpu", step=39, stack=1, holders=[holder])
    found = findings(load(write_run(tmp_path / "run.json", trace.build(), more=[held])))
    growing = [(one.bytes_per_step, one.minor) for one in found if one.bytes_per_step]
    assert growing == [(size, is_minor)]


@pytest.mark.parametrize(
    ("device", "made", "is_minor"),
    [
        ("cpu", "(x * 127.5).to(torch.uint8).cpu()", True),
        ("cpu", '(x * 127.5).to("cpu")', True),
        ("cpu", "(x * 127.5).to(torch.uint8)", False),
        ("cuda:0", "x * 127.5, x.cpu()", False),  # what is on the card was not moved
    ],
)
def test_a_few_results_that_are_moved_to_the_host_are_no_headline(device, made, is_minor, tmp_path):
    """Previews, one in ten steps, of 64 KiB beside a peak of 16 MiB."""
    source = tmp_path / "train.py"
    source.write_text(f"def preview(x):\n    return {made}\n")
    trace = TraceBuilder(device=device).existing(16 << 20, "weights")
    for step in range(100):
        trace.label(step=step)
        if step % 10 == 9:
            trace.alloc(64 << 10, f"t{step}", stack=(Frame("preview", str(source), 2),))
        trace.alloc(4096, f"work{step}").free(f"work{step}")
    found = findings(load(write_run(tmp_path / "run.json", trace.build())))
    growing = [(one.bytes_per_step, one.minor) for one in found if one.bytes_per_step]
    assert growing == [((64 << 10) / 10, is_minor)]


def test_scratch_memory_of_a_library_holds_nothing_that_grows(tmp_path):
    """It has no stack, as nothing has that came between windows: a search asks for both at once."""
    source = tmp_path / "train.py"
    source.write_text("def main(results, x):\n    results.append(x)\n")
    trace = TraceBuilder(device="cuda:0")
    for step in range(40):
        trace.label(step=step)
        trace.alloc(1 << 20, f"t{step}", stack=(Frame("main", str(source), 2),))
    links = [
        Link(LinkKind.LOCAL, "results", "main", str(source), 1),
        Link(LinkKind.ITEM, "3", "list", length=40),
    ]
    named = Holder(LinkKind.ITEM, str(source), 2, "results.append(x)", links)
    scratch = Holder(
        LinkKind.UNKNOWN, links=[Link(LinkKind.UNKNOWN, unowned=Unowned(workspace=True))]
    )
    held = Finding("holders", device="cuda:0", step=39, stack=1, holders=[named, scratch])
    (found,) = findings(load(write_run(tmp_path / "run.json", trace.build(), more=[held])))
    assert found.holders == (named,)


class Index:
    def __init__(self):
        self.shelves = []

    def add(self, rows):
        self.shelves.append(rows)

    def search(self, queries):
        return [queries @ shelf.T for shelf in self.shelves]


class Answers:
    """The first answer that is near enough is taken, and else one is made and kept."""

    def __init__(self):
        self.keys = []

    def add(self, key):
        self.keys.append(key)

    def search(self, query):
        for key in self.keys:
            if (query @ key.T).max() > 1e9:
                return key
        return None


@pytest.mark.parametrize(
    ("kept", "every_step", "trains", "is_minor"),
    [
        (Index, False, True, True),
        (Index, True, False, True),
        (Index, True, True, False),
        (Answers, True, False, False),
    ],
    ids=["searched later", "searched", "a bank of a training", "a cache"],
)
def test_an_index_that_is_searched_is_needed(kept, every_step, trains, is_minor, tmp_path):
    def indexes():
        model, index = nn.Linear(64, 64), kept()

        def step(number):
            with torch.set_grad_enabled(trains):
                out = model(torch.randn(4096, 64))
            index.add(out.detach())
            if every_step:
                index.search(torch.randn(1, 64))
            if trains:
                out.sum().backward()

        return step

    found = [one for one in findings_of(indexes, tmp_path / "run.json") if one.bytes_per_step]
    assert [one.minor for one in found[:1]] == [is_minor]


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_what_to_type_is_for_the_device_where_it_lies(device):
    said = typed("mixed_precision", (), device)
    assert said == f'with torch.autocast("{device.split(":")[0]}", torch.bfloat16):'


def test_a_function_that_is_mapped_over_samples_takes_some_of_them_at_a_time():
    code = torch._functorch.vmap.vmap_impl.__code__  # what vmap calls, whatever chunks it is given
    frame = Frame(code.co_name, code.co_filename, code.co_firstlineno)
    assert typed("chunk", (frame,), "cpu") == "torch.vmap(f, in_dims=…, chunk_size=…)"


def reserves(path, card, unused):
    """Counters of a card of which ever more is reserved and not used, up to some bytes."""
    mib, last = 1 << 20, 29
    trace = TraceBuilder(device="cuda:0")
    for step in range(last + 1):
        trace.label(step=step)
        trace.alloc(mib, "x", stack=(Frame("main", "/home/user/train.py", 2),)).free("x")
    reserved = [300 * mib + unused * step // last for step in range(last + 1)]
    columns = step_columns(
        reserved=reserved, allocated=[300 * mib] * (last + 1), ooms=[0] * (last + 1)
    )
    records = run_records(trace.build(), steps=columns)
    header = msgspec.structs.replace(
        records[0], devices=[DeviceInfo("cuda:0", total_bytes=card, memory_fraction=1.0)]
    )
    writer = RunWriter(path, header)
    for record in records[1:-1]:
        writer.write(record)
    writer.close(records[-1])
    return findings(load(path))


@pytest.mark.parametrize(
    ("card_gib", "is_minor"), [(80, True), (8, False), (0, False)], ids=["80 GiB", "8 GiB", "?"]
)
def test_what_lies_unused_on_a_large_card_is_no_headline(card_gib, is_minor, tmp_path):
    """200 MiB are a fortieth of a card of 8 GiB, and a four hundredth of one of 80."""
    found = reserves(tmp_path / "run.json", card_gib << 30, 200 << 20)
    holes = next(one for one in found if one.rule == "growing-fragmentation")
    assert holes.minor is is_minor


@pytest.mark.parametrize(
    ("mib", "card", "minor"),
    [(40, False, False), (40, True, True), (300, True, False)],
    ids=["a job on the CPU", "beside a card", "much of the host"],
)
def test_a_few_mib_of_the_host_are_no_headline_beside_a_card(mib, card, minor, tmp_path):
    nbytes = mib << 20
    traces = [TraceBuilder(device="cpu").label(step=0).alloc(nbytes, "batch").build()]
    if card:
        traces.append(TraceBuilder(device="cuda:0").label(step=0).alloc(nbytes, "model").build())
    run = load(write_run(tmp_path / "run.json", *traces))
    match = Match(row=0, rows=np.array([0]), nbytes=nbytes, saving=None)
    waste = RuleFinding(Kind.WASTE, "cpu", Site(), "wait", bytes=nbytes, match=match)
    assert is_minor(waste, examine(run)) is minor


@pytest.mark.parametrize(
    ("confidence", "nbytes", "minor"),
    [
        (0.45, 64 << 10, True),
        (0.9, 64 << 10, True),
        (0.9, 400 << 10, True),
        (0.9, 1 << 20, False),
    ],
    ids=["unsure", "sure", "of no weight", "much of the peak"],
)
def test_little_that_grows_and_nothing_is_known_to_hold_is_no_headline(
    confidence, nbytes, minor, tmp_path
):
    """Previews that a script puts into a list now and then: 2 KiB a step of 16 MiB."""
    trace = TraceBuilder(device="cpu").label(step=0).alloc(16 << 20, "work").build()
    growth = RuleFinding(
        Kind.LEAK,
        "cpu",
        Site(),
        "grows",
        bytes_per_step=2048,
        bytes=nbytes,
        confidence=confidence,
        remedies=(Remedy("del_ref", "It outlives its step."),),
    )
    assert is_minor(growth, examine(load(write_run(tmp_path / "run.json", trace)))) is minor


@pytest.mark.parametrize(
    ("confidence", "per_step", "minor"),
    [(0.44, 10_000, True), (0.44, 20_000, False), (0.9, 10_000, False)],
)
def test_a_sample_now_and_then_is_no_headline_yet(confidence, per_step, minor, tmp_path):
    """A sheet of pictures of 192 KiB every twenty steps, four of them by now."""
    trace = TraceBuilder(device="cpu").label(step=0).alloc(38 << 20, "work").build()
    growth = RuleFinding(
        Kind.LEAK,
        "cpu",
        Site(),
        "grows",
        bytes_per_step=per_step,
        bytes=768 << 10,
        confidence=confidence,
        holders=(Holder(LinkKind.GLOBAL, links=[Link(LinkKind.GLOBAL, "images")]),),
        remedies=(Remedy("clear_container", "It only grows."),),
    )
    assert is_minor(growth, examine(load(write_run(tmp_path / "run.json", trace)))) is minor


@pytest.mark.parametrize("beside", [False, True])
def test_a_few_bytes_with_a_graph_are_a_headline_where_nothing_more_leaks(beside, tmp_path):
    """An exception that is kept may have a number seen of it, and hundreds of MiB that were not."""

    def program():
        base, net = torch.zeros(16 << 20), nn.Linear(2, 2)
        losses, results = [], []

        def step(number):
            losses.append(net(torch.ones(1, 2)).square().mean())
            if beside:
                results.append(torch.zeros(64 << 10))
            return base

        return step

    found = findings_of(program, tmp_path / "run.json", steps=30)
    growing = [one for one in found if one.bytes_per_step]
    (headline,) = [one for one in growing if not one.minor]
    assert (headline.bytes_per_step == 256 << 10) is beside
    assert len(growing) == 1 + beside


def compare(blocks):
    """Each with all of them, which is most of what the job does."""
    for query in blocks:
        for block in blocks:
            torch.addmm(torch.zeros(1), query, block.T).topk(2)


def compare_labelled(blocks):
    """The same, where a small label is kept beside each."""
    compare([block for block, _ in blocks])


def go_on(blocks):
    """Most of what the job does has nothing to do with what was made first."""
    for _ in range(len(blocks) ** 2):
        torch.randn(64, 64).topk(2)


@pytest.mark.parametrize(("work", "is_minor"), [(compare, True), (go_on, False)])
def test_what_is_made_first_and_then_worked_with_is_no_leak(work, is_minor, tmp_path):
    def works():
        model, blocks = nn.Linear(64, 64), []

        @torch.no_grad()
        def step(number):
            blocks.append(model(torch.randn(1024, 64)))
            if number == 23:
                work(blocks)
                blocks.clear()

        return step

    found = [one for one in findings_of(works, tmp_path / "run.json", 24) if one.bytes_per_step]
    assert [one.minor for one in found[:1]] == [is_minor]


def test_small_labels_beside_what_is_worked_with_change_nothing(tmp_path):
    def works():
        model, blocks = nn.Linear(64, 64), []

        @torch.no_grad()
        def step(number):
            blocks.append((model(torch.randn(1024, 64)), torch.ones(1024)))
            if number == 23:
                compare_labelled(blocks)
                blocks.clear()

        return step

    found = [one for one in findings_of(works, tmp_path / "run.json", 24) if one.bytes_per_step]
    assert found
    assert all(one.minor for one in found)


class Columns(nn.Module):
    """A network that gets a part more for each task."""

    def __init__(self, uses):
        super().__init__()
        self.columns, self.uses = nn.ModuleList(), uses

    def forward(self, x):
        with torch.no_grad():
            for column in self.columns[self.uses :]:
                column(x)
        return self.columns[-1](x)


@pytest.mark.parametrize(
    ("every", "uses", "is_minor"),
    [(4, 0, True), (4, -1, False), (1, 0, False)],
    ids=["all are called", "the last is called", "one for each call"],
)
def test_a_network_that_is_to_grow_needs_the_parts_that_it_calls(every, uses, is_minor, tmp_path):
    def grows():
        net = Columns(uses)

        def step(number):
            if number % every == 0:
                net.columns.append(nn.Linear(128, 128))
            net(torch.randn(4, 128)).sum().backward()
            net.zero_grad()

        return step

    found = [one for one in findings_of(grows, tmp_path / "run.json", 48) if one.bytes_per_step]
    assert [one.minor for one in found[:1]] == [is_minor]


@pytest.mark.parametrize(("rows", "is_minor"), [(4, True), (12, False)])
def test_small_results_beside_a_large_peak_are_no_headline(rows, is_minor, tmp_path):
    def collecting():
        histories = []

        def step(number):
            torch.ones(16 << 20).sum()  # 64 MiB
            histories.append(torch.ones(rows, 1024))

        return step

    every = findings_of(collecting, tmp_path / "run.json", steps=24)
    (found,) = [one for one in every if one.bytes_per_step]
    assert (found.bytes_per_step, found.minor) == (rows * 4096, is_minor)


def growth_in(path, code, stack, rule, line=0, **more):
    """Growth of 8 MiB in a job with a peak of 64 MiB, at a line of some code or the last one."""
    path.write_text(code)
    lines = code.splitlines()[: line or None]
    frames = tuple(
        Frame(name, str(path) if line else "torch/nn/modules/module.py", line)
        for name, line in stack
    )
    return RuleFinding(
        Kind.LEAK,
        "cpu",
        Site(str(path), len(lines), "main", lines[-1].strip()),
        "grows",
        bytes_per_step=8 << 10,
        bytes=8 << 20,
        stack=frames,
        rule=rule,
        remedies=(Remedy("clear_container", "", str(path), len(lines), rule=rule),),
        **more,
    )


def a_job(tmp_path):
    trace = TraceBuilder(device="cpu")
    for step in range(8):
        trace.label(step=step).alloc(64 << 20, f"work{step}").free(f"work{step}")
    return examine(load(write_run(tmp_path / "run.json", trace.build())))


SPEAKS = """\
def speak(model, ids, most):
    {loop}
        for _ in range(4):
            ids = model(ids)
"""


@pytest.mark.parametrize(
    ("loop", "is_minor_there"),
    [
        ("while ids.size(1) < most:", True),
        ("while len(ids) < most:", True),
        ("while ids.shape[-1] < most:", True),
        ("while True:", False),  # a service
        ("for ids in most:", False),  # several texts
    ],
)
def test_a_cache_that_grows_with_one_text_is_no_headline(loop, is_minor_there, tmp_path):
    stack = [("forward", 0), ("Module._call_impl", 0), ("speak", 4), ("main", 0)]
    found = growth_in(tmp_path / "a.py", SPEAKS.format(loop=loop), stack, "generation-cache")
    assert is_minor(found, a_job(tmp_path)) is is_minor_there


TRACKS = """\
def drop(self):
    self.samples = {kept}
def add(self, track, x):
    self.samples[track].append(x)
"""


@pytest.mark.parametrize(
    ("kept", "confidence", "is_minor_there"),
    [
        ("{t: self.samples[t] for t in self.tracks}", 0.66, True),
        ("{t: self.samples[t] for t in self.tracks}", 0.97, False),
        ("{t: [] for t in self.tracks}", 0.66, False),
        ("dict(self.tracks)", 0.66, False),
    ],
)
def test_what_is_sorted_out_is_a_headline_where_it_surely_grows(
    kept, confidence, is_minor_there, tmp_path
):
    code = TRACKS.format(kept=kept)
    found = growth_in(
        tmp_path / "a.py", code, [("add", 4)], "growing-container", confidence=confidence
    )
    assert is_minor(found, a_job(tmp_path)) is is_minor_there


SHEETS = """\
def main(net, fixed):
    sheets = []
    for step in range(120):
        train(net)
        if step % 24 == 23:
            sheets.append(net(fixed))
    print(torch.{last})
"""


@pytest.mark.parametrize(
    ("last", "is_minor_there"),
    [("stack(sheets).mean()", True), ("cat([*sheets])", False), ("sum(sheets[-1])", False)],
)
def test_what_is_joined_after_the_loop_is_a_result_whoever_holds_it(last, is_minor_there, tmp_path):
    """No search had looked for its holder: five sheets had come by the end."""
    code = SHEETS.format(last=last)
    stack = [("main", 6)]
    found = growth_in(tmp_path / "a.py", code, stack, "kept-attribute", line=6)
    assert is_minor(found, a_job(tmp_path)) is is_minor_there


FLAT = """\
parts = []
for x in data:
    parts.append(model(x))
print({last})
"""


@pytest.mark.parametrize(
    ("last", "kind", "is_minor_there"),
    [
        ("torch.cat(parts).shape", LinkKind.GLOBAL, True),
        ("parts[0].shape", LinkKind.GLOBAL, False),
        ("torch.cat(parts).shape", LinkKind.LOCAL, False),  # of another function's variable
    ],
)
def test_what_a_file_joins_after_its_loop_is_a_result(last, kind, is_minor_there, tmp_path):
    path = tmp_path / "a.py"
    links = [Link(kind, "parts", "__main__", str(path), 3), Link(LinkKind.ITEM, "3", "list")]
    holders = (Holder(LinkKind.ITEM, str(path), 3, "parts.append(model(x))", links),)
    found = growth_in(
        *(path, FLAT.format(last=last), [("<module>", 3)], "growing-container", 3),
        holders=holders,
        growth=Growth(kept_itself=1.0),
    )
    assert is_minor(found, a_job(tmp_path)) is is_minor_there


@pytest.mark.parametrize(
    ("before", "after", "is_minor_there"),
    [(64 << 20, 63 << 20, True), (64 << 20, 34 << 20, False), (-1, -1, False)],
    ids=["beside the peak", "at the peak", "not known"],
)
def test_what_a_loop_completes_is_a_headline_where_its_copies_make_the_peak(
    before, after, is_minor_there, tmp_path
):
    found = growth_in(tmp_path / "a.py", FLAT, [("<module>", 3)], "grown-by-concatenation", 3)
    first = replace(found.remedies[0], fix="preallocate", peak_before=before, peak_after=after)
    found = replace(found, remedies=(first,))
    assert is_minor(found, a_job(tmp_path)) is is_minor_there
