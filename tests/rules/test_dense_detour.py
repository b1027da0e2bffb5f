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


def by_degrees(dense):
    scale = dense.sum(1).pow(-0.5)
    return scale.unsqueeze(1) * dense * scale.unsqueeze(0)


def compressed(matrix):
    return matrix.to_sparse_coo()


def prepared(adj):
    dense = adj.to_dense()
    dense = by_degrees(dense)
    return compressed(dense)


def in_three_functions():
    """One scales, one makes it sparse, and one calls both."""
    features = torch.randn(NODES, 8)

    def step(number):
        return torch.sparse.mm(prepared(edges()), features).sum().item()

    return step


def scaled(matrix):
    return matrix * 0.5


def read_dense(adj):
    return scaled(adj.to_dense()).sum(1)


def made_sparse(matrix):
    return scaled(matrix).to_sparse()


def for_two():
    """One caller has made it dense, and another one makes it sparse."""
    weights = torch.eye(NODES)

    def step(number):
        return read_dense(edges()).sum().item() + made_sparse(weights).values().sum().item()

    return step


def test_the_way_there_and_back_may_be_in_several_functions(tmp_path):
    (found, *_) = findings_of(in_three_functions, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, found.minor, first.fix) == ("dense-detour", False, "sparse_values")
    assert found.bytes >= 2 * DENSE
    assert first.saves_bytes >= 2 * DENSE


def test_dense_before_one_caller_and_sparse_after_another_is_no_way_there_and_back(tmp_path):
    assert "dense-detour" not in names(for_two, tmp_path / "run.json")
