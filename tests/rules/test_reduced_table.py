"""reduced-table: a large table is made of small tensors, and only reduced."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, peak_of

PLACES, POINTS, WIDTH = 1024, 512, 16
PAIRS = PLACES * POINTS * 4
NODES, KINDS, EDGES = 16, 4, 2048


class Density:
    """How dense points are at places: of all pairs at once, or of some places at a time."""

    def __init__(self, places_at_once=PLACES):
        self.places = torch.linspace(0, 1, PLACES)
        self.places_at_once = places_at_once

    def scaled(self, places, points):
        return (places.view(-1, 1) - points) / 0.1

    def of(self, places, points):
        kernel = torch.exp(-0.5 * self.scaled(places, points).square())
        return kernel.sum(dim=1)

    def __call__(self, points):
        return torch.cat([self.of(one, points) for one in self.places.split(self.places_at_once)])


def fires():
    density = Density()
    return lambda number: density(torch.rand(POINTS)).mean()


def looks_alike():
    density = Density(PLACES // 8)
    return lambda number: density(torch.rand(POINTS)).mean()


def own(found):
    return [one for one in found if one.rule == "reduced-table"]


def test_a_table_of_all_pairs_is_to_be_made_in_parts(tmp_path):
    (finding,) = own(findings_of(fires, tmp_path / "run.json"))

    assert finding.site.line == Density.scaled.__code__.co_firstlineno + 1
    line = Density.of.__code__.co_firstlineno + 2
    given = "6 KiB"  # 1,024 places and 512 points
    assert finding.title.endswith(
        f"are made of {given} of tensors, and only reduced (`sum` in line {line})"
    )
    assert [one.fix for one in finding.remedies] == ["chunk"]
    findings_of(looks_alike, tmp_path / "other.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "other.json")
    assert finding.remedies[0].saves_bytes == pytest.approx(saved, rel=0.05)


class Anchors(nn.Module):
    """Similarities to anchors, by their distances."""

    def __init__(self, *, by_cdist=False):
        super().__init__()
        self.anchors = nn.Parameter(torch.randn(POINTS, WIDTH))
        self.by_cdist = by_cdist

    def differences(self, points):
        return points.unsqueeze(1).sub(self.anchors)

    def squares(self, points):
        if self.by_cdist:
            return torch.cdist(points, self.anchors).square()
        return self.differences(points).pow(2).sum(-1)

    def forward(self, points):
        return self.squares(points).neg().exp().sum(1)


def learning(model):
    def step(number):
        model(torch.randn(128, WIDTH)).mean().backward()
        model.zero_grad()

    return step


def differing():
    return learning(Anchors())


def by_cdist():
    return learning(Anchors(by_cdist=True))


def test_differences_in_a_function_of_their_own_are_distances(tmp_path):
    (finding,) = own(findings_of(differing, tmp_path / "run.json"))

    assert finding.site.line == Anchors.differences.__code__.co_firstlineno + 1
    assert [one.fix for one in finding.remedies] == ["cdist", "chunk"]
    assert "each under `torch.utils.checkpoint`" in finding.remedies[1].why
    findings_of(by_cdist, tmp_path / "other.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "other.json")
    assert finding.remedies[0].saves_bytes == pytest.approx(saved, rel=0.1)


def multiplying():
    def weighted(left, right):
        return left[:, None] * right

    def step(number):
        left, right = torch.rand(2, 256, WIDTH)
        return weighted(left, right).sum(-1).max()

    return step


def test_products_that_are_summed_are_for_einsum(tmp_path):
    (finding,) = own(findings_of(multiplying, tmp_path / "run.json"))

    assert finding.remedies[0].fix == "einsum"
    # 4 MiB of products, of which 256 KiB are left
    assert finding.remedies[0].saves_bytes == pytest.approx((4 << 20) - (256 << 10), rel=0.02)


class Relations(nn.Module):
    """A matrix for each kind of edge."""

    def __init__(self):
        super().__init__()
        self.matrices = nn.Embedding(KINDS, NODES * NODES)

    def turned(self, matrices, states):
        return torch.bmm(matrices, states.unsqueeze(-1)).squeeze(-1)

    def forward(self, states, kinds):
        matrices = self.matrices(kinds)
        return self.turned(matrices.view(-1, NODES, NODES), states)


def relating():
    model = Relations()

    def step(number):
        kinds = torch.randint(KINDS, (EDGES,))
        model(torch.randn(EDGES, NODES), kinds).square().mean().backward()
        model.zero_grad()

    return step


def test_matrices_that_are_looked_up_for_each_row_are_to_be_multiplied_by_kind(tmp_path):
    (finding,) = own(findings_of(relating, tmp_path / "run.json"))

    assert finding.site.line == Relations.forward.__code__.co_firstlineno + 1
    assert "only multiplied (`bmm`" in finding.title
    assert finding.remedies[0].fix == "multiply_by_kind"


def attending():
    layer = nn.Linear(WIDTH, WIDTH)

    def step(number):
        states = layer(torch.randn(PLACES, WIDTH))
        scores = (states.sum(1)[:, None] + states.mean(1)).tanh()
        (scores.softmax(-1) @ states).mean().backward()

    return step


def neighbours():
    """Features of the nearest are gathered to be reduced: each is needed."""

    def step(number):
        states, nearest = torch.randn(64, WIDTH), torch.randint(64, (4096, 16))
        return states[nearest].amax(1)

    return step


def kept():
    """The program reads the table itself in every step as well."""

    def step(number):
        table = torch.rand(PLACES)[:, None] - torch.rand(POINTS)
        return table.sum(1).max() + table.softmax(-1)[0, 0]

    return step


def in_place():
    """A table is written into another one that stays."""
    total = torch.zeros(PLACES, POINTS)

    def step(number):
        table = torch.rand(PLACES)[:, None] - torch.rand(POINTS)
        total.add_(table)
        return table.sum()

    return step


@pytest.mark.parametrize("program", [looks_alike, attending, neighbours, kept, in_place])
def test_what_is_needed_whole_is_not_meant(program, tmp_path):
    assert own(findings_of(program, tmp_path / "run.json")) == []


def many_in_the_first_step():
    """A step has no end yet, as nothing has told where one is."""
    density = Density()

    def step(number):
        for _ in range(8 if number == 0 else 1):
            density(torch.rand(POINTS)).mean()

    return step


def test_the_first_step_may_have_many_tables(tmp_path):
    (finding,) = own(findings_of(many_in_the_first_step, tmp_path / "run.json"))
    assert [one.fix for one in finding.remedies] == ["chunk"]


PATIENTS = 512


def at_risk(turn, compared):
    """Sums over all whose time is not over, as in Cox' partial likelihood."""
    layer = nn.Linear(WIDTH, 1)
    time = torch.rand(PATIENTS)

    def step(_):
        risk = layer(torch.randn(PATIENTS, WIDTH)).squeeze(1)
        later = compared(turn, time)
        loss = (risk.exp() * later).sum(1).log().mean()
        loss.backward()
        layer.zero_grad()

    return step


def by_none(turn, time):
    return (time[None, :] >= time[:, None]).float()


def by_views(turn, time):
    return (time.view(1, -1) >= time.unsqueeze(1)).float()


def with_others(turn, time):
    other = turn(time)
    return (other[None, :] >= time[:, None]).float()


@pytest.mark.parametrize("compared", [by_none, by_views])
def test_sums_of_all_that_are_later_are_cumulative(compared, tmp_path):
    path = tmp_path / "run.json"
    (found,) = own(findings_of(lambda: at_risk(None, compared), path))
    first, second = found.remedies[:2]
    assert (first.fix, second.fix) == ("cumulative_sum", "chunk")
    assert first.peak_after < peak_of(path) // 8


def test_comparisons_with_another_vector_are_not(tmp_path):
    program = partial(at_risk, lambda time: time.flip(0), with_others)
    found = own(findings_of(program, tmp_path / "run.json"))
    assert [one.fix for finding in found for one in finding.remedies] == ["chunk"]


def concordance():
    """Two orders at once: of how many pairs both say the same."""
    time = torch.rand(PATIENTS)

    def step(_):
        risk = torch.rand(PATIENTS)
        earlier = time[None, :] < time[:, None]
        return (earlier & (risk[None, :] > risk[:, None])).float().sum(1).mean().item()

    return step


def test_two_orders_at_once_are_no_cumulative_sum(tmp_path):
    found = own(findings_of(concordance, tmp_path / "run.json"))
    assert "cumulative_sum" not in {one.fix for finding in found for one in finding.remedies}
