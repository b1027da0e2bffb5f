"""In a heap of frameworks a search stops at what surely explains, and says no more than it knows."""

from __future__ import annotations

import json
import queue
import threading
from contextlib import contextmanager
from itertools import groupby

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="holders are searched for of tensors")

import memprof  # noqa: E402
from memprof.reference_chain import Link, LinkKind, Unowned  # noqa: E402
from memprof.referrers import bounded_search as searches  # noqa: E402
from memprof.referrers import heap, pause_estimate  # noqa: E402
from memprof.referrers import search_from_roots as search  # noqa: E402
from memprof.referrers.find_holders import find_holders  # noqa: E402
from memprof.referrers.heap import Deadline, places_among  # noqa: E402
from memprof.referrers.rank_chains import holder_of  # noqa: E402
from memprof.referrers.roots import module_roots  # noqa: E402
from memprof.referrers.search_from_tensors import UpwardSearch  # noqa: E402
from memprof.referrers.survivors import Survivors  # noqa: E402
from memprof.referrers.unowned_memory import with_what_is_known  # noqa: E402
from tests import forks  # noqa: E402

KEPT: list[torch.Tensor] = []
ARRAYS: list[object] = []
OF_A_LIBRARY = json
MANY = 300_000


def framework_of_many_objects():
    """As many objects as frameworks bring; a class holds them, as theirs do."""
    return type("Framework", (), {"parts": [[None] for _ in range(MANY)]})


@pytest.fixture(scope="module")
def large_heap():
    return framework_of_many_objects()


@pytest.fixture
def library_sweeps(monkeypatch):
    """An entry for each time that modules of libraries are asked for."""
    asked = []

    def counted(*, user):
        if not user:
            asked.append("libraries")
        return module_roots(user=user)

    monkeypatch.setattr(search, "module_roots", counted)
    return asked


def kept_by_the_program():
    KEPT.append(torch.ones(5))
    return KEPT[0].untyped_storage()._cdata


def kept_by_a_library(monkeypatch):
    hoard = [torch.ones(7)]
    monkeypatch.setattr(OF_A_LIBRARY, "hoard", hoard, raising=False)
    return hoard[0].untyped_storage()._cdata


def names(found):
    return [one.description for one in found]


@pytest.mark.whole_heap
@pytest.mark.usefixtures("large_heap")
def test_what_the_programs_names_explain_needs_no_look_at_libraries(library_sweeps):
    key = kept_by_the_program()
    (found,) = find_holders([key], budget_s=60.0, in_passing=True)
    assert names(found)[0].startswith("list `KEPT` (1 items), global `KEPT` of")
    assert library_sweeps == []
    assert names(find_holders([key], budget_s=60.0)[0]) == names(found)
    assert len(library_sweeps) == 1  # nobody waits: everything is looked at


@pytest.mark.whole_heap
@pytest.mark.usefixtures("large_heap")
def test_what_only_a_library_holds_is_named_all_the_same(library_sweeps, monkeypatch):
    keys = [kept_by_the_program(), kept_by_a_library(monkeypatch)]
    mine, its = find_holders(keys, budget_s=60.0, in_passing=True)
    assert "`KEPT`" in names(mine)[0]
    assert names(its) == ["list `hoard` (1 items), global `hoard` of json"]
    assert len(library_sweeps) == 1


class Learner:
    def __init__(self):
        self.state = torch.ones(11)
        self.rule = lambda: self.state


def search_graphs_first():
    """What a search says of a graph's tensor, a library's and a cycle's, and what it did for it.

    The first time for libraries is none; nothing but a look at everything tells the cycle.
    """
    turns = []
    sweep, may_read_graphs = heap.Heap.sweep, search.may_read_graphs

    @contextmanager
    def none_of_it(deadline, share):
        deadline.passed = deadline.passed or share > 0
        yield
        deadline.passed = False

    def noted_sweep(*arguments):
        turns.append("sweep")
        return sweep(*arguments)

    def noted_look():
        turns.append("graphs")
        return may_read_graphs()

    framework = framework_of_many_objects()
    hidden = (torch.ones(4, requires_grad=True) * 2).tanh()
    learner = Learner()
    deadline = Deadline(60.0)
    with pytest.MonkeyPatch.context() as patched:
        keys = [
            hidden.untyped_storage()._cdata,
            kept_by_a_library(patched),
            learner.state.untyped_storage()._cdata,
        ]
        state = hidden.sum()
        del hidden, learner
        patched.setattr(heap.Deadline, "earlier", none_of_it)
        patched.setattr(heap.Heap, "sweep", noted_sweep)
        patched.setattr(search, "may_read_graphs", noted_look)
        found = find_holders(keys, deadline=deadline, in_passing=True)
    assert (len(framework.parts), state.numel(), deadline.passed) == (MANY, 1, False)
    return [names(one)[0] for one in found], [turn for turn, _ in groupby(turns)]


def test_graphs_come_before_what_is_left_of_libraries():
    """In a process of its own: where graphs that only C++ holds are many, no cycle is told."""
    done = forks.run(
        "import json\n"
        "from tests.referrers.test_large_heap import search_graphs_first\n"
        "print(json.dumps(search_graphs_first()))"
    )
    assert done.returncode == 0, done.stderr
    (of_graph, its, lost), turns = json.loads(done.stdout)
    assert of_graph.startswith("saved tensor `result` of TanhBackward0")
    assert "local `state`" in of_graph
    assert its == "list `hoard` (1 items), global `hoard` of json"
    assert "a reference cycle that only the garbage collector frees" in lost
    assert turns[:3] == ["sweep", "graphs", "sweep"]


def test_a_small_heap_is_searched_whole(library_sweeps):
    find_holders([kept_by_the_program()], budget_s=60.0, in_passing=True)
    assert len(library_sweeps) == 1


@pytest.mark.parametrize("in_passing", [True, False])
def test_a_search_that_is_cut_off_names_what_the_program_surely_holds(monkeypatch, in_passing):
    keys = [kept_by_the_program(), kept_by_a_library(monkeypatch)]
    deadline = Deadline(60.0)

    def too_late(*, user):
        deadline.passed = deadline.passed or not user
        return module_roots(user=user)

    monkeypatch.setattr(search, "module_roots", too_late)
    mine, its = find_holders(keys, deadline=deadline, in_passing=in_passing)
    assert "`KEPT`" in names(mine)[0]
    assert [one.is_named for one in its] == [False]


@pytest.mark.whole_heap
@pytest.mark.usefixtures("large_heap")
@pytest.mark.parametrize("in_dict", [True, False])
def test_an_array_near_the_programs_names_is_told_before_libraries_are_looked_at(
    library_sweeps, in_dict
):
    probabilities = torch.ones(6, 4)
    key = probabilities.untyped_storage()._cdata
    array = probabilities[:, :2].numpy()[0]
    ARRAYS.append({"first": array} if in_dict else array)
    del probabilities, array
    (found,) = find_holders([key], budget_s=60.0, in_passing=True)
    ARRAYS.clear()
    assert "a NumPy array that shows 8 of 96 bytes, kept by" in names(found)[0]
    assert "global `ARRAYS`" in names(found)[0]
    assert library_sweeps == []


@pytest.mark.whole_heap
@pytest.mark.usefixtures("large_heap")
def test_an_array_of_an_inner_function_is_told_where_lasting_names_lead_to_much(
    library_sweeps,
):
    ARRAYS.extend([None] for _ in range(50_000))

    def inner():
        probabilities = torch.ones(6, 4)
        key = probabilities.untyped_storage()._cdata
        kept = [probabilities[:, :2].numpy()[0]]
        del probabilities
        (found,) = find_holders([key], budget_s=60.0, in_passing=True)
        return kept, found

    _, found = inner()
    ARRAYS.clear()
    assert "a NumPy array that shows 8 of 96 bytes, kept by" in names(found)[0]
    assert "local `kept` of" in names(found)[0]
    assert library_sweeps == []


def test_nothing_is_sure_before_the_programs_names_were_followed_to_the_end():
    deadline = Deadline(60.0)
    deadline.passed = True
    (found,) = find_holders([kept_by_the_program()], deadline=deadline, in_passing=True)
    assert names(found) == ["the search ended before it found an owner"]


def test_places_are_those_of_an_exact_look_at_each():
    objects = [object() for _ in range(70_000)]  # more than the first look tells apart
    ids = search.addresses(objects)
    rows = [3, 17, 512, 40_000, 69_999]
    targets = sorted(int(ids[row]) for row in rows)
    assert sorted(places_among(ids, targets)) == rows
    assert places_among(ids, [1, int(ids.max()) + 16]) == []


@pytest.mark.parametrize("apart", [3 << 20, 1 << 36])
def test_marks_are_those_of_the_object_also_where_regions_of_memory_look_alike(monkeypatch, apart):
    """A table of pages by their last bits cannot tell two that lie 64 GiB apart."""
    names = ["low", "high", "unknown"]
    address_of = dict(zip(map(id, names), (5 << 20, (5 << 20) + apart, 9 << 20), strict=True))
    monkeypatch.setattr(
        heap, "addresses", lambda objects: np.array([address_of[id(one)] for one in objects])
    )
    objects = heap.Heap(names[:2], [], Deadline(60.0))
    objects.mark([names[1]], heap.TARGET)
    tracked = heap.TRACKED
    assert objects.marks(names).tolist() == [tracked, tracked | heap.TARGET, 0]


def record(step, path, steps, **options):
    with memprof.track(path, sources=["cpu"], allowance_s=60, **options) as tracker:
        for i in range(steps):
            step(i)
            tracker.step()
    return memprof.load(path)


def growing(run):
    return [f for f in run.findings if f.finding == "holders" and f.stack]


def test_in_a_heap_of_frameworks_what_grows_is_searched_for_at_the_first_look(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(searches, "WHOLE_S", 0.5)  # as users have it
    monkeypatch.setattr(
        pause_estimate.sys, "getallocatedblocks", lambda: 2_500_000
    )  # transformers, lightning, torchmetrics, diffusers
    outputs = []
    monkeypatch.setattr(searches, "NOTICEABLE_S", 0.12)
    # it waits for a MiB, which is there at once
    run = record(lambda i: outputs.append(torch.zeros(60_000)), tmp_path / "run.json", 9)
    first = growing(run)[0]
    assert first.step == 7
    assert "outputs" in first.holders[0].description


@pytest.mark.parametrize("followed", [False, True])
def test_only_what_the_programs_names_may_still_lead_to_is_climbed_to(
    followed, tmp_path, monkeypatch
):
    mine, other, climbed = [], [], []
    find, at_step = searches.find_holders, [0]

    def half_cut_off(targets, *, deadline, **how):
        found = find(targets, deadline=deadline, **how)
        if at_step[0] < 12:
            deadline.passed, deadline.names_followed = True, followed
            found = [one if "mine" in names(one)[0] else () for one in found]
        return found

    class Watched(UpwardSearch):
        def __init__(self, targets, **options):
            climbed.append(len(targets))
            super().__init__(targets, **options)

    def step(i):
        at_step[0] = i
        mine.append(torch.zeros(1000))
        other.append(torch.zeros(500))

    monkeypatch.setattr(searches, "find_holders", half_cut_off)
    monkeypatch.setattr(searches, "UpwardSearch", Watched)
    run = record(step, tmp_path / "run.json", 13)
    assert climbed == ([] if followed else [1])
    holders = {one.holders[0].description for one in growing(run) if one.holders}
    assert any("mine" in one for one in holders)
    assert any("other" in one for one in holders)  # at the end what has no holder is asked for


@pytest.mark.parametrize("cached", [False, True])
def test_what_no_name_leads_to_may_be_in_autocasts_cache_however_large_the_heap_is(
    cached, tmp_path, monkeypatch
):
    find = searches.find_holders

    def cut_off(targets, *, deadline, **how):
        find(targets, deadline=deadline, **how)
        deadline.passed = deadline.names_followed = True
        nothing = with_what_is_known([Link(LinkKind.UNKNOWN, unowned=Unowned(cut_off=True))], None)
        return [(holder_of(nothing, []),) for _ in targets]

    monkeypatch.setattr(searches, "find_holders", cut_off)
    kept = []
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cached):
        run = record(lambda i: kept.append(torch.zeros(60_000)), tmp_path / "run.json", 13)
    (*_, last) = growing(run)
    assert [one.links[0].unowned.autocast for one in last.holders] == (["cpu"] if cached else [])


class Assistant:
    """Adds to a tensor, in place of which comes a longer one; and keeps one that stays as it is."""

    def __init__(self):
        self.memory = {"prompt": torch.zeros(0)}
        self.last = torch.zeros(1000)

    def answer(self):
        self.memory["prompt"] = torch.cat([self.memory["prompt"], torch.zeros(1000)])
        self.last = torch.zeros(1000)


def test_what_is_made_anew_and_larger_is_searched_for_while_the_job_runs(tmp_path, monkeypatch):
    """None of it survives its step, and at the end its name is gone."""
    monkeypatch.setattr(Survivors, "last_look", lambda *_, **_how: [])
    assistant = Assistant()
    run = record(lambda _: assistant.answer(), tmp_path / "run.json", 50)
    found = growing(run)
    # Three steps after the first look; then at looks, with twice the bytes.
    assert [one.step for one in found] == [10, 23, 47]
    assert {one.details["reason"] for one in found} == {"resident"}
    for one in found:
        assert "`assistant.memory`" in one.holders[0].description.replace("['prompt']", "")


def test_what_an_inner_function_has_is_named_by_what_the_outer_one_keeps():
    """The variable is gone when the function returns; what keeps the tensor is not."""
    assistant = Assistant()

    def answer(cache):
        return names(find_holders([cache["prompt"].untyped_storage()._cdata], budget_s=60.0)[0])

    first, *_ = answer(assistant.memory)
    assert first.startswith("dict `assistant.memory` (1 items), local `assistant` of test_what_an")


def test_a_search_that_a_window_began_goes_on_after_it(tmp_path, monkeypatch):
    """In a function whose names are gone at the end, where nothing more is recorded."""
    for name in ("WHOLE_S", "WHOLE_AFTER_S", "CHEAP_S", "SLICE_S"):
        monkeypatch.setattr(searches, name, 0.0)
    slices = []
    between = Survivors.step_ended_between
    monkeypatch.setattr(
        Survivors,
        "step_ended_between",
        lambda self, step: slices.append(step) or between(self, step),
    )

    def train(tracker):
        box = type("Box", (), {})()
        box.model = {"meters": {"loss": []}}
        for _ in range(30):
            box.model["meters"]["loss"].append(torch.zeros(1000))
            tracker.step()

    with memprof.track(
        tmp_path / "run.json", sources=["cpu"], allowance_s=60, max_events=40
    ) as tracker:
        train(tracker)
    run = memprof.load(tmp_path / "run.json")
    last = run.windows[0].last_step
    assert 8 <= last < 25
    assert slices
    assert slices[0] == last + 1
    (found,) = [one for one in growing(run) if one.holders]
    assert found.step > last
    assert "box.model['meters']['loss']" in found.holders[0].description
    assert len(slices) < 12  # no longer than it takes


def test_a_variable_of_a_waiting_thread_holds_whatever_else_may(monkeypatch):
    """The search is cut off when it comes to libraries."""
    deadline, asked, answer = Deadline(60.0), threading.Event(), queue.Queue()

    def work():
        batch = torch.ones(13)
        answer.put(batch.untyped_storage()._cdata)
        asked.wait()

    worker = threading.Thread(target=work)
    worker.start()

    def too_late(*, user):
        deadline.passed = deadline.passed or not user
        return module_roots(user=user)

    monkeypatch.setattr(search, "module_roots", too_late)
    ((held, *_),) = find_holders([answer.get()], deadline=deadline, in_passing=True)
    asked.set()
    worker.join()
    assert (held.kind, held.code) == (LinkKind.THREAD, "batch = torch.ones(13)")
