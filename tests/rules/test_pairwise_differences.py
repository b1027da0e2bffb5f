"""pairwise-differences: all differences of two sets of points are made for their distances."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of

POINTS, OTHERS, DIMENSIONS = 160, 128, 16
LENGTHS = torch.zeros(DIMENSIONS, requires_grad=True)


def squared(a, b):
    difference = a.unsqueeze(1) - b.unsqueeze(0)
    return (difference**2).sum(-1)


def at_once(a, b):
    return torch.linalg.norm(a[:, None] - b[None], dim=-1)


def by_product(a, b):
    difference = a[:, None, :] - b[None, :, :]
    return (difference * difference).sum(dim=-1).sqrt()


def expanded(a, b):
    """As kernels of distributions are often written."""
    shape = (a.shape[0], b.shape[0], a.shape[1])
    rows = a.unsqueeze(1).expand(*shape)
    columns = b.unsqueeze(0).expand(*shape)
    return ((rows - columns) ** 2).sum(2)


def repeated(a, b):
    """Each set is copied for all pairs first, under its own name."""
    rows, others = a.size(0), b.size(0)
    a = a.unsqueeze(1).repeat(1, others, 1)
    b = b.unsqueeze(0).repeat(rows, 1, 1)
    return ((a - b) ** 2).sum(-1)


def by_methods(a, b):
    """As it is written where there may be a batch in front."""
    difference = a.unsqueeze(-2).sub(b.unsqueeze(-3))
    return torch.linalg.vector_norm(difference, dim=-1)


def by_function(a, b):
    return torch.sub(a[:, None], b[None]).pow(2).sum(-1)


def in_place_of_its_own(a, b):
    """Of a batch of pairs, each turned under its own name."""
    x, y = a[None], b[None]
    return of_batch(x, y)[0]


def of_batch(x, y):
    shape = (-1, x.shape[1], y.shape[1], x.shape[2])
    x = x.unsqueeze(2).expand(*shape)
    y = y.unsqueeze(1).expand(*shape)
    return torch.pow(x - y, 2).sum(3)


def by_shape(a, b):
    """As clustering by hand has it: each set is given the shape that pairs take."""
    points, centers = a.reshape(len(a), 1, DIMENSIONS), b.reshape(1, len(b), -1)
    return torch.linalg.vector_norm(points - centers, ord=2, dim=2)


def of_means(a, b):
    """As prototypes are compared with queries."""
    x, y = a[:, None], b[None]
    return torch.pow(x - y, 2).mean(2)


def of_lengths(a, b):
    """As a kernel has it that learns a length for each dimension."""
    difference = a.unsqueeze(1) - b.unsqueeze(0)
    scaled = difference / LENGTHS.exp()
    return scaled.pow(2).sum(-1)


def normalised(a, b):
    """Each difference is divided by its length: that is one of the pair."""
    difference = a.unsqueeze(1) - b.unsqueeze(0)
    distance = difference.norm(dim=-1, keepdim=True)
    return (difference / distance).abs().sum(-1)


def over_others(a, b):
    """Of two groups at a time: the third dimension is that of the points."""
    difference = a.view(2, -1, DIMENSIONS).unsqueeze(2) - b.view(2, -1, DIMENSIONS).unsqueeze(1)
    return (difference**2).sum(2)


def repelled(a, b):
    """A kernel, and how the points push each other: a sum weighed by one number for each pair."""
    difference = a.unsqueeze(1) - b.unsqueeze(0)
    near = torch.exp(-difference.pow(2).sum(-1))
    push = (near.unsqueeze(-1) * difference).sum(1)
    return near + push.sum(-1, keepdim=True)


def directions(a, b):
    """Forces between particles: the differences themselves are needed."""
    difference = a[:, None] - b[None]
    distance = difference.norm(dim=-1, keepdim=True)
    return (difference / (distance + 1) ** 3).sum(1)


def weighted(a, b):
    difference = a[:, None] - b[None]
    return (difference * b.exp()).sum(-1)


def scaled(a, b):
    """What is subtracted is a multiple."""
    return a.unsqueeze(-2).sub(b.unsqueeze(-3), alpha=2).square().sum(-1)


def over_points(a, b):
    """How far each point is from all, in each coordinate: no distance."""
    difference = a[:, None] - b[None]
    return difference.abs().sum(1)


def built_in(a, b):
    return torch.cdist(a, b).square()


def training(distances):
    net = nn.Linear(DIMENSIONS, DIMENSIONS)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)

    def step(_):
        a, b = torch.randn(POINTS, DIMENSIONS), torch.randn(OTHERS, DIMENSIONS)
        distances(net(a), b).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    return training(squared)


def looks_alike():
    return training(directions)


@pytest.mark.parametrize(
    ("distances", "code"),
    [
        (squared, "difference = a.unsqueeze(1) - b.unsqueeze(0)"),
        (at_once, "return torch.linalg.norm(a[:, None] - b[None], dim=-1)"),
        (by_product, "difference = a[:, None, :] - b[None, :, :]"),
        (expanded, "return ((rows - columns) ** 2).sum(2)"),
        (repeated, "return ((a - b) ** 2).sum(-1)"),
        (by_methods, "difference = a.unsqueeze(-2).sub(b.unsqueeze(-3))"),
        (by_function, "return torch.sub(a[:, None], b[None]).pow(2).sum(-1)"),
        (in_place_of_its_own, "return torch.pow(x - y, 2).sum(3)"),
        (by_shape, "return torch.linalg.vector_norm(points - centers, ord=2, dim=2)"),
        (of_means, "return torch.pow(x - y, 2).mean(2)"),
        (of_lengths, "difference = a.unsqueeze(1) - b.unsqueeze(0)"),
    ],
)
def test_the_subtraction_is_told_also_where_the_peak_is_in_the_backward_pass(
    distances, code, tmp_path
):
    found = findings_of(lambda: training(distances), tmp_path / "run.json")
    (one,) = [finding for finding in found if finding.rule == "pairwise-differences"]
    assert one.site.code == code
    assert one.bytes % (POINTS * OTHERS * DIMENSIONS * 4) == 0
    assert one.remedies[0].fix == "cdist"
    assert not one.minor


def test_what_it_promises_is_what_the_change_saves(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")
    (one,) = [finding for finding in found if finding.rule == "pairwise-differences"]
    findings_of(lambda: training(built_in), tmp_path / "fixed.json")
    before, after = (peak_of(tmp_path / name) for name in ("run.json", "fixed.json"))
    assert one.remedies[0].saves_bytes == pytest.approx(before - after, rel=0.1)


def test_points_are_to_be_scaled_first_where_their_differences_are(tmp_path):
    found = findings_of(lambda: training(of_lengths), tmp_path / "run.json")
    (one,) = [finding for finding in found if finding.rule == "pairwise-differences"]
    assert "Scale the points first (`/ LENGTHS.exp()`)" in one.remedies[0].why


def test_sums_that_one_number_for_each_pair_weighs_are_made_of_the_points(tmp_path):
    found = findings_of(lambda: training(repelled), tmp_path / "run.json")
    (one,) = [finding for finding in found if finding.rule == "pairwise-differences"]
    assert one.match.weights == "near"
    assert one.remedies[0].fix == "cdist"
    assert one.remedies[0].code == "difference = a.unsqueeze(1) - b.unsqueeze(0)"
    assert "`w.sum(1, keepdim=True) * a - w @ b`" in one.remedies[0].why
    a, b = torch.randn(8, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    w = torch.rand(8, 5, dtype=torch.float64)
    summed = (w.unsqueeze(-1) * (a.unsqueeze(1) - b.unsqueeze(0))).sum(1)
    assert torch.allclose(w.sum(1, keepdim=True) * a - w @ b, summed)


def test_nothing_is_said_where_the_differences_are_needed(tmp_path):
    apart = (directions, normalised, weighted, scaled, over_points, over_others, built_in)
    for distances in apart:
        found = names(lambda distances=distances: training(distances), tmp_path / "run.json")
        assert "pairwise-differences" not in found, distances
