"""What the job itself finds out about memory that stays: without holding, changing or slowing it."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import NamedTuple

import pytest

import memprof
from memprof.trace import EMPTY, Category, Label

torch = pytest.importorskip("torch", reason="survivors are torch's tensors")

from memprof.referrers import bounded_search as searches  # noqa: E402 - it imports torch
from memprof.referrers import survivors as watch  # noqa: E402 - it imports torch
from memprof.referrers.gc_watch import Collections  # noqa: E402 - it imports torch
from memprof.referrers.graph_growth import GraphGrowth, LongestGraph, longest_graph  # noqa: E402 - it imports torch
from memprof.referrers.pause_estimate import PauseEstimate  # noqa: E402 - it imports torch
from memprof.referrers.search_candidates import residents, stackless, suspects  # noqa: E402 - it imports torch
from memprof.referrers.search_from_tensors import UpwardSearch  # noqa: E402 - it imports torch
from memprof.sources.cpu.live_storages import LivingStorages  # noqa: E402 - beside torch
from tests import forks  # noqa: E402


class Storage(NamedTuple):
    cdata: int
    label: int
    stack: int = 1
    size: int = 100
    category: int = 0


def columns(storages):
    """What lives, as sources give it."""
    return LivingStorages.build(
        len(storages), **{name: [getattr(s, name) for s in storages] for name in Storage._fields}
    )


def label_of(row):
    return Label(step=row)


def record(step, path, steps, **options):
    with memprof.track(path, sources=["cpu"], allowance_s=60, **options) as tracker:
        for i in range(steps):
            step(i)
            tracker.step()
    return memprof.load(path)


def growing(run):
    """Findings about a site; those without one are of what else lives in this process."""
    return [f for f in run.findings if f.finding == "holders" and f.stack]


def test_survivors_of_three_steps_are_suspects():
    found = suspects(columns([Storage(k, k) for k in range(5)]), label_of, step=6)
    assert [(s.births, s.count, s.bytes) for s in found] == [(5, 5, 500)]
    assert found[0].targets == (2, 0, 3)


def test_tensors_of_the_last_two_steps_are_not_survivors():
    assert suspects(columns([Storage(k, k) for k in (5, 6, 7)]), label_of, step=6) == []


def test_tensors_made_in_one_step_are_no_suspects():
    assert suspects(columns([Storage(k, 0) for k in range(50)]), label_of, step=9) == []


def test_large_bytes_that_no_category_explains_are_residents():
    living = [
        Storage(1, 0, stack=1, size=500, category=Category.PARAMETER),
        Storage(2, 0, stack=2, size=400),
        Storage(3, 0, stack=3, size=1),
    ]
    assert [(s.stack, s.bytes) for s in residents(columns(living), label_of)] == [(2, 400)]


def test_suspects_come_by_births_then_bytes_then_the_first_of_them():
    living = [
        *(Storage(k, k, stack=5) for k in range(4)),
        *(Storage(10 + k, k, stack=3) for k in range(4)),
        *(Storage(20 + k, k, stack=4, size=500) for k in range(4)),
        *(Storage(30 + k, k, stack=2) for k in range(5)),
        *(Storage(40 + k, k % 2, stack=1) for k in range(9)),
        *(Storage(50 + k, k, stack=0) for k in range(6)),
    ]
    found = suspects(columns(living), label_of, step=6)
    assert [(s.stack, s.births, s.bytes, s.first_step, s.last_step) for s in found] == [
        (2, 5, 500, 0, 4),
        (4, 4, 2000, 0, 3),
        (5, 4, 400, 0, 3),
        (3, 4, 400, 0, 3),
    ]


def test_targets_of_a_suspect_are_its_middle_its_oldest_and_a_young_one():
    living = [Storage(100 + made, made, size=made) for made in (7, 1, 5, 3, 9, 0, 8, 2)]
    (found,) = suspects(columns(living), label_of, step=20)
    assert (found.targets, found.youngest) == ((103, 100, 108), 109)
    assert (found.label, found.count, found.bytes) == (9, 8, 35)
    assert suspects(columns([]), label_of, step=20) == []


def test_much_of_one_size_without_a_stack_is_the_first_suspect():
    """As batches are that threads make with NumPy: nothing but their size tells them apart."""
    batches = [Storage(k, k, stack=EMPTY, size=400) for k in range(8)]
    others = [Storage(50 + k, k, stack=1) for k in range(5)]
    found = suspects(columns([*others, *batches]), label_of, step=12)
    assert [(s.stack, s.births, s.bytes) for s in found] == [(EMPTY, 8, 3200), (1, 5, 500)]
    assert found[0].targets == (3, 0, 6)
    assert [s.stack for s in suspects(columns([*others, *batches[1:]]), label_of, step=12)] == [1]
    large = Storage(99, 0, stack=2, size=10_000)
    found = suspects(columns([*others, *batches, large]), label_of, step=12)
    assert [s.stack for s in found] == [1]  # little of all there is


def test_one_large_tensor_without_a_stack_is_asked_about_where_no_size_is_had_by_many():
    """As a data set is that was joined between two windows."""
    others = [Storage(50 + k, k, size=100) for k in range(8)]
    data = Storage(7, 3, stack=EMPTY, size=900)
    (found,) = stackless(columns([*others, data, Storage(8, 3, stack=EMPTY, size=50)]))
    assert (found.targets, found.bytes, found.count, found.births) == ((7,), 900, 1, 0)
    assert stackless(columns([*others, data._replace(size=200)])) == []  # little of all there is
    assert stackless(columns([*others, data._replace(category=Category.PARAMETER)])) == []
    assert stackless(columns([*others, data._replace(stack=2)])) == []


class Archive:
    """Holds what was made between two windows."""

    def __init__(self):
        self.values = torch.cat([torch.zeros(4 << 20), torch.zeros(4 << 20)])


def test_data_that_was_made_between_windows_has_its_holder_whatever_searches_took(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(watch.Survivors, "has_time", lambda _: False)
    archive = Archive()
    with memprof.track(tmp_path / "run.json", sources=["cpu"], max_events=100) as tracker:
        for _ in range(60):
            torch.zeros(8)
            tracker.step()
    del archive
    found = [one for one in memprof.load(tmp_path / "run.json").findings if one.holders]
    of_data = [one for one in found if one.bytes == 32 << 20]
    assert [one.details["reason"] for one in of_data][:1] == ["resident"]
    assert of_data[0].holders[0].code.startswith("self.values = torch.cat(")


def test_targets_of_residents_are_the_largest_whatever_their_age():
    living = [Storage(key, 9 - key, size=size) for key, size in enumerate((5, 90, 20, 90, 70))]
    (found,) = residents(columns(living), label_of)
    assert found.targets == (1, 3, 4)
    assert (found.births, found.first_step, found.last_step, found.label) == (0, 5, 9, 9)
    assert residents(columns([]), label_of) == []


def test_the_holder_of_a_growing_list_is_found_and_said_once(tmp_path, caplog):
    outputs = []
    heard = []
    with caplog.at_level(logging.WARNING, logger="memprof"):
        run = record(
            lambda i: outputs.append(torch.zeros(1000)),
            tmp_path / "run.json",
            40,
            on_finding=heard.append,
        )
    held = growing(run)
    assert "outputs" in held[-1].holders[0].description
    assert [r.message for r in caplog.records if "memory grows by" in r.message] == [
        m
        for m in caplog.messages
        if m.startswith("memprof: memory grows by 3.91 KiB per step since step 0")
    ]
    assert len(heard) == 1
    assert heard[0].step < 30


def test_a_job_without_growth_gets_no_findings_before_its_end(tmp_path):
    run = record(lambda i: torch.zeros(1000).sum(), tmp_path / "run.json", 40)
    assert growing(run) == []


def test_nothing_is_kept_alive_by_looking(tmp_path):
    kept, dead = [], []

    def step(i):
        kept.append(torch.zeros(64))
        passing = torch.zeros(64)
        dead.append(weakref.ref(passing))

    collecting = gc.isenabled()
    gc.disable()
    try:
        record(step, tmp_path / "run.json", 34)
        assert [ref for ref in dead if ref() is not None] == []
    finally:
        if collecting:
            gc.enable()


BALANCED = """
from tests.unhurried import lift_limits
lift_limits()
import sys, memprof, torch

class Balanced(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64, 64))
        self.register_buffer("share", torch.zeros(64))

    def forward(self, x):
        for _ in range(300):
            x = (x @ self.weight).tanh()
        self.share = 0.9 * self.share + 0.1 * x.softmax(-1).mean(0)

def main():
    model = Balanced()
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=60) as tracker:
        for _ in range(40):
            model(torch.ones(8, 64))
            tracker.step()

main()
"""


def test_of_a_graph_too_long_to_be_walked_whole_the_youngest_end_tells_the_holder(tmp_path):
    # Each step has 600 nodes and more, and a walk may go to 10,000 where the stack is of 8 MiB.
    done = forks.run(BALANCED, tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    found = growing(memprof.load(tmp_path / "run.json"))
    largest = max(found, key=lambda one: one.bytes)  # what is saved on the way, and no input
    of_line = [one for one in found if one.stack == largest.stack]
    assert len(of_line) > 2
    for one in of_line:
        assert "buffer `share`" in one.holders[0].description


CHAIN = """
from tests.unhurried import lift_limits
lift_limits()
import sys, memprof, torch
def main():
    weight = torch.ones(3, requires_grad=True)
    total = torch.zeros(())
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=60) as tracker:
        for _ in range(40):
            total = total + (weight * 2).sum()
            tracker.step()
main()
"""


def test_a_chain_of_graph_nodes_is_found_on_the_host(tmp_path):
    # In a process of its own: the longest graph of this one may be another test's.
    done = forks.run(CHAIN, tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    run = memprof.load(tmp_path / "run.json")
    found = [f for f in run.findings if f.finding == "host_growth"]
    assert found[-1].details["nodes_per_step"] == pytest.approx(3.0, abs=0.5)
    assert "total" in found[-1].holders[0].description


LONG_CHAIN = """
from tests.unhurried import lift_limits
lift_limits()
import sys, memprof, torch

class Meter:
    sum = mean = count = 0

    def update(self, value):
        self.sum, self.count = self.sum + value, self.count + 1
        self.mean = self.sum / self.count

def main():
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(70)))
    meter, last = Meter(), int(sys.argv[2])
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=60) as tracker:
        for number in range(200):
            value = model(torch.ones(3)).sum()
            value.backward()
            if number < last:
                meter.update(value)
            tracker.step()
main()
"""


@pytest.mark.parametrize("until", [200, 100])
def test_a_chain_that_is_too_long_to_be_walked_is_followed_by_its_end(tmp_path, until):
    done = forks.run(LONG_CHAIN, tmp_path / "run.json", until)
    assert done.returncode == 0, done.stderr
    found = [f for f in memprof.load(tmp_path / "run.json").findings if f.finding == "host_growth"]
    rates = [one.details["nodes_per_step"] for one in found]
    assert rates == pytest.approx([rates[0]] * len(rates), rel=0.05)
    assert 70 < rates[0] < 300  # a node or a few for each layer
    # Looks are at 32, 48, 64, 96, 128, 192 steps, and at the end.
    assert (found[-1].step >= 190) == (until == 200)
    assert (found[-1].step < 128) == (until == 100)


def followed(total, *, anomaly=False):
    """The growth of a sum that is said to be too long to be walked, and the sum."""
    growth = GraphGrowth()
    with torch.autograd.set_detect_anomaly(anomaly, check_nan=False):
        for step in (8, 12, 16, 24):
            for _ in range(5):
                total = total + 1
            longest = LongestGraph(100 * step, weakref.ref(total), 1, 1000 * step, is_cut=True)
            rate = growth.add(step, longest)
    assert rate == 100.0
    return growth, total


def test_a_chain_is_followed_and_nothing_is_left_in_it():
    growth, total = followed(torch.ones(3, requires_grad=True) * 2)
    chain, node = growth.chain, total.grad_fn
    assert (chain.newest, chain.nodes_per_step, chain.lives) == (24000, 100.0, True)
    for _ in range(5):
        assert node.metadata == {}
        ((node, _), *_) = node.next_functions
    del node
    total = total.detach()
    assert not chain.lives


def test_what_else_is_in_a_nodes_metadata_is_not_kept():
    growth, total = followed(torch.ones(3, requires_grad=True) * 2, anomaly=True)
    assert total.grad_fn.metadata  # anomaly detection writes down where a node was made
    assert growth.chain is None


def test_the_longest_graph_is_counted_in_nodes():
    weight = torch.ones(3, requires_grad=True)
    value = weight
    for _ in range(500):
        value = value + 1
    assert longest_graph(budget_s=5).nodes >= 501


def test_graphs_of_changing_size_do_not_grow():
    growth = GraphGrowth()
    looks = ((8, 100), (12, 140), (16, 90), (24, 150))
    assert [growth.add(step, LongestGraph(nodes)) for step, nodes in looks] == [0.0] * 4


def test_a_graph_grows_only_if_it_reaches_back_to_the_look_before():
    longer = [(step, LongestGraph(10 * step, None, 99 * step, 100 * step)) for step in (8, 12, 16)]
    anew, grown = GraphGrowth(), GraphGrowth()
    assert [anew.add(*one) for one in longer] == [0.0] * 3
    assert anew.add(24, LongestGraph(240, None, 2376, 2400)) == 0.0
    for step, one in longer:
        grown.add(step, LongestGraph(one.nodes, None, 5, one.newest))
    assert grown.add(24, LongestGraph(240, None, 5, 2400)) == 10.0


def test_a_graph_knows_its_oldest_and_its_newest_node():
    weight = torch.ones(3, requires_grad=True)
    value = weight * 2
    first = value.grad_fn._sequence_nr()
    for _ in range(700):
        value = value + 1
    found = longest_graph(budget_s=5)
    assert found.tensor() is value
    assert (found.oldest, found.newest) == (first, value.grad_fn._sequence_nr())


def test_collections_that_free_something_are_timed():
    waiting = [0]
    before = list(gc.callbacks)
    watch = Collections(lambda: waiting[0])
    watch.open()
    try:
        gc.collect()
        assert watch.take(1) is None

        class Cycle:
            def __init__(self):
                self.me = self

            def __del__(self):
                waiting[0] += 1

        Cycle()
        gc.collect()
        found = watch.take(2)
    finally:
        watch.close()
    assert found is not None
    assert found.details["generation"] == [2]
    assert found.details["start_us"] <= found.details["end_us"]
    assert gc.callbacks == before


def test_an_error_in_a_search_ends_the_search_and_not_the_recording(tmp_path, monkeypatch):

    def fail(*args, **kwargs):
        raise RuntimeError("broken")

    monkeypatch.setattr(searches, "find_holders", fail)
    monkeypatch.setattr(searches, "UpwardSearch", fail)
    kept = []
    run = record(lambda i: kept.append(torch.zeros(64)), tmp_path / "run.json", 20)
    assert any("the search has ended: RuntimeError: broken" in n.message for n in run.notes)
    assert int(run.devices[0].steps.last[-1]) == 19


CONTAINERS = """
from tests.unhurried import lift_limits
lift_limits()
import collections, sys, memprof, torch

SIZE = 60


class Plain:
    def __init__(self):
        self.items = []

    def add(self, x, step):
        self.items.append(x)


class Cache:
    def __init__(self):
        self.items = {}

    def add(self, x, step):
        if len(self.items) >= SIZE:
            self.items.pop(next(iter(self.items)))
        self.items[step] = x


class Ring:
    def __init__(self):
        self.items = []

    def add(self, x, step):
        if len(self.items) < SIZE:
            self.items.append(None)
        self.items[step % SIZE] = x


class Epoch:
    def __init__(self):
        self.items = []

    def add(self, x, step):
        self.items.append(x)
        if (step + 1) % SIZE == 0:
            self.items.clear()


def main():
    kept = globals()[sys.argv[2]]()
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=60) as tracker:
        for step in range(int(sys.argv[3])):
            kept.add(torch.zeros(1000), step)
            tracker.step()


main()
"""


FILLED = (("Cache", 150), ("Ring", 150), ("Epoch", 150), ("Plain", 29))
IN_VAIN = ("Cache", 120)
"""Its entries are taken out at a size that is never reached."""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the log says of containers."""
    folder = tmp_path_factory.mktemp("containers")
    reached, never = "len(self.items) >= SIZE", "len(self.items) >= 10 ** 9"
    assert reached in CONTAINERS
    (folder / "containers.py").write_text(CONTAINERS)
    (folder / "in_vain.py").write_text(CONTAINERS.replace(reached, never))
    cases = [("containers.py", *case) for case in FILLED] + [("in_vain.py", *IN_VAIN)]
    lines = {}
    for script, name, steps in cases:  # each in a process of its own, where nothing else grows
        done = forks.run_file(folder / script, folder / "run.json", name, steps)
        assert done.returncode == 0, done.stderr
        lines[script, name, steps] = [
            line for line in done.stderr.splitlines() if "memory grows by" in line
        ]
    return lines


@pytest.mark.parametrize("name", ["Cache", "Ring", "Epoch"])
def test_what_the_program_keeps_small_is_not_said_to_leak_while_it_fills(name, said):
    assert said["containers.py", name, 150] == []


def test_a_list_that_is_only_filled_is_said_to_leak_before_step_30(said):
    (line,) = said["containers.py", "Plain", 29]
    assert "list `kept.items`" in line


def test_a_container_that_is_kept_small_in_vain_is_said_to_leak_later(said):
    assert len(said[("in_vain.py", *IN_VAIN)]) == 1


@pytest.fixture
def slow(monkeypatch):
    """Every pass over the heap takes too long."""
    for name in ("WHOLE_S", "WHOLE_AFTER_S", "CHEAP_S"):
        monkeypatch.setattr(searches, name, 0.0)
    monkeypatch.setattr(watch, "SCAN_S", 0.0)
    monkeypatch.setattr(watch, "LEAST_CLIMBED", 0)


@pytest.mark.usefixtures("slow")
def test_a_search_that_takes_long_is_not_made_for_little(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "LEAST_CLIMBED", 1 << 20)
    kept, searched = {"small": [], "large": []}, []

    class Watched(UpwardSearch):
        def __init__(self, *args, **options):
            searched.append(len(kept["large"]))
            super().__init__(*args, **options)

    def step(i):
        kept["small"].append(torch.zeros(1000))
        kept["large"].append(torch.zeros(8192))

    monkeypatch.setattr(searches, "UpwardSearch", Watched)
    run = record(step, tmp_path / "run.json", 60)
    assert searched[0] == 48  # looks: 24, when it is certain, 32 and 48, when it has 1 MiB
    names = [one.holders[0].description for one in growing(run) if one.holders]
    assert any("small" in name for name in names)  # at the end it is looked for


def test_in_a_large_heap_numbers_that_are_listed_are_searched_for_at_the_end(tmp_path, monkeypatch):
    """Each search takes as long as some steps there, and the first looks come early."""
    monkeypatch.setattr(searches, "NOTICEABLE_S", 0.0)
    losses, outputs, sought = [], [], []

    class Watched(searches.Searches):
        def begin(self, quarries, last_s=None):
            sought.append((len(losses), sorted(one.suspect.bytes for one in quarries)))
            super().begin(quarries, last_s)

    def step(i):
        losses.append(torch.zeros(()))
        outputs.append(torch.zeros(16384))

    monkeypatch.setattr(watch, "Searches", Watched)
    run = record(step, tmp_path / "run.json", 40)
    # looks: 8, 12, 16, and 24, where the outputs have come to a MiB without those of the last steps
    (at, sizes), *later = [one for one in sought if one[1]]
    assert at == 24
    assert min(sizes) >= 1 << 20
    assert any(min(sizes) < 1 << 10 for _, sizes in later)
    names = [one.holders[0].description for one in growing(run) if one.holders]
    assert any("losses" in name for name in names)
    assert any("outputs" in name for name in names)


@pytest.mark.usefixtures("slow")
def test_a_search_that_takes_long_waits_until_the_leak_is_certain(tmp_path):
    outputs, heard, searched = [], [], []

    class Watched(UpwardSearch):
        def __init__(self, *args, **options):
            searched.append(len(outputs))
            super().__init__(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, "UpwardSearch", Watched)
        run = record(
            lambda i: outputs.append(torch.zeros(1000)),
            tmp_path / "run.json",
            40,
            on_finding=heard.append,
        )
    assert searched[0] == 24  # looks: 8, 12, 16 and 24; without the wait it would be 8
    assert "outputs" in heard[0].holders[0].description
    assert "outputs" in growing(run)[-1].holders[0].description


@pytest.mark.usefixtures("slow")
def test_a_search_that_takes_long_is_gone_on_with_at_the_next_step_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(searches, "SLICE_S", 0.0)
    box, heard, slices = type("Box", (), {})(), [], []
    box.model = {"meters": {"loss": []}}
    proceed = UpwardSearch.proceed
    monkeypatch.setattr(
        UpwardSearch,
        "proceed",
        lambda self, limit_s: (slices.append(step[0]), proceed(self, limit_s)),
    )
    step = [0]

    def one(i):
        step[0] = i
        box.model["meters"]["loss"].append(torch.zeros(1000))

    run = record(one, tmp_path / "run.json", 40, on_finding=heard.append)
    # the leak is certain at the look after 24 steps; then a pass at each step's end
    assert slices[:4] == [23, 24, 25, 26]
    (found,) = heard
    assert found.step >= 26
    assert "box.model['meters']['loss']" in found.holders[0].description
    assert growing(run)[-1].holders


@pytest.mark.usefixtures("slow")
def test_where_a_search_cannot_be_had_in_time_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "LAST_S", 0.0)
    monkeypatch.setattr(searches, "SLICE_S", 0.0)
    deep = []
    for _ in range(40):
        deep = [deep]

    def step(i):
        box = deep
        for _ in range(40):
            (box,) = box
        box.append(torch.zeros(1000))

    run = record(step, tmp_path / "run.json", 40)
    (note,) = (n for n in run.notes if n.source == "survivors")
    assert note.message.startswith("who holds some of what stays alive was not searched for")
    assert growing(run)[-1].holders == []


def test_a_search_of_the_whole_heap_that_is_cut_off_is_gone_on_with_by_climbing(
    tmp_path, monkeypatch
):
    outputs, allowed_s, heard, at_step = [], [], [], [0]
    find = searches.find_holders

    def cut_off(targets, *, deadline, **how):
        allowed_s.append(deadline.later(searches.FOR_LINES).budget_s)
        deadline.passed = at_step[0] < 37  # not the last one
        return find(targets, deadline=deadline, **how)

    def step(i):
        at_step[0] = i
        outputs.append(torch.zeros(1000))

    monkeypatch.setattr(searches, "BUDGET_S", 0.5)  # as users have it
    monkeypatch.setattr(searches, "find_holders", cut_off)
    run = record(step, tmp_path / "run.json", 38, on_finding=heard.append)
    assert len(allowed_s) >= 2
    assert max(allowed_s) <= 0.5  # with the lines in the sources
    assert "outputs" in heard[0].holders[0].description
    assert "outputs" in growing(run)[-1].holders[0].description
    assert not [n for n in run.notes if n.source == "survivors"]


def test_at_the_end_the_whole_heap_is_searched_only_within_what_the_end_may_take(
    tmp_path, monkeypatch
):
    def whole_searches(path):
        made = []
        with pytest.MonkeyPatch.context() as patch:
            find = searches.find_holders
            patch.setattr(
                searches, "find_holders", lambda *args, **how: made.append(1) or find(*args, **how)
            )
            outputs = []
            record(lambda i: outputs.append(torch.zeros(1000)), path, 7)  # no look before the end
        return len(made)

    assert whole_searches(tmp_path / "whole.json") == 1
    monkeypatch.setattr(watch, "LAST_S", 0.0)
    assert whole_searches(tmp_path / "climbed.json") == 0


@pytest.mark.usefixtures("slow")
def test_a_search_that_was_put_off_is_made_at_the_end(tmp_path):
    outputs = []
    run = record(lambda i: outputs.append(torch.zeros(1000)), tmp_path / "run.json", 13)
    (found,) = growing(run)
    assert "outputs" in found.holders[0].description


@pytest.mark.usefixtures("slow")
def test_a_chain_is_found_among_new_objects_where_a_scan_of_all_takes_long(tmp_path):
    weight = torch.ones(3, requires_grad=True)
    total = [torch.zeros(())]

    def step(i):
        total[0] = total[0] + (weight * 2).sum()

    run = record(step, tmp_path / "run.json", 26)
    found = [f for f in run.findings if f.finding == "host_growth"]
    assert next(f.details["nodes_per_step"] for f in found) == pytest.approx(3.0, abs=0.5)


def test_what_a_pass_will_take_is_told_by_the_last_one():
    stall = PauseEstimate(longest_s=0.5, per_block_s=1.0)
    assert not stall.is_short()
    with stall.measured():
        pass
    assert 0 <= stall.per_block_s < 1e-6
    assert stall.is_short()


def test_what_becomes_more_bytes_is_looked_at_before_the_next_step_of_the_schedule(tmp_path):
    """A loop of 260 small steps comes first: the next look by steps alone is after 384."""
    with memprof.track(tmp_path / "run.json", sources=("cpu",)) as run:
        for _ in range(260):
            torch.zeros(64)
            run.step()
        kept = []
        for _ in range(40):
            kept.append(torch.zeros(1 << 20))
            run.step()
        del kept
    found = [one for one in growing(memprof.load(tmp_path / "run.json")) if one.holders]
    assert min(one.step for one in found) == 265  # 24 MiB, ten steps after the look at 256
    assert found[0].holders[0].links[0].name == "kept"


class Metric:
    """Keeps what it is called with, and copies all of it at each call, as torchmetrics does."""

    def __init__(self):
        self.parts = []

    def add(self, part):
        self.parts = [one.clone() for one in self.parts] + [part.clone()]


def test_what_is_made_anew_and_larger_is_followed_between_two_looks(tmp_path):
    """The looks are after 8, 12, 16, 24, 32 and 48 steps; the metric is fed from 30 to 44 alone."""
    metric = Metric()

    def step(i):
        if i >= 30:
            metric.add(torch.ones(4096))

    with memprof.track(tmp_path / "run.json", sources=["cpu"], allowance_s=60) as tracker:
        for i in range(44):
            step(i)
            tracker.step()
        metric = None  # at the end its tensors are gone
    of_residents = [
        one
        for one in memprof.load(tmp_path / "run.json").findings
        if one.finding == "holders" and one.details["reason"] == "resident" and one.stack
    ]
    holders = [(one.step, one.holders[0].description) for one in of_residents]
    assert [step for step, _ in holders] == [34]
    assert "`metric.parts`" in holders[0][1]


def test_what_is_as_large_at_the_next_step_is_not_followed(tmp_path):
    last = []

    def step(i):
        last[:] = [torch.ones(4096) for _ in range(8 if i < 33 else 9)]

    run = record(step, tmp_path / "run.json", 44)
    assert [one.step for one in growing(run) if one.step < 43] == []
