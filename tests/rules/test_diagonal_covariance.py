"""diagonal-matrix: a distribution is given its variances as a matrix."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal

from tests.rules.recorded import findings_of, names, peak_of

BATCH, WIDTH = 64, 64


def training(distribution):
    layer = nn.Linear(WIDTH, 2 * WIDTH)

    def step(number):
        layer.zero_grad()
        mean, log_variance = layer(torch.randn(BATCH, WIDTH)).chunk(2, -1)
        distribution(mean, log_variance.exp()).rsample().square().mean().backward()

    return step


def of_matrices(mean, variance):
    return MultivariateNormal(mean, torch.diag_embed(variance))


def by_keyword(mean, variance):
    scale = torch.diag_embed(variance.sqrt())
    return MultivariateNormal(mean, scale_tril=scale)


def of_vectors(mean, variance):
    return Independent(Normal(mean, variance.sqrt()), 1)


def of_covariances(mean, variance):
    """The dimensions depend on one another."""
    factor = variance[:, :, None] * variance[:, None]
    return MultivariateNormal(mean, torch.diag_embed(variance) + 0.01 * factor)


@pytest.mark.parametrize("distribution", [of_matrices, by_keyword])
def test_standard_deviations_are_the_same_distribution(distribution, tmp_path):
    found = findings_of(lambda: training(distribution), tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix) == ("diagonal-matrix", "multiply_by_vector")
    assert "Independent(torch.distributions.Normal(mean, std), 1)" in only.typed
    findings_of(lambda: training(of_vectors), tmp_path / "vectors.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "vectors.json")
    assert only.saves_bytes == pytest.approx(saved, rel=0.1)


def test_a_matrix_with_more_than_a_diagonal_is_left_alone(tmp_path):
    rules = names(lambda: training(of_covariances), tmp_path / "run.json")
    assert "diagonal-matrix" not in rules
