"""Rules for caches, metrics, registries, views, checkpoints and the allocator."""

from __future__ import annotations

import numpy as np
import pytest

from memprof.reference_chain import Link, LinkKind
from memprof.rules import allocator_settings
from memprof.rules.finding import Kind
from memprof.rules.fixes import FIXES
from memprof.rules.waste.fragmentation import Holes
from memprof.rules.waste.loaded import LoadedCheckpoint
from tests.rules.bench import LOOP, Bench, fixes


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


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


IN_FLIGHT = """\
class Service:
    def embed(self, request):
        key = (request.user, request.number)
        task = self.waiting.get(key)
        if task is None:
            task = self.waiting[key] = self.start(request)
            task.add_done_callback(lambda _: self.waiting.pop(REMOVED, None))
        return task
"""


@pytest.mark.parametrize(
    ("removed", "expected"),
    [
        ("request.number", ["clear_container", "bound_cache"]),
        ("key", ["bound_cache"]),
        ("(request.user, request.number)", ["bound_cache"]),
        ("next(iter(self.waiting))", ["bound_cache"]),
        ("self.oldest", ["bound_cache"]),
    ],
)
def test_a_removal_that_misses_the_key_is_told_before_a_bound(bench, removed, expected):
    bench.write(IN_FLIGHT.replace("REMOVED", removed))
    line = "task = self.waiting[key] = "
    holder = bench.holder(line, ("attribute", "waiting", -1), ("item", "(1, 2)", 40))
    advice = bench.advise(line, holder)
    assert [one.fix for one in advice][: len(expected)] == expected
    if len(expected) > 1:
        assert advice[0].why.endswith(
            "`task.add_done_callback(lambda _: self.waiting.pop(request.number, None))` takes nothing "
            "out, as entries are put in under `(request.user, request.number)`: take out that key."
        )


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


COLLECTED = """\
import library

trainer = library.Trainer()


def training_step(self, x):
    self.recall(x)
    return loss(self.net(x))
"""


def test_what_a_librarys_object_collects_is_emptied_where_it_is_called(bench):
    bench.write(COLLECTED)
    links = [
        ("global", "trainer", -1),
        ("module_attribute", "model.recall", -1),
        ("module_attribute", "preds", -1),
        ("item", "3", 40),
    ]
    first = bench.advise("self.recall(x)", bench.holder("trainer = ", *links))[0]
    assert (first.fix, first.line) == ("clear_container", bench.line("self.recall(x)"))
    assert "`self.recall` its `preds` (40 items) becomes longer" in first.why
    elsewhere = bench.advise("self.net(x)", bench.holder("trainer = ", *links))
    assert fixes(elsewhere) == ["del_ref"]


OWN = """\
class Recall:
    def forward(self, x):
        self.preds.append(x)


def training_step(self, x):
    self.recall(x)
    return loss(self.net(x))
"""


def test_what_the_programs_own_object_collects_is_emptied_where_it_is_filled(bench):
    bench.write(OWN)
    links = [
        ("module_attribute", "model.recall", -1),
        ("attribute", "preds", -1),
        ("item", "3", 40),
    ]
    remedies = bench.advise("self.recall(x)", bench.holder("append", *links))
    cleared = next(remedy for remedy in remedies if remedy.fix == "clear_container")
    assert cleared.line == bench.line("append")
    assert cleared.why == (
        "`self.preds` (40 items) only grows: empty it when it has been used, or keep the last few "
        "(`deque(maxlen=…)`)."
    )


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
    holder = bench.holder(
        "append", ("item", "0", 9), Link(LinkKind.BASE, shown_bytes=64, storage_bytes=4096)
    )
    first = bench.advise("out = net", holder)[0]
    assert (first.fix, first.line) == ("clone_view", 4)
    assert "+    kept.append(first.clone())" in first.patch
    assert first.saves_bytes == 4096 - 64


PARTS = """\
def step(kept, part):
    name = part["name"]
    rows = part["rows"]
    whole = rows.square()
    row = rows[0]
    {}
"""
VIEW = Link(LinkKind.BASE, shown_bytes=64, storage_bytes=4096)


@pytest.mark.parametrize(
    ("keep", "inside", "patched"),
    [
        ("kept.append((name, rows[:2]))", ["1"], "kept.append((name, rows[:2].clone()))"),
        ("kept.append([row, name])", ["0"], "kept.append([row.clone(), name])"),
        (
            "kept.append({'n': name, 'r': row})",
            ["'r'"],
            "kept.append({'n': name, 'r': row.clone()})",
        ),
        ("kept[name] = rows[0]", [], "kept[name] = rows[0].clone()"),
        ("kept[name]['x'].append(row)", ["x", "0"], "kept[name]['x'].append(row.clone())"),
        ("kept.append((name, rows[:2]))", [], ""),
        ("kept.append((name, whole))", ["1"], ""),
        ("kept.append((*name, rows[:2]))", ["1"], ""),
        ("row.add_(1); kept.append(row)", [], ""),
        ("row.add_(1)\n    kept.append(row)", [], ""),
        ("kept.append(make(rows[:2]))", ["1"], ""),
    ],
)
def test_of_several_things_that_are_kept_the_chain_says_which_to_clone(
    bench, keep, inside, patched
):
    bench.write(PARTS.format(keep))
    links = [("item", name, 2) for name in inside]
    line = keep.splitlines()[-1].strip()
    holder = bench.holder(line, ("local", "kept", -1), ("item", "0", 9), *links, VIEW)
    first = bench.advise("def step", holder)[0]
    assert first.fix == "clone_view"
    assert [one[1:].strip() for one in first.patch.splitlines()[2:] if one[0] == "+"] == (
        [patched] if patched else []
    )


def test_a_name_that_holds_no_tensor_itself_has_no_figure_of_what_letting_go_would_save(bench):
    bench.write(LOOP)
    graph = ("autograd_node", "MeanBackward0", -1), ("saved_tensor", "self", -1)
    for links, saves in (
        ((("local", "loss", -1),), True),
        ((("local", "loss", -1), *graph), False),
    ):
        holder = bench.holder("loss = net", *links)
        (remedy,) = [r for r in bench.advise("loss = net", holder) if r.fix == "del_ref"]
        assert (remedy.saves_bytes > 0) is saves


def test_expandable_segments_are_not_advised_where_they_are_on(bench):
    bench.write("x = f()\n")
    bench.sizes = tuple(megabytes << 20 for megabytes in range(30, 60, 3))
    holes = Holes(0, np.zeros(0, dtype=np.int64), 4096, sizes=20)
    first, *rest = bench.advise("x = f", rule="fragmentation", match=holes)
    assert (first.fix, first.saves_bytes) == (
        "expandable_segments",
        first.peak_before - first.peak_after,
    )
    assert first.peak_after < first.peak_before // 2
    assert "static_shapes" in fixes(rest)
    bench.settings = {"expandable_segments": True}
    assert fixes(bench.advise("x = f", rule="fragmentation", match=holes)) == ["static_shapes"]


def test_a_split_limit_is_not_advised_where_it_is_set(bench, monkeypatch):
    monkeypatch.setattr(allocator_settings, "MOST_EVENTS", 0)  # nothing is replayed
    bench.write("x = f()\n")
    offered = fixes(bench.advise("x = f", rule="growing-fragmentation"))
    assert offered == ["expandable_segments", "max_split_size"]
    bench.settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}
    assert fixes(bench.advise("x = f", rule="growing-fragmentation")) == ["expandable_segments"]


def test_empty_cache_is_never_advised_for_tensors_that_are_alive(bench):
    bench.write(LOOP)
    for kind in (Kind.LEAK, Kind.CYCLE, Kind.WASTE, Kind.FRAGMENTATION):
        assert "empty_cache" not in fixes(bench.advise("append", kind=kind))


def test_an_empty_cache_call_in_every_step_is_taken_out(bench):
    bench.write("def step():\n    train()\n    torch.cuda.empty_cache()\n")
    (first,) = bench.advise("train", rule="cache-emptied")
    assert first.fix == "drop_empty_cache"
    assert "-    torch.cuda.empty_cache()" in first.patch


def test_of_several_empty_cache_calls_none_is_taken_out_unseen(bench):
    bench.write("def step():\n    torch.cuda.empty_cache()\n    torch.cuda.empty_cache()\n")
    (first,) = bench.advise("def step", rule="cache-emptied")
    assert (first.line, first.patch) == (2, "")


def test_a_method_that_is_merely_called_empty_cache_is_left_alone(bench):
    bench.write("def step(store):\n    store.empty_cache()\n")
    (first,) = bench.advise("def step", rule="cache-emptied")
    assert (first.line, first.patch) == (1, "")


WRAPPED = """\
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

critic = DDP(critic, gradient_as_bucket_view=True)
actor = DDP(actor, device_ids=[0])
"""


def of_buckets(bench, site):
    return bench.advise(site, rule="buckets")[0]


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
    (only,) = bench.advise("job = ", holder, rule="idle-holder")
    assert (only.fix, only.line) == ("del_ref", 3)
    assert "`del job` at the end of the loop's body" in only.why


def test_a_loaded_checkpoint_goes_to_the_host(bench):
    bench.write("ckpt = torch.load(path, map_location=device)\n")
    match = LoadedCheckpoint(0, np.zeros(0, int), 4096, name="ckpt")
    first, second = bench.advise("ckpt", rule="loaded", match=match)
    assert first.fix == "map_location_cpu"
    assert second.why == "Drop `ckpt` once the model has been filled from it."
    assert '+ckpt = torch.load(path, map_location="cpu")' in first.patch


def test_at_most_three_remedies_and_each_of_the_vocabulary(bench):
    bench.write(METRIC)
    holder = bench.holder("append", ("attribute", "values", -1), ("item", "0", 9))
    remedies = bench.advise("append", holder, category="activation")
    assert len(remedies) == 3
    assert all(r.fix in FIXES and r.page == f"memprof explain {r.fix}" for r in remedies)


def test_an_entry_that_is_joined_with_more_and_more_is_told_to_be_allocated_once(bench):
    bench.write(
        "def validate(state, out):\n"
        '    state["preds"] = out if state is None else torch.cat([state["preds"], out])\n'
    )
    remedies = bench.advise("torch.cat")
    assert {"preallocate", "cpu_offload"} <= set(fixes(remedies))
    assert '`state["preds"]`' in remedies[0].why or "`state['preds']`" in remedies[0].why


def test_parametrizations_that_pile_up_are_told_where_they_are_registered(bench):
    bench.write(
        "def step(layer):\n"
        '    register_parametrization(layer, "weight", Noise(layer.weight))\n'
        "    layer(x).sum().backward()\n"
    )
    held = bench.holder(
        "layer(x)", ("local", "layer", -1), ("buffer", "parametrizations.weight.3.eps", -1)
    )
    first, *_ = bench.advise("layer(x)", held)
    assert (first.fix, first.line) == ("del_ref", 2)
    assert "`remove_parametrizations`" in first.why


@pytest.mark.parametrize(("items", "fix"), [(9, "clone_view"), (640, "clear_container")])
def test_rows_that_share_the_storage_of_a_batch_are_not_cloned(bench, items, fix):
    """Of 640 views of 64 bytes 64 show a storage of 4 KiB whole: ten of these were made."""
    bench.write(PARTS.format("kept.append(row)"))
    holder = bench.holder("kept.append(row)", ("local", "kept", -1), ("item", "0", items), VIEW)
    first = bench.advise("def step", holder, nbytes=40960)[0]
    assert first.fix == fix
