"""kept-distributions: a container keeps distributions and what is computed of their numbers."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of

ROWS, WIDTH = 64, 256
PART = ROWS * WIDTH * 4


class DiagonalGaussianDistribution:
    """As diffusers has it."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.mean, self.logvar = torch.chunk(parameters, 2, dim=1)
        self.logvar = torch.clamp(self.logvar, -30.0, 20.0)
        self.std = torch.exp(0.5 * self.logvar)
        self.var = torch.exp(self.logvar)

    def sample(self):
        return self.mean + self.std * torch.randn(self.mean.shape)


def cached(entry_of, sample_of):
    """Entries are made in the first steps, and drawn from in all later ones."""

    def program():
        cache = []

        def step(number):
            if number < 8:
                cache.append(entry_of(torch.rand(ROWS, 2 * WIDTH)))
            return sample_of(cache[number % 8]).sum().item()

        return step

    return program


fires = cached(DiagonalGaussianDistribution, lambda entry: entry.sample())
looks_alike = cached(
    lambda parameters: parameters,
    lambda entry: DiagonalGaussianDistribution(entry).sample(),
)


def test_the_numbers_stay_and_what_is_computed_of_them_goes(tmp_path):
    (found,) = [
        one
        for one in findings_of(fires, tmp_path / "run.json", steps=32)
        if one.rule == "kept-distributions"
    ]
    (only,) = found.remedies
    assert found.bytes == 8 * 3 * PART
    assert "are `logvar`, `std`, `var` of `DiagonalGaussianDistribution`" in found.title
    assert only.code == "cache.append(entry_of(torch.rand(ROWS, 2 * WIDTH)))"
    assert only.saves_bytes >= 7 * 3 * PART
    assert not found.minor
