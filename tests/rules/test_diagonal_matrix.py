"""diagonal-matrix: a matrix of zeros around a diagonal is multiplied."""

from __future__ import annotations

import pytest
import torch

from tests.rules.recorded import findings_of, names

WIDTH, ROWS = 512, 8


def fires():
    """Each column is multiplied by a number of its own."""

    def step(number):
        x, scale = torch.rand(ROWS, WIDTH), torch.rand(WIDTH)
        return (x @ torch.diag(scale)).sum().item()

    return step


def looks_alike():
    """A matrix has something added to its diagonal before it is inverted."""

    def step(number):
        x = torch.rand(ROWS, WIDTH)
        noise = torch.diag(torch.rand(WIDTH)) + 0.1
        return (x @ noise).sum().item()

    return step


def by_name():
    """The matrix has a name, and is a factor of two products."""

    def step(number):
        x = torch.rand(ROWS, WIDTH)
        weights = torch.diag(torch.rand(WIDTH))
        return (x @ weights).sum().item() + torch.matmul(weights, x.T).sum().item()

    return step


def of_two_vectors():
    """Two vectors went into the matrix, and are multiplied one by one."""

    def step(number):
        x, p = torch.rand(WIDTH, ROWS), torch.rand(WIDTH)
        w = torch.diag(p * (1 - p))
        return (x.T @ w @ x).sum().item()

    return step


def of_ones():
    """The identity is scaled, and given to a layer's function."""

    def step(number):
        x, gain = torch.rand(ROWS, WIDTH), torch.rand(WIDTH)
        weight = torch.eye(WIDTH) * gain
        return torch.nn.functional.linear(x, weight).sum().item()

    return step


def by_letters():
    def step(number):
        x, scale = torch.rand(ROWS, WIDTH), torch.rand(WIDTH)
        d = torch.diag(scale)
        return torch.einsum("bi,ij->bj", x, d).sum().item()

    return step


def identity():
    """Nothing is scaled: a matrix is shown what it is of."""
    weight = torch.rand(WIDTH, WIDTH)

    def step(number):
        return (weight @ torch.eye(WIDTH)).sum().item()

    return step


def test_the_identity_is_another_matter(tmp_path):
    assert "diagonal-matrix" not in names(identity, tmp_path / "run.json")


def test_the_identity_that_is_scaled_goes_with_what_comes_of_it(tmp_path):
    (found,) = findings_of(of_ones, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, first.fix) == ("diagonal-matrix", "multiply_by_vector")
    assert first.saves_bytes > 1.9 * WIDTH * WIDTH * 4


@pytest.mark.parametrize("program", [fires, by_name, of_two_vectors, by_letters])
def test_the_matrix_is_told(program, tmp_path):
    (found,) = findings_of(program, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, found.bytes) == ("diagonal-matrix", WIDTH * WIDTH * 4)
    assert first.fix == "multiply_by_vector"
    # Operands and results of other lines are there as well.
    assert first.peak_after < ROWS * WIDTH * 4 * 2 + WIDTH * 4 * 2


def test_a_matrix_that_is_also_added_to_is_left_alone(tmp_path):
    assert "diagonal-matrix" not in names(looks_alike, tmp_path / "run.json")


def of_degrees():
    """An adjacency matrix as large is scaled from both sides."""

    def step(number):
        adj = torch.rand(WIDTH, WIDTH)
        degrees = torch.diag(adj.sum(1).pow(-0.5))
        return torch.mm(torch.mm(degrees, adj), degrees).sum().item()

    return step


class Whitening:
    """A method returns the matrix."""

    def __init__(self):
        self.var = torch.rand(WIDTH) + 1

    def matrix(self):
        return torch.eye(len(self.var)) * self.var.rsqrt()

    def scale(self, x):
        return x @ self.matrix()


def by_method():
    whitening = Whitening()

    def step(number):
        return whitening.scale(torch.rand(ROWS, WIDTH)).sum().item()

    return step


def noise_of(width):
    return torch.diag(torch.rand(width))


def returned_to_be_added():
    """A function returns it, to a product and to a sum."""

    def step(number):
        x = torch.rand(ROWS, WIDTH)
        added = noise_of(WIDTH) + 0.1
        return (x @ noise_of(WIDTH)).sum().item() + added.sum().item()

    return step


def test_one_of_several_as_large_is_told(tmp_path):
    (found,) = [one for one in findings_of(of_degrees, tmp_path / "run.json") if not one.minor]
    (first,) = found.remedies
    assert (found.rule, found.bytes) == ("diagonal-matrix", WIDTH * WIDTH * 4)
    assert first.code == "degrees = torch.diag(adj.sum(1).pow(-0.5))"
    assert first.saves_bytes == WIDTH * WIDTH * 4


def test_what_a_method_returns_is_what_its_calls_are(tmp_path):
    found, *_ = findings_of(by_method, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, found.minor) == ("diagonal-matrix", False)
    assert (first.fix, first.code) == (
        "multiply_by_vector",
        "return torch.eye(len(self.var)) * self.var.rsqrt()",
    )
    assert "diagonal-matrix" not in names(returned_to_be_added, tmp_path / "added.json")
