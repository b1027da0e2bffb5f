from __future__ import annotations

import ast
from pathlib import Path

import pytest

from memprof.advice import FIXES, advise
from memprof.advice.source import accumulated, growing, is_cut_off
from memprof.analysis.findings import Evidence, Found, Kind
from memprof.analysis.program import program_of
from memprof.analysis.scene import site_at
from memprof.loading import load
from memprof.records import Holder, Link
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Frame, Phase

DOCS = Path(__file__).resolve().parents[2] / "docs" / "fixes"


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


class Bench:
    """A source file, a run, and findings about lines of that file."""

    def __init__(self, folder):
        self.folder = folder
        self.settings = {}
        self.backward = True
        self.sizes = ()

    def write(self, text):
        self.file = self.folder / "train.py"
        self.file.write_text(text)
        self.lines = text.splitlines()
        return self

    def line(self, text):
        return next(n for n, line in enumerate(self.lines, 1) if text in line)

    def holder(self, text, *links, description="list `kept`"):
        line = self.line(text)
        made = [Link(kind, name, length=length) for kind, name, length in links]
        return Holder(description, links[-1][0], str(self.file), line, self.lines[line - 1], made)

    def advise(self, site, *holders, kind=Kind.LEAK, category="", allocs=(), nbytes=4096, **facts):
        trace = TraceBuilder(device="cuda:0", settings=self.settings)
        trace.label(step=0, phase=Phase.BACKWARD if self.backward else Phase.FORWARD)
        trace.alloc(512, "x")
        for size in self.sizes:  # each cuts a segment of its own that fits no later one
            trace.alloc(size, "large").alloc(512, f"small{size}").free("large")
        write_run(self.folder / "run.json", trace.build())
        frame = Frame("step", str(self.file), self.line(site))
        found = Found(
            kind=kind,
            device="cuda:0",
            site=site_at(frame),
            title="",
            bytes=nbytes,
            bytes_per_step=nbytes,
            stack=(frame,),
            category=category,
            holders=holders,
            evidence=Evidence(0, allocs, facts) if len(allocs) else Evidence(0, facts=facts),
        )
        return advise(found, load(self.folder / "run.json"))


def fixes(remedies):
    return [remedy.fix for remedy in remedies]


LOOP = """\
def step(net, kept):
    loss = net().mean()
    kept.append(loss)
    loss.backward()
"""


def test_every_fix_has_a_page_with_the_four_parts():
    assert {page.stem for page in DOCS.glob("*.md")} - {"README"} == set(FIXES)
    for fix in FIXES:
        text = (DOCS / f"{fix}.md").read_text()
        for part in ("## The pattern", "## Why it costs memory", "## The fix", "## When not to"):
            assert part in text
        assert text.count("```python") == 2


def test_a_list_that_keeps_graphs_is_told_to_detach(bench):
    bench.write(LOOP)
    through_graph = bench.holder(
        "append",
        ("item", "0", 9),
        ("autograd_node", "MeanBackward0", -1),
        ("saved_tensor", "a", -1),
    )
    first, *rest = bench.advise("loss = net", through_graph)
    assert (first.fix, first.line, first.code) == ("detach", 3, "kept.append(loss)")
    assert "+    kept.append(loss.detach())" in first.patch
    assert "item" in fixes(rest)


def test_detaching_what_is_kept_after_its_backward_pass_is_said_to_free_no_tensor(bench):
    bench.write(LOOP)
    remedies = bench.advise(
        "loss = net", bench.holder("append", ("item", "0", 9)), category="activation"
    )
    detach = next(remedy for remedy in remedies if remedy.fix == "detach")
    assert detach.saves_bytes == 0
    assert "host memory" in detach.why
    assert remedies[0].fix == "cpu_offload"
    assert remedies[0].saves_bytes == 4096


def test_a_kept_tensor_of_one_number_is_told_to_be_the_number(bench):
    bench.write(LOOP)
    remedies = bench.advise(
        "loss = net", bench.holder("append", ("item", "0", 9)), category="activation", nbytes=512
    )
    assert remedies[0].fix == "item"
    assert "+    kept.append(loss.item())" in remedies[0].patch


def test_a_running_sum_on_the_host_is_said_to_keep_graph_nodes(bench):
    bench.write("def step(s, loss):\n    s.total = s.total + loss\n")
    holder = bench.holder(
        "s.total", ("attribute", "total", -1), ("autograd_node", "AddBackward0", -1)
    )
    first, second = bench.advise("s.total", holder, kind=Kind.HOST_GROWTH)[:2]
    assert fixes([first, second]) == ["item", "detach"]
    assert "host memory" in first.why
    assert "+    s.total = s.total + loss.item()" in first.patch


THROUGH_GRAPH = (("autograd_node", "TanhBackward0", -1), ("saved_tensor", "result", -1))

CARRIED = """\
def train(cell, data, hidden):
    for x in data:
        hidden = cell(x, hidden)
        loss = hidden.mean()
        loss.backward(retain_graph=True)
"""


def test_a_state_that_carries_its_graph_is_detached_between_steps_and_the_graph_kept(bench):
    bench.write(CARRIED)
    holder = bench.holder("loss = hidden", ("local", "loss", -1), *THROUGH_GRAPH)
    first, *rest = bench.advise("hidden = cell", holder)
    assert (first.fix, first.line) == ("detach", 3)
    assert "+        hidden = cell(x, hidden.detach())" in first.patch
    assert "no_retain_graph" not in fixes(rest)


def test_within_a_step_no_patch_cuts_a_state_off(bench):
    bench.write(CARRIED.replace("loss.backward(retain_graph=True)", "kept = loss"))
    holder = bench.holder("loss = hidden", ("local", "loss", -1), *THROUGH_GRAPH)
    first = bench.advise("hidden = cell", holder)[0]
    assert (first.fix, first.patch) == ("detach", "")


def test_a_state_that_the_function_goes_on_to_use_is_not_cut_off_where_it_is_made(bench):
    text = "class Net:\n    def step(self, x):\n        self.out = self.net(x)\n"
    for rest in ("        return x\n", "        self.out.sum().backward()\n"):
        bench.write(text + rest)
        holder = bench.holder("self.out =", ("attribute", "out", -1), *THROUGH_GRAPH)
        patches = [r.patch for r in bench.advise("self.out =", holder) if r.fix == "detach"]
        assert bool(patches[0]) == rest.endswith("return x\n")


def test_one_of_several_results_is_not_detached_together_with_the_others(bench):
    bench.write("def step(s, x):\n    out, s.memory = s.net(x)\n    return out\n")
    holder = bench.holder("s.memory", ("attribute", "memory", -1), *THROUGH_GRAPH)
    first = bench.advise("s.memory", holder)[0]
    assert (first.fix, first.patch) == ("detach", "")


KEPT_GRAPHS = """\
def train(net, data, kept):
    for x in data:
        loss = net(x).mean()
        loss.backward(retain_graph=True)
        kept.append(loss)
"""


def test_retaining_is_named_where_a_container_keeps_the_graph_of_each_step(bench):
    bench.write(KEPT_GRAPHS)
    holder = bench.holder("kept.append", ("item", "3", 9), *THROUGH_GRAPH)
    remedies = bench.advise("loss = net", holder)
    assert fixes(remedies)[:2] == ["detach", "no_retain_graph"]
    assert "+        loss.backward()" in remedies[1].patch


def test_retaining_is_not_what_keeps_copies_of_weights(bench):
    bench.write(KEPT_GRAPHS.replace("kept.append(loss)", "kept.append(copy_of(net))"))
    holder = bench.holder("kept.append", ("item", "3", 9), ("item", "weight", 4))
    assert "no_retain_graph" not in fixes(bench.advise("copy_of", holder))


def test_only_the_last_pass_through_a_graph_is_told_not_to_retain_it(bench):
    second = "loss.backward(retain_graph=True)\n        (2 * loss).backward()"
    bench.write(KEPT_GRAPHS.replace("loss.backward(retain_graph=True)", second))
    holder = bench.holder("kept.append", ("item", "3", 9), *THROUGH_GRAPH)
    patches = {r.fix: r.patch for r in bench.advise("loss = net", holder)}
    assert not patches.get("no_retain_graph")


CACHE = """\
class Rotary:
    def forward(self, n):
        if n not in self.cache:
            self.cache[n] = self.table(n)
        return self.cache[n]
"""


def test_a_dict_that_is_asked_for_its_key_first_is_a_cache_without_bound(bench):
    bench.write(CACHE)
    holder = bench.holder("self.cache[n] = ", ("attribute", "cache", -1), ("item", "7", 40))
    assert bench.advise("self.cache[n] = ", holder)[0].fix == "bound_cache"


METRIC = """\
class Metric:
    def update(self, x):
        self.values.append(x)

    def compute(self):
        return cat(self.values)

    def reset(self):
        self.values = []
"""


def test_a_metric_is_told_to_be_reset_only_where_a_method_does_just_that(bench):
    bench.write(METRIC)
    holder = bench.holder("append", ("attribute", "values", -1), ("item", "0", 9))
    assert bench.advise("append", holder)[0].fix == "reset_metric"
    bench.write(METRIC.replace("self.values = []", "self.values = []\n        return self.score()"))
    assert "reset_metric" not in fixes(bench.advise("append", holder))


def test_models_in_a_list_are_let_go_rather_than_offloaded(bench):
    bench.write("def trial(folds, model):\n    folds.append(model)\n")
    links = [("item", "0", 9), ("parameter", "weight", -1)]
    remedies = bench.advise("append", bench.holder("append", *links), category="parameter")
    assert remedies[0].fix == "del_ref"
    assert "cpu_offload" not in fixes(remedies)


def test_a_registry_of_instances_becomes_weak(bench):
    bench.write("import torch\n\n\nclass Net:\n    everyone = set()\n")
    links = [("class_attribute", "everyone", -1), ("item", "0", 4), ("attribute", "table", -1)]
    holder = bench.holder("everyone", *links)
    first = bench.advise("everyone", holder)[0]
    assert first.fix == "weakref"
    assert "+import weakref" in first.patch
    assert "+    everyone = weakref.WeakSet()" in first.patch


def test_a_view_that_keeps_its_storage_is_cloned_and_leaves_only_its_own_bytes(bench):
    bench.write(
        "def step(kept, net):\n    out = net()\n    first = out[:, 0]\n    kept.append(first)\n"
    )
    holder = bench.holder("append", ("item", "0", 9), ("base", "64 of 4096 bytes", -1))
    first = bench.advise("out = net", holder)[0]
    assert (first.fix, first.line) == ("clone_view", 3)
    assert "+    first = out[:, 0].clone()" in first.patch
    assert first.saves_bytes == 4096 - 64


def test_expandable_segments_are_not_advised_where_they_are_on(bench):
    bench.write("x = f()\n")
    bench.sizes = tuple(megabytes << 20 for megabytes in range(30, 60, 3))
    facts = {"pattern": "fragmentation", "sizes_at_site": 20}
    first, *rest = bench.advise("x = f", kind=Kind.FRAGMENTATION, **facts)
    assert (first.fix, first.saves_bytes) == (
        "expandable_segments",
        first.peak_before - first.peak_after,
    )
    assert first.peak_after < first.peak_before // 2
    assert "static_shapes" in fixes(rest)
    bench.settings = {"expandable_segments": True}
    assert fixes(bench.advise("x = f", kind=Kind.FRAGMENTATION, **facts)) == ["static_shapes"]


def test_empty_cache_is_never_advised_for_tensors_that_are_alive(bench):
    bench.write(LOOP)
    for kind in (Kind.LEAK, Kind.CYCLE, Kind.WASTE, Kind.FRAGMENTATION):
        assert "empty_cache" not in fixes(bench.advise("append", kind=kind))


def test_an_empty_cache_call_in_every_step_is_taken_out(bench):
    bench.write("def step():\n    train()\n    torch.cuda.empty_cache()\n")
    (first,) = bench.advise("train", kind=Kind.WASTE, pattern="cache_emptied")
    assert first.fix == "drop_empty_cache"
    assert "-    torch.cuda.empty_cache()" in first.patch


def test_of_several_empty_cache_calls_none_is_taken_out_unseen(bench):
    bench.write("def step():\n    torch.cuda.empty_cache()\n    torch.cuda.empty_cache()\n")
    (first,) = bench.advise("def step", kind=Kind.WASTE, pattern="cache_emptied")
    assert (first.line, first.patch) == (2, "")


def test_a_method_that_is_merely_called_empty_cache_is_left_alone(bench):
    bench.write("def step(store):\n    store.empty_cache()\n")
    (first,) = bench.advise("def step", kind=Kind.WASTE, pattern="cache_emptied")
    assert (first.line, first.patch) == (1, "")


WRAPPED = """\
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

critic = DDP(critic, gradient_as_bucket_view=True)
actor = DDP(actor, device_ids=[0])
"""


def of_buckets(bench, site):
    return bench.advise(site, kind=Kind.WASTE, pattern="buckets")[0]


def test_the_wrapper_that_copies_its_gradients_is_the_one_that_is_patched(bench):
    bench.write(WRAPPED)
    first = of_buckets(bench, "from torch import")
    assert (first.fix, first.line) == ("bucket_view", 5)
    assert "+actor = DDP(actor, device_ids=[0], gradient_as_bucket_view=True)" in first.patch


def test_of_two_wrappers_the_one_that_made_the_buckets_is_patched_or_none(bench):
    bench.write(WRAPPED.replace("=True", "=False"))
    assert of_buckets(bench, "from torch import").patch == ""
    first = of_buckets(bench, "critic =")
    assert first.line == 4
    assert "+critic = DDP(critic, gradient_as_bucket_view=True)" in first.patch


def test_a_wrapper_whose_arguments_are_not_in_sight_is_named_without_a_patch(bench):
    bench.write("import torch\nnet = torch.nn.parallel.DistributedDataParallel(net, **options)\n")
    first = of_buckets(bench, "import torch")
    assert (first.line, first.patch) == (2, "")


def test_a_class_of_the_same_name_that_is_not_torch_s_is_not_patched(bench):
    bench.write("from fast.parallel import DistributedDataParallel\n"
                "net = DistributedDataParallel(net)\n")  # fmt: skip
    first = of_buckets(bench, "from fast")
    assert (first.line, first.patch) == (1, "")


def test_what_a_waiting_thread_has_a_name_for_is_told_to_be_dropped_there(bench):
    bench.write("def work(jobs):\n    while True:\n        job = jobs.get()\n        run(job)\n")
    holder = bench.holder("job = ", ("thread", "Thread-1", -1), ("local", "job", -1))
    (only,) = bench.advise("job = ", holder, kind=Kind.WASTE, pattern="pinned")
    assert (only.fix, only.line) == ("del_ref", 3)
    assert "`del job` at the end of the loop's body" in only.why


def test_a_loaded_checkpoint_goes_to_the_host(bench):
    bench.write("ckpt = torch.load(path, map_location=device)\n")
    first = bench.advise("ckpt", kind=Kind.WASTE, pattern="loaded", target="ckpt")[0]
    assert first.fix == "map_location_cpu"
    assert '+ckpt = torch.load(path, map_location="cpu")' in first.patch


def test_at_most_three_remedies_and_each_of_the_vocabulary(bench):
    bench.write(METRIC)
    holder = bench.holder("append", ("attribute", "values", -1), ("item", "0", 9))
    remedies = bench.advise("append", holder, category="activation")
    assert len(remedies) == 3
    assert all(r.fix in FIXES and r.page == f"memprof explain {r.fix}" for r in remedies)


def test_without_the_source_there_is_advice_without_patches(bench):
    bench.write(LOOP)
    holder = bench.holder("append", ("item", "0", 9))
    bench.file.rename(bench.folder / "gone.py")
    remedies = bench.advise("append", holder, category="activation")
    assert remedies
    assert not any(remedy.patch for remedy in remedies)


@pytest.mark.parametrize(
    ("value", "cut_off"),
    [
        ("x.mean().detach()", True),
        ("x.detach().clone()", True),
        ("loss.item()", True),
        ("x.data", True),
        ("x.detach()[0]", True),
        ("kept", True),
        ("both", False),
        ("x.detach().mul(w)", False),
        ("net(x.detach())", False),
        ("x", False),
    ],
)
def test_what_has_no_graph_by_its_own_words(bench, value, cut_off):
    text = f"def step(x, w):\n    kept = x.detach()\n    both = w\n    both = x.detach()\n    a.append({value})\n"
    place = program_of(str(bench.write(text).file)).at(5)
    assert is_cut_off(place, growing(place).values[-1]) is cut_off


def test_a_tensor_that_is_detached_where_it_is_kept_is_not_to_be_detached(bench):
    bench.write(LOOP.replace("append(loss)", "append(loss.detach())"))
    holder = bench.holder("append", ("local", "kept", -1), ("item", "0", 9))
    said = bench.advise("append", holder, category="activation", activation_share=1.0)
    assert not {"detach", "item", "no_grad"} & set(fixes(said))


METER = """\
class Meter:
    def update(self, value, n=1):
        self.values.append(value)

    def watch(self, value):
        self.update(value)


def step(net, meter, seen):
    seen.update(net)
    loss = net().mean()
    meter.watch(loss)
"""


def test_a_value_handed_over_is_cut_off_at_the_call_that_hands_it_over(bench):
    bench.write(METER)
    held = bench.holder(
        "values.append",
        ("local", "meter", -1),
        ("attribute", "values", -1),
        ("item", "0", 9),
        ("autograd_node", "MeanBackward0", -1),
        ("saved_tensor", "self", -1),
    )
    by_fix = {r.fix: r for r in bench.advise("net().mean()", held, in_graph=True)}
    assert by_fix["detach"].code == "self.values.append(value)"
    assert by_fix["item"].code == "meter.watch(loss)"
    assert "+    meter.watch(loss.item())" in by_fix["item"].patch


def test_a_value_made_where_it_is_kept_has_no_other_call(bench):
    bench.write("def step(net, kept):\n    out = net()\n    kept.append(out)\n\n\nstep(1, 2)\n")
    held = bench.holder("kept.append", ("local", "kept", -1), ("item", "0", 9))
    assert {r.code for r in bench.advise("net()", held)} == {"kept.append(out)"}


BUS = """\
class Bus:
    def subscribe(self, callback):
        self.listeners.append(callback)


class Probe:
    def __init__(self, bus):
        self.table = zeros(9)
        bus.subscribe(self.heard)
"""


def test_listeners_that_keep_their_objects_should_be_registered_weakly(bench):
    bench.write(BUS)
    held = bench.holder(
        "listeners.append",
        ("global", "bus", -1),
        ("attribute", "listeners", -1),
        ("item", "0", 9),
        ("bound_method", "__self__", -1),
        ("attribute", "table", -1),
    )
    best = bench.advise("zeros(9)", held)[0]
    assert (best.fix, best.code) == ("weakref", "bus.subscribe(self.heard)")


TRIALS = """\
class Trial:
    def note(self, key, value):
        self.notes[key] = value


def objective(trials, trial):
    model = build()
    trials.append(trial)
    trial.note("model", model)
"""


def test_models_that_items_of_a_container_keep_are_dropped_where_they_are_given_away(bench):
    bench.write(TRIALS)
    held = bench.holder(
        "trials.append",
        ("global", "trials", -1),
        ("item", "0", 9),
        ("attribute", "notes", -1),
        ("item", "'model'", 1),
        ("parameter", "weight", -1),
    )
    at = bench.line("self.notes[key]")
    held.links[2] = Link("attribute", "notes", "Trial", str(bench.file), at)
    best = bench.advise("build()", held, category="parameter")[0]
    assert (best.fix, best.code) == ("del_ref", 'trial.note("model", model)')


CYCLE = """\
class Trainer:
    def __init__(self, callbacks):
        self.callbacks = callbacks
        for callback in callbacks:
            callback.trainer = self
"""


def test_a_cycle_is_told_by_two_of_its_links(bench):
    bench.write(CYCLE)
    held = bench.holder("callback.trainer", ("cycle", "", 4), ("attribute", "callbacks", -1))
    at = bench.line("self.callbacks")
    held.links[1] = Link("attribute", "callbacks", "Trainer", str(bench.file), at)
    remedies = bench.advise("callback.trainer", held, kind=Kind.CYCLE)
    assert {r.fix: r.code for r in remedies if r.fix in ("break_cycle", "weakref")} == {
        "break_cycle": "callback.trainer = self",
        "weakref": "self.callbacks = callbacks",
    }


@pytest.mark.parametrize(
    ("statement", "container", "values", "keyed"),
    [
        ("kept += [x]", "kept", ["x"], False),
        ("self.kept = self.kept + [x]", "self.kept", ["x"], False),
        ("self.kept = [*self.kept, x]", "self.kept", ["x"], False),
        ("kept[len(kept):] = [x]", "kept", ["x"], False),
        ("kept.update({name: x})", "kept", ["x"], True),
        ("kept.update(dict(zip(names, x)))", "kept", ["dict(zip(names, x))"], True),
    ],
)
def test_a_container_grows_in_many_ways(statement, container, values, keyed, tmp_path):
    file = tmp_path / "grown.py"
    file.write_text(statement)
    place = program_of(str(file)).at(1)
    found = growing(place)
    assert (found.container, [ast.unparse(v) for v in found.values], found.keyed) == (
        container,
        values,
        keyed,
    )
    assert accumulated(place) is None


@pytest.mark.parametrize("statement", ["meter.update(x)", "total = total + x", "a = [b, x]"])
def test_what_only_looks_like_a_container_does_not_grow(statement, tmp_path):
    file = tmp_path / "plain.py"
    file.write_text(statement)
    assert growing(program_of(str(file)).at(1)) is None


METACLASS = """\
class Once(type):
    made = {}

    def __call__(cls, n):
        if n not in cls.made:
            cls.made[n] = super().__call__(n)
        return cls.made[n]
"""


def test_a_cache_of_a_class_is_bounded_where_it_is_filled(bench):
    bench.write(METACLASS)
    links = [("class_attribute", "made", -1), ("item", "3", 40), ("attribute", "table", -1)]
    best = bench.advise("super()", bench.holder("made = {}", *links))[0]
    assert (best.fix, best.code) == ("bound_cache", "cls.made[n] = super().__call__(n)")


def test_tensors_of_a_class_attribute_are_not_to_be_held_weakly(bench):
    bench.write("class Log:\n    kept = []\n\n\ndef step(x):\n    Log.kept.append(x)\n")
    links = [("class_attribute", "kept", -1), ("item", "3", 40)]
    remedies = bench.advise("def step", bench.holder("kept = []", *links))
    assert "weakref" not in fixes(remedies)
    by_fix = {r.fix: r.code for r in remedies}
    assert by_fix["clear_container"] == "Log.kept.append(x)"


def test_a_part_of_an_array_is_copied_as_arrays_are(bench):
    bench.write("def step(kept, probs):\n    kept.append(probs.numpy()[:, 1])\n")
    held = bench.holder("kept.append", ("local", "kept", -1), ("item", "3", 40))
    held.links.append(Link("base", "32 of 128 bytes", "ndarray"))
    best = bench.advise("kept.append", held)[0]
    assert best.fix == "clone_view"
    assert "+    kept.append(probs.numpy()[:, 1].copy())" in best.patch
