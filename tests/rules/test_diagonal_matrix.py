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


@pytest.mark.parametrize("program", [fires, by_name, of_two_vectors])
def test_the_matrix_is_told(program, tmp_path):
    (found,) = findings_of(program, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, found.bytes) == ("diagonal-matrix", WIDTH * WIDTH * 4)
    assert first.fix == "multiply_by_vector"
    # Operands and results of other lines are there as well.
    assert first.peak_after < ROWS * WIDTH * 4 * 2 + WIDTH * 4 * 2


def test_a_matrix_that_is_also_added_to_is_left_alone(tmp_path):
    assert "diagonal-matrix" not in names(looks_alike, tmp_path / "run.json")
