"""dense-detour: a sparse matrix is made dense to compute with it, and sparse again."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of, names

NODES, EDGES = 512, 2048
DENSE = NODES * NODES * 4


def edges():
    index = torch.randint(NODES, (2, EDGES))
    return torch.sparse_coo_tensor(
        index, torch.ones(EDGES), (NODES, NODES), check_invariants=True
    ).coalesce()


def normalized(adj):
    dense = adj.to_dense() + torch.eye(NODES)
    scale = dense.sum(1).pow(-0.5)
    dense = scale.unsqueeze(1) * dense * scale.unsqueeze(0)
    return dense.to_sparse()


def fires():
    """The adjacency matrix of each sampled part of a graph is normalised."""
    features = torch.randn(NODES, 8)

    def step(number):
        return torch.sparse.mm(normalized(edges()), features).sum().item()

    return step


def looks_alike():
    """The dense matrix is what the program goes on with."""
    features = torch.randn(NODES, 8)

    def step(number):
        dense = edges().to_dense() + torch.eye(NODES)
        scale = dense.sum(1).pow(-0.5)
        dense = scale.unsqueeze(1) * dense * scale.unsqueeze(0)
        return (dense @ features).sum().item()

    return step


def once_before():
    """It happens once, before the steps, and is most of what the program ever needs."""
    adj, features = normalized(edges()), torch.randn(NODES, 8)

    def step(number):
        return torch.sparse.mm(adj, features).sum().item()

    return step


def test_the_dense_matrices_are_what_could_go(tmp_path):
    (found, *_) = findings_of(fires, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("dense-detour", False)
    assert found.bytes >= 2 * DENSE
    (remedy,) = found.remedies
    assert remedy.fix == "sparse_values"
    assert remedy.saves_bytes >= 2 * DENSE


def test_what_is_needed_once_is_told_where_it_is_most_of_all(tmp_path):
    (found, *_) = findings_of(once_before, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("dense-detour", False)


def test_a_matrix_that_stays_dense_is_no_detour(tmp_path):
    assert "dense-detour" not in names(looks_alike, tmp_path / "run.json")
