"""kept-distributions: a container keeps distributions and what is computed of their numbers."""

from __future__ import annotations

from dataclasses import replace

import torch

from memprof.loading import load
from memprof.rules.ranked_findings import findings
from tests.rules.recorded import findings_of, record

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


def test_what_no_search_came_to_is_kept_by_the_same_distributions(tmp_path):
    record(fires, tmp_path / "run.json", steps=32)
    run = load(tmp_path / "run.json")
    last = [one.holders[0].links[-1].name if one.holders else "" for one in run.findings]
    assert {"std", "var"} & {*last}
    fewer = [
        one for one, name in zip(run.findings, last, strict=True) if name not in ("std", "var")
    ]
    (found,) = [
        one
        for one in findings(replace(run, findings=tuple(fewer)))
        if one.rule == "kept-distributions"
    ]
    assert found.bytes == 8 * 3 * PART
    assert "are `logvar`, `std`, `var` of `DiagonalGaussianDistribution`" in found.title
