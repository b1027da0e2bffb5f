"""expanded-input: a module computes the same for each sample of a batch, of one input."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names

BATCH, POINTS, WIDTH = 16, 128, 32


class Operator(nn.Module):
    """Functions at sensors, and points at which they are asked for."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.branch = nn.Linear(8, WIDTH)
        self.trunk = nn.Sequential(
            nn.Linear(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()
        )
        self.decoder = nn.Bilinear(2, 2, WIDTH)

    def forward(self, functions, points):
        return getattr(self, self.how)(self.branch(functions), points)

    def by_name(self, b, points):
        points = points.unsqueeze(0).expand(b.shape[0], points.shape[0], 2)
        t = self.trunk(points)
        return torch.einsum("bp,bnp->bn", b, t)

    def by_repeating(self, b, points):
        return torch.einsum("bp,bnp->bn", b, self.trunk(points[None].repeat(len(b), 1, 1)))

    def once(self, b, points):
        return torch.einsum("bp,np->bn", b, self.trunk(points))

    def of_samples(self, b, points):
        moved = points.unsqueeze(0).expand(b.shape[0], -1, -1) + b[:, None, :2]
        t = self.trunk(moved)
        return torch.einsum("bp,bnp->bn", b, t)

    def read(self, points):
        return self.trunk(points + self.moved)

    def by_method(self, b, points):
        self.moved = b[:, None, :2]
        t = self.read(points.unsqueeze(0).expand(b.shape[0], -1, -1))
        return torch.einsum("bp,bnp->bn", b, t)

    def with_others(self, b, points):
        points = points.unsqueeze(0).expand(b.shape[0], -1, -1)
        t = self.decoder(points, b[:, None, :2].expand(-1, points.shape[1], -1))
        return torch.einsum("bp,bnp->bn", b, t)


def trained(how):
    def program():
        model = Operator(how)
        optimizer = torch.optim.SGD(model.parameters())

        def step(number):
            model(torch.rand(BATCH, 8), torch.rand(POINTS, 2)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


def fires():
    """Every function is given the same points."""
    return trained("by_name")()


def looks_alike():
    """The points go through the layers once, and their features to all."""
    return trained("once")()


@pytest.mark.parametrize("program", [fires, trained("by_repeating")])
def test_the_module_is_to_be_called_once(program, tmp_path):
    found = findings_of(program, tmp_path / "run.json", steps=24)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix, first.typed) == (
        "expanded-input",
        "run_once",
        "self.trunk(points)",
    )
    # what is kept of four layers, for each function and point, and what takes its place
    assert found.bytes >= 3 * BATCH * POINTS * WIDTH * 4
    assert first.saves_bytes > found.bytes / 2


@pytest.mark.parametrize("how", ["once", "of_samples", "with_others", "by_method"])
def test_an_input_of_its_own_for_each_sample_is_needed(how, tmp_path):
    assert "expanded-input" not in names(trained(how), tmp_path / "run.json")
