"""few-values-read: a large result is computed whole, and few of its values are read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, findings_of_fork, peak_of

ITEMS, WIDTH, PAIRS = 1024, 32, 500
MATRIX = ITEMS * ITEMS * 4


class Scores(nn.Module):
    """The scores of pairs: picked of those of all, or computed for them."""

    def __init__(self, *, of_all):
        super().__init__()
        self.of_all = of_all
        self.vectors = nn.Parameter(torch.randn(ITEMS, WIDTH))
        self.scale = nn.Parameter(torch.ones(1))

    def affinity(self):
        return self.scale * (self.vectors @ self.vectors.t())

    def forward(self, first, second):
        if self.of_all:
            return self.affinity()[first, second]
        return self.scale * (self.vectors[first] * self.vectors[second]).sum(-1)


def learning(*, of_all):
    model = Scores(of_all=of_all)

    def step(number):
        first, second = torch.randint(ITEMS, (2, PAIRS))
        model(first, second).square().mean().backward()
        model.zero_grad()

    return step


def fires():
    return learning(of_all=True)


def looks_alike():
    return learning(of_all=False)


def ranked():
    """All rows of scores are sorted, and the first few of each are looked at."""

    def best(scores):
        return scores.argsort(dim=1, descending=True)

    def step(number):
        queries, answers = torch.rand(2, ITEMS, WIDTH)
        ranking = best(queries @ answers.t())
        return ranking[:, :8].float().mean()

    return step


def test_of_what_is_sorted_the_first_are_found_by_topk(tmp_path):
    (finding,) = own(findings_of(ranked, tmp_path / "run.json"))
    assert [one.fix for one in finding.remedies] == ["topk"]
    assert finding.site.code == "return scores.argsort(dim=1, descending=True)"


def evaluated(outside):
    """Scores of all pairs for those that a metric in NumPy is told of, or for all in NumPy."""
    vectors = torch.randn(ITEMS, WIDTH)

    def score():
        return torch.sigmoid(vectors @ vectors.t())

    def evaluate(pairs, labels):
        scores = score()
        picked = scores[pairs[0], pairs[1]]
        labels.numpy().mean()
        return picked.numpy().mean()

    def evaluate_all(pairs, labels):
        scores = score()
        picked = scores[pairs[0], pairs[1]]
        shown = scores.detach()
        return shown.numpy().mean() + picked.mean()

    def step(number):
        pairs = torch.randint(ITEMS, (2, PAIRS))
        (evaluate_all if outside else evaluate)(pairs, torch.ones(PAIRS))

    return step


@pytest.mark.parametrize("outside", [False, True])
def test_what_is_picked_may_go_to_numpy_and_the_whole_may_not(outside, tmp_path):
    found = findings_of(lambda: evaluated(outside), tmp_path / "run.json")
    assert bool([one for one in own(found) if not one.is_tentative]) is not outside


def own(found):
    return [one for one in found if one.rule == "few-values-read"]


def test_pairs_are_picked_of_the_scores_of_all(tmp_path):
    (finding,) = own(findings_of(fires, tmp_path / "run.json"))

    line = Scores.affinity.__code__.co_firstlineno + 1
    assert finding.site.line == line
    assert finding.title.endswith("are there for a result of whose values < 0.1 % are read")
    (remedy,) = finding.remedies
    assert remedy.fix == "narrow_first"
    assert f"read in line {Scores.forward.__code__.co_firstlineno + 2}" in remedy.why
    before = peak_of(tmp_path / "run.json")
    findings_of(looks_alike, tmp_path / "other.json")
    saved = before - peak_of(tmp_path / "other.json")
    assert remedy.saves_bytes == pytest.approx(saved, rel=0.05)


class Links(Scores):
    """Each score is a probability, whose gradient reads that."""

    def affinity(self):
        return torch.sigmoid(self.vectors @ self.vectors.t())


def linking():
    model = Links(of_all=True)

    def step(number):
        first, second = torch.randint(ITEMS, (2, PAIRS))
        model(first, second).square().mean().backward()
        model.zero_grad()

    return step


def test_a_gradient_of_each_value_by_itself_reads_none_that_is_not_picked(tmp_path):
    (finding,) = own(findings_of(linking, tmp_path / "run.json"))
    assert finding.site.line == Links.affinity.__code__.co_firstlineno + 1
    assert not finding.minor
    assert finding.remedies[0].saves_bytes >= 0.99 * MATRIX


def pasted(*, first):
    """Masks are made as large as the image, and those of good boxes are read."""
    masks = torch.rand(40, 1, 28, 28)
    scores = torch.linspace(0, 1, 40)

    @torch.no_grad()
    def step(number):
        keep = (scores > 0.9).nonzero()[:, 0]
        if first:
            pasted = nn.functional.interpolate(masks[keep], size=(256, 256))
        else:
            pasted = nn.functional.interpolate(masks, size=(256, 256))[keep]
        return (pasted > 0.5).sum()

    return step


def pasted_all():
    return pasted(first=False)


def pasted_few():
    return pasted(first=True)


class Chosen(nn.Module):
    """A part of a model that goes on with few of the rows, as one that samples frames does."""

    def __init__(self, count):
        super().__init__()
        self.count = count

    def forward(self, rows):
        return rows[torch.randperm(len(rows))[: self.count]]


def chosen_last(count):
    def program():
        parts = nn.Sequential(nn.Linear(8, ITEMS), nn.Tanh(), Chosen(count))

        @torch.no_grad()
        def step(number):
            points = torch.randn(ITEMS, 8)
            return parts(points).sum().item()

        return step

    return program


def few_chosen():
    return chosen_last(16)()


def test_earlier_parts_of_a_container_work_for_the_rows_that_a_later_one_picks(tmp_path):
    ranked = findings_of_fork(few_chosen, tmp_path / "run.json")
    assert "few-values-read" in [one.rule for one in ranked]
    (found,) = own(ranked)
    assert found.match.part == pytest.approx(16 / ITEMS, abs=1e-4)
    assert found.bytes == 2 * ITEMS * ITEMS * 4  # of the layer, and of what follows it
    assert own(findings_of(chosen_last(ITEMS), tmp_path / "all.json")) == []


def test_what_is_changed_value_by_value_is_not_read_by_that(tmp_path):
    (found,) = own(findings_of(changed_throughout, tmp_path / "run.json"))
    assert found.match.part == pytest.approx(4 / ITEMS, abs=1e-4)
    assert found.site.code == "product = points @ points.t()"


def test_what_is_made_large_before_most_of_it_is_dropped(tmp_path):
    found = findings_of(pasted_all, tmp_path / "run.json")

    line = pasted.__code__.co_firstlineno + 11
    assert found[0].rule in ("few-values-read", "partly-read")
    assert found[0].site.line == line
    assert own(findings_of(pasted_few, tmp_path / "other.json")) == []


def read_whole_now_and_then():
    """A table of distances of which a step reads some, and every fourth all."""
    points = torch.randn(ITEMS, 8)

    def step(number):
        distances = torch.cdist(points, points)
        near = distances[torch.randint(ITEMS, (PAIRS,)), torch.randint(ITEMS, (PAIRS,))]
        return near.mean() + (distances.mean() if number % 4 == 0 else 0)

    return step


def cropped():
    """Data that the program makes: a part of an image is read."""

    def step(number):
        image = torch.rand(ITEMS, ITEMS)
        return image[:64, :64].clone().mean()

    return step


def kept_for_many_steps():
    table = {}

    def step(number):
        if not table:
            table["all"] = torch.cdist(torch.randn(ITEMS, 8), torch.randn(ITEMS, 8))
        return table["all"][torch.randint(ITEMS, (4,))].mean()

    return step


def written_into():
    """Values are added to some of it, and all of it may be there for that."""
    points = torch.randn(ITEMS, 8)

    def step(number):
        product = points @ points.t()
        product.index_add_(0, torch.zeros(ITEMS, dtype=torch.long), torch.ones(ITEMS, ITEMS))
        return product[:4].mean()

    return step


def changed_throughout():
    """A product that a number is added to, and of which a few rows are read."""
    points = torch.randn(ITEMS, 8)

    def step(number):
        product = points @ points.t()
        product.add_(1)
        return product[:4].mean()

    return step


class FirstPlace(nn.Module):
    """What the backward pass of the norm reads as well is needed."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, ITEMS)
        self.norm = nn.LayerNorm(ITEMS)

    def forward(self, x):
        return self.norm(self.layer(x)[:, 0])


def learned_from_the_first_place():
    model = FirstPlace()

    def step(number):
        model(torch.randn(64, 32, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


POOLED = """
def pooled(layer, x):
    return layer(x)[:, 0].clone()
"""


def picked_by_a_library():
    """Its call returns what it has picked: no line of the program can pick before."""
    layer, library = nn.Linear(WIDTH, ITEMS), {}
    exec(compile(POOLED, "/usr/lib/python3/site-packages/pooling/model.py", "exec"), library)

    @torch.no_grad()
    def step(number):
        return library["pooled"](layer, torch.randn(64, 32, WIDTH)).mean()

    return step


def picked_by_the_program():
    layer = nn.Linear(WIDTH, ITEMS)

    @torch.no_grad()
    def step(number):
        states = layer(torch.randn(64, 32, WIDTH)).tanh()
        return states[:, 0].clone().mean()

    return step


def test_one_place_that_the_program_picks(tmp_path):
    found = findings_of(picked_by_the_program, tmp_path / "run.json")
    assert {"few-values-read", "partly-read"} & {one.rule for one in found}


@pytest.mark.parametrize("program", [learned_from_the_first_place, picked_by_a_library])
def test_what_no_line_of_the_program_picks_before_is_needed(program, tmp_path):
    assert own(findings_of(program, tmp_path / "run.json")) == []


@pytest.mark.parametrize(
    "program", [looks_alike, read_whole_now_and_then, cropped, kept_for_many_steps, written_into]
)
def test_what_is_read_or_is_data_is_not_meant(program, tmp_path):
    assert own(findings_of(program, tmp_path / "run.json")) == []


class Residual(nn.Linear):
    def forward(self, x):
        return x + super().forward(x)


def masked():
    """Of what the last of several layers makes few rows are read, and all of the others'."""
    model = nn.Sequential(*(Residual(WIDTH, WIDTH) for _ in range(3)))

    @torch.no_grad()
    def step(number):
        states = model(torch.randn(8192, WIDTH))
        return states[torch.randint(8192, (100,))].mean()

    return step


def test_the_last_of_several_layers_is_one_of_them(tmp_path):
    assert own(findings_of(masked, tmp_path / "run.json")) == []
