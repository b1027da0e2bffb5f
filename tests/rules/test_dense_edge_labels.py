"""dense-edge-labels: every pair of nodes is scored, and compared with a matrix of few edges."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.rules.recorded import findings_of, names

NODES, EDGES, CHANNELS = 512, 2048, 16
MATRIX = NODES * NODES * 4


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x):
        return self.linear(x)

    def decode(self, z):
        return z @ z.t()


def labels_of(edges):
    labels = torch.zeros(NODES, NODES)
    labels[edges[0], edges[1]] = 1.0
    return labels


def fires(count=EDGES):
    model, x = Encoder(), torch.rand(NODES, CHANNELS)
    edges = torch.randint(NODES, (2, count))
    labels = labels_of(edges)

    def step(number):
        logits = model.decode(model(x))
        F.binary_cross_entropy_with_logits(logits, labels).backward()
        model.zero_grad()
        return edges[0, 0]

    return step


def of_most_pairs():
    return fires(NODES * NODES // 2)


def small():
    features, step = torch.rand(8192, 4096), fires()
    return lambda number: (step(number), features[0])


def looks_alike():
    """Items are no users: a table of what each of them bought has no edges of one kind of node."""
    users, items = Encoder(), Encoder()
    x, y = torch.rand(NODES, CHANNELS), torch.rand(NODES, CHANNELS)
    bought = labels_of(torch.randint(NODES, (2, EDGES)))

    def step(number):
        logits = users(x) @ items(y).t()
        F.binary_cross_entropy_with_logits(logits, bought).backward()
        users.zero_grad()
        items.zero_grad()

    return step


def test_edges_and_samples_are_to_be_scored(tmp_path):
    (one,) = [each for each in findings_of(fires, tmp_path / "run.json") if not each.minor]
    (first,) = one.remedies
    assert (one.rule, first.fix) == ("dense-edge-labels", "sampled_pairs")
    assert one.site.code == "return z @ z.t()"
    assert one.bytes % MATRIX == 0
    # of the matrices one is replaced by what the edges take, which is small
    assert 0.8 * one.bytes <= first.saves_bytes <= one.bytes


@pytest.mark.parametrize("program", [of_most_pairs, small])
def test_nothing_is_said_where_most_pairs_are_edges_or_it_matters_little(program, tmp_path):
    assert "dense-edge-labels" not in names(program, tmp_path / "run.json")


class Reconstruction:
    """Columns are the indices of the labels, and both matrices are made flat for the loss."""

    def __init__(self):
        edges = torch.randint(NODES, (EDGES, 2))
        self.adjacency = torch.zeros(NODES, NODES)
        self.adjacency[edges[:, 0], edges[:, 1]] = 1
        self.encoder, self.x = Encoder(), torch.rand(NODES, CHANNELS)
        self.criterion = nn.BCEWithLogitsLoss()

    def scores(self):
        z = self.encoder(self.x)
        return torch.einsum("id,jd->ij", z, z)

    def step(self, number):
        self.criterion(self.scores().view(-1), self.adjacency.view(-1)).backward()
        self.encoder.zero_grad()


def of_columns():
    return Reconstruction().step


def test_an_einsum_of_one_with_itself_scores_all_pairs(tmp_path):
    found = findings_of(of_columns, tmp_path / "run.json")[0]
    (first,) = found.remedies
    assert (found.rule, found.minor, first.fix) == ("dense-edge-labels", False, "sampled_pairs")
    assert found.bytes % MATRIX == 0
    assert first.saves_bytes >= 0.8 * found.bytes
