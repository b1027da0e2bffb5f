"""small-view: a small view is stored, and keeps the whole storage that it is a part of."""

from __future__ import annotations

import collections
import heapq
from dataclasses import dataclass, replace

import msgspec
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from memprof.loading import load
from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind, Unowned
from memprof.rules.ranked_findings import findings
from memprof.trace import Category
from tests import forks
from tests.rules.recorded import findings_of, record

WIDTH = 64


def fires():
    rows = []

    def step(number):
        out = torch.zeros(WIDTH, WIDTH)
        rows.append(out[0])

    return step


def looks_alike():
    """A clone of the row is stored."""
    rows = []

    def step(number):
        out = torch.zeros(WIDTH, WIDTH)
        rows.append(out[0].clone())

    return step


def test_a_clone_leaves_the_row_and_nothing_else(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "small-view"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert first.fix == "clone_view"
    assert "+        rows.append(out[0].clone())" in first.patch
    assert first.saves_bytes == (WIDTH - 1) * WIDTH * 4


def halves():
    store = []

    def step(number):
        probabilities = torch.zeros(WIDTH, WIDTH)
        store.append(probabilities.chunk(2)[0])

    return step


def quarters():
    store = []

    def step(number):
        probabilities = torch.zeros(WIDTH, WIDTH)
        store.append(list(probabilities.chunk(4)))

    return step


@pytest.mark.parametrize("program", [halves, quarters])
def test_where_views_show_much_of_what_grows_the_list_comes_first(program, tmp_path):
    """A clone of each leaves half of the growth, or all."""
    (found, *_) = findings_of(program, tmp_path / "run.json")
    assert found.remedies[0].fix == "clear_container"


def rows_with_a_graph():
    """As embeddings of sentences are collected where gradients were forgotten."""
    net = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 8 * WIDTH), torch.nn.GELU(), torch.nn.Linear(8 * WIDTH, WIDTH)
    )
    rows = []

    def step(number):
        rows.extend(net(torch.ones(32, WIDTH)))

    return step


def test_a_view_is_not_to_blame_for_what_its_graph_keeps(tmp_path):
    """A clone of it has the same graph."""
    (found,) = findings_of(rows_with_a_graph, tmp_path / "run.json")
    assert any(holder.through_graph for holder in found.holders)
    assert found.rule == "kept-graph"
    assert found.remedies[0].fix == "detach"


def terms():
    """A loss whose storage is that of all errors, and one that no backward pass goes through."""
    net = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Sigmoid())
    history = {"error": [], "edge": []}

    def step(number):
        x = torch.rand(64, WIDTH)
        out = net(x)
        losses = {
            "error": torch.nn.functional.mse_loss(out, x),  # its storage had all errors
            "edge": (out - x).diff(dim=0).abs().mean() + (out - x).diff(dim=1).abs().mean(),
        }
        losses["error"].backward()
        net.zero_grad()
        for name, value in losses.items():
            history[name].append(value)

    return step


def test_a_clone_does_not_save_what_graphs_keep_besides(tmp_path):
    (found, *_) = findings_of(terms, tmp_path / "run.json")
    saved = {one.fix: one.saves_bytes for one in found.remedies}
    assert found.remedies[0].fix == "detach"
    assert saved["detach"] == 2 * 63 * 64 * 4 + 4  # what their absolute values are of, and the sum
    assert "clone_view" not in saved  # three ways free more


def hardest_of_each_class():
    """The list of a class is fetched by one statement and filled by the next."""
    by_class = collections.defaultdict(list)

    def step(number):
        batch = torch.zeros(WIDTH, WIDTH)
        shelf = by_class[number % 3]
        shelf.append((1.0, batch[2]))

    return step


def test_the_view_is_cloned_where_the_list_of_its_class_is_filled(tmp_path):
    (found,) = findings_of(hardest_of_each_class, tmp_path / "run.json")
    first = found.remedies[0]
    assert first.fix == "clone_view"
    assert first.code == "shelf.append((1.0, batch[2]))"
    assert "+        shelf.append((1.0, batch[2].clone()))" in first.patch


class Hardest:
    """A heap of the hardest samples: each is a view of the batch that a loader made."""

    def __init__(self):
        self.heap = []

    def offer(self, batch, number):
        label = torch.zeros(4)
        for row in (1, 2):
            heapq.heappush(self.heap, (number * 2 + row, batch[row], label[0].item()))


def hardest_of_all():
    hardest = Hardest()

    def step(number):
        hardest.offer(torch.zeros(WIDTH, WIDTH), number)

    return step


def test_a_function_that_fills_a_heap_is_where_the_view_is_cloned(tmp_path):
    (found,) = findings_of(hardest_of_all, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("small-view", "clone_view")
    assert first.code.startswith("heapq.heappush(self.heap, (number * 2 + row, batch[row]")


class Named(Hardest):
    """The entry has a name before it is put there."""

    def offer(self, batch, number):
        for row in (1, 2):
            entry = (number * 2 + row, batch[row])
            heapq.heappush(self.heap, entry)


def hardest_by_name():
    hardest = Named()

    def step(number):
        hardest.offer(torch.zeros(WIDTH, WIDTH), number)

    return step


def test_the_view_is_cloned_in_the_tuple_that_has_a_name(tmp_path):
    (found,) = findings_of(hardest_by_name, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("small-view", "clone_view")
    assert first.code == "entry = (number * 2 + row, batch[row])"
    assert "+            entry = (number * 2 + row, batch[row].clone())" in first.patch


def pairs():
    kept = []

    def step(number):
        made = torch.zeros(WIDTH, WIDTH)
        wanted = torch.ones(WIDTH, WIDTH)
        kept.append((number, made[:1].detach(), wanted[:1]))

    return step


def test_all_parts_of_a_tuple_are_cloned_also_what_is_detached(tmp_path):
    found = findings_of(pairs, tmp_path / "run.json")
    first = found[0].remedies[0]
    assert (found[0].rule, first.fix) == ("small-view", "clone_view")
    assert "kept.append((number, made[:1].detach().clone(), wanted[:1].clone()))" in first.patch


class Written(Hardest):
    """The batch is to see what is written into its row."""

    def offer(self, batch, number):
        for row in (1, 2):
            entry = (number * 2 + row, batch[row])
            batch[row].add_(1)
            heapq.heappush(self.heap, entry)


def hardest_that_is_written():
    hardest = Written()

    def step(number):
        hardest.offer(torch.zeros(WIDTH, WIDTH), number)

    return step


def test_a_view_that_is_written_has_no_patch(tmp_path):
    (found,) = findings_of(hardest_that_is_written, tmp_path / "run.json")
    assert found.remedies[0].fix == "clone_view"
    assert found.remedies[0].patch == ""


class Pool(Hardest):
    """One of every batch, up to a bound that the recording does not come to."""

    def offer(self, batch, number):
        entry = (number, batch[1])
        if len(self.heap) < 100:
            heapq.heappush(self.heap, entry)
        else:
            heapq.heappushpop(self.heap, entry)


class Replay(Hardest):
    """All rows of every batch, up to a bound: together they are what is kept."""

    def offer(self, batch, number):
        for row in batch:
            if len(self.heap) < 100 * WIDTH:
                self.heap.append(row)


def filled(kind):
    def program():
        pool = kind()

        def step(number):
            pool.offer(torch.zeros(WIDTH, WIDTH), number)

        return step

    return program


def test_a_bound_is_no_reason_to_keep_what_nobody_sees(tmp_path):
    (found,) = findings_of(filled(Pool), tmp_path / "run.json")
    assert (found.rule, found.minor, found.confidence) == ("small-view", False, 0.5)
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert found.remedies[0].code == "entry = (number, batch[1])"


def test_views_that_together_are_the_whole_fill_a_container_up_to_its_bound(tmp_path):
    assert [
        one for one in findings_of(filled(Replay), tmp_path / "run.json") if not one.minor
    ] == []


def pruned():
    """A library's hook has the mask, a part of the one tensor that it made for all layers."""
    kept = []

    def step(number):
        model = nn.Sequential(*(nn.Linear(192, 192) for _ in range(6)))
        for layer in model:
            layer.requires_grad_(False)
        prune.global_unstructured(
            [(layer, "weight") for layer in model], prune.L1Unstructured, amount=0.5
        )
        kept.append(model)
        model(torch.randn(4, 192))

    return step


def test_a_view_that_a_librarys_hook_took_is_not_the_programs_to_clone(tmp_path):
    every = [one for one in findings_of(pruned, tmp_path / "run.json") if one.bytes_per_step]
    fixes = [remedy.fix for remedy in every[0].remedies]
    assert (every[0].rule, "clone_view" in fixes) == ("collected-models", False)


class Served(nn.Module):
    """A model whose answers are kept, a row of each."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(8 * WIDTH, WIDTH)

    def forward(self, batch):
        return self.last(torch.relu(self.first(batch)))


def answers():
    """Gradients are off in the thread that asks, and on in the one that answers."""
    model, results = Served(), {}

    def step(number):
        probs = torch.softmax(model(torch.ones(32, WIDTH)), dim=-1)
        for row in range(2):
            results[number, row] = probs[row]

    return step


def answers_without_graphs():
    model, results = Served(), {}

    @torch.no_grad()
    def step(number):
        hidden = torch.relu(model.first(torch.ones(32, WIDTH)))
        probs = torch.softmax(model.last(hidden), dim=-1)
        results[number, 0] = probs[0]

    return step


def cut_off(run):
    """The same run, whose searches had no time for graphs, as where other threads use them."""
    unowned = Link(LinkKind.UNKNOWN, unowned=Unowned(cut_off=True))
    nobody = [Holder(LinkKind.UNKNOWN, links=[unowned])]
    looks = [
        msgspec.structs.replace(one, holders=list(direct) or nobody)
        for one in run.findings
        for direct in [[holder for holder in one.holders if not holder.through_graph]]
    ]
    (cpu,) = run.devices
    windows = [replace(trace, events=_without_activations(trace)) for trace in cpu.windows]
    return replace(run, findings=tuple(looks), devices=(replace(cpu, windows=tuple(windows)),))


def _without_activations(trace):
    category = trace.events.category.copy()
    category[category == Category.ACTIVATION] = Category.UNKNOWN
    return replace(trace.events, category=category)


def test_a_view_is_not_to_blame_where_no_search_came_to_its_graph(tmp_path):
    record(answers, tmp_path / "run.json")
    (found, *others) = findings(cut_off(load(tmp_path / "run.json")))
    assert [one for one in others if one.bytes_per_step] == []
    assert "a view that shows 512 of 8192 bytes" in found.title
    assert (found.rule, found.remedies[0].fix) == ("kept-graph", "detach")
    assert "+            results[number, row] = probs[row].detach()" in found.remedies[0].patch


def test_a_view_without_a_graph_is_cloned_whatever_else_the_search_did_not_come_to(tmp_path):
    record(answers_without_graphs, tmp_path / "run.json")
    (found,) = findings(cut_off(load(tmp_path / "run.json")))
    assert (found.rule, found.remedies[0].fix) == ("small-view", "clone_view")


@dataclass
class Track:
    number: int
    thumbnail: torch.Tensor


class Book:
    """Tracks are made in one method, and put away in another."""

    def __init__(self):
        self.live, self.archive = [], []

    def see(self, number):
        frame = torch.zeros(64, WIDTH)
        track = Track(number, frame[:1])
        self.live.append(track)

    def put_away(self):
        while self.live:
            self.archive.append(self.live.pop())


def of_records():
    book = Book()

    def step(number):
        book.see(number)
        book.put_away()

    return step


def test_a_view_in_a_record_is_cloned_where_the_record_is_made(tmp_path):
    found, *_ = findings_of(of_records, tmp_path / "run.json")
    first = found.remedies[0]
    assert (first.fix, first.code) == ("clone_view", "track = Track(number, frame[:1])")


class Documents:
    """All rows of each batch, one by one, as an encoder of sentences returns them."""

    def __init__(self):
        self.rows = []

    def add(self, batch):
        self.rows.extend(batch)


def indexing():
    documents = Documents()

    def step(number):
        batch = torch.zeros(32, WIDTH, WIDTH // 2)
        documents.add([batch[at, : WIDTH // 2 + at % 8] for at in range(32)])

    return step


def test_views_of_a_batch_of_which_all_are_kept_are_not_to_be_cloned(tmp_path):
    found = findings_of(indexing, tmp_path / "run.json")[0]
    assert found.remedies[0].fix != "clone_view"


class Examples:
    """One example of each batch, with what it was made of."""

    def __init__(self):
        self.examples = []

    def add(self, step, images, scores):
        self.examples.append({
            "step": step,
            "image": images[0],
            "score": scores[0],
        })  # fmt: skip


def showing():
    shown = Examples()

    def step(number):
        images = torch.zeros(32, WIDTH, WIDTH // 2)
        shown.add(number, images, images + 1)

    return step


def test_all_small_views_that_a_line_keeps_are_cloned(tmp_path):
    found = findings_of(showing, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert first.fix == "clone_view"
    assert '+            "image": images[0].clone(),' in first.patch
    assert '+            "score": scores[0].clone(),' in first.patch


def bounded():
    rows = collections.deque(maxlen=36)

    def step(number):
        out = torch.zeros(WIDTH, WIDTH)
        rows.append(out[0])

    return step


def test_what_a_full_container_let_go_of_would_have_been_small_as_well(tmp_path):
    (found,) = findings_of(bounded, tmp_path / "run.json", steps=44)
    clone = found.remedies[0]
    assert found.rule == "small-view"
    assert clone.peak_before == 37 * WIDTH * WIDTH * 4
    assert clone.peak_after == WIDTH * WIDTH * 4 + 36 * WIDTH * 4


class Prepared:
    def __init__(self):
        self.models = []
        self.data = []

    def prepare(self, model, data):
        self.models.append(model)
        self.data.append(data)


def trained_one_after_the_other():
    """A model for each place, and beside it a row of the few data that it was trained with."""
    prepared = Prepared()

    def step(number):
        made = [torch.zeros(rows, WIDTH) for rows in (8 * WIDTH, 4)]
        prepared.prepare(made[0], made[1][0])

    return step


def test_a_small_view_beside_what_grows_is_not_to_blame(tmp_path):
    found = findings_of(trained_one_after_the_other, tmp_path / "run.json")[0]
    views = [link for one in found.holders for link in one.links if link.shown_bytes == WIDTH * 4]
    assert views
    assert found.bytes_per_step >= 8 * WIDTH * WIDTH * 4
    assert found.remedies[0].fix == "clear_container"


MAKING = """
import sys
import memprof
import torch

def positive_and_rest(scores):
    return RETURNED

def batches(tracker):
    for _ in range(24):
        yield torch.randn(256, 16)
        tracker.step()

def score(tracker):
    return [ITEM for x in batches(tracker)]

def main():
    with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=600) as tracker:
        results = score(tracker)
    print(len(results))

main()
"""


@pytest.mark.parametrize(
    ("item", "returned", "line", "cloned"),
    [
        (
            "positive_and_rest(x @ x.T)",
            "scores.diagonal(), scores.logsumexp(-1)",
            "return scores.diagonal(), scores.logsumexp(-1)",
            "return scores.diagonal().clone(), scores.logsumexp(-1)",
        ),
        (
            "(x @ x.T)[:, 0]",
            "scores",
            "return [(x @ x.T)[:, 0] for x in batches(tracker)]",
            "return [(x @ x.T)[:, 0].clone() for x in batches(tracker)]",
        ),
        ("positive_and_rest(x @ x.T)", "scores.diagonal().clone(), scores.logsumexp(-1)", "", ""),
        ("positive_and_rest(x @ x.T)", "scores[:128], scores[128:]", "", ""),
    ],
)
def test_a_small_view_in_a_list_that_is_being_made_is_cloned(
    item, returned, line, cloned, tmp_path
):
    script = tmp_path / "job.py"
    script.write_text(MAKING.replace("ITEM", item).replace("RETURNED", returned))
    done = forks.run_file(script, tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    small_views = [one for one in findings(load(tmp_path / "run.json")) if one.rule == "small-view"]
    assert len(small_views) == bool(line)
    for found in small_views:
        first = found.remedies[0]
        assert (first.rule, first.fix, first.code) == ("small-view", "clone_view", line)
        assert f"+    {cloned}" in first.patch
        assert round(found.bytes_per_step) == 256 * 256 * 4 + 256 * 4 * (item[0] == "p")
