"""unused-second-order: where the graph is asked for by keyword arguments that are handed on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names

WIDTH, ROWS = 64, 1024


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))

    def score(self, x, **keywords):
        (gradient,) = torch.autograd.grad(self.net(x).sum(), x, **keywords)
        return gradient


def sampled(energy, x, options):
    for _ in range(5):
        x = x - 0.01 * energy.score(x, **options)
    return x


def keeps_graphs():
    energy = Energy()
    options = {"create_graph": True}

    def step(number):
        x = torch.randn(ROWS, 16, requires_grad=True)
        return sampled(energy, x, options).std().item()

    return step


def learns_through_them():
    energy = Energy()
    options = {"create_graph": True}

    def step(number):
        energy.zero_grad()
        x = torch.randn(ROWS, 16, requires_grad=True)
        sampled(energy, x, options).square().mean().backward()

    return step


def keeps_none():
    energy = Energy()

    def step(number):
        x = torch.randn(ROWS, 16)
        for _ in range(5):
            x = (x - 0.01 * energy.score(x.requires_grad_(), retain_graph=False)).detach()
        return x.std().item()

    return step


def test_the_line_that_asks_for_the_graph_is_named(tmp_path):
    found = findings_of(keeps_graphs, tmp_path / "run.json")[0]
    (remedy,) = found.remedies
    assert (found.rule, remedy.fix) == ("unused-second-order", "no_create_graph")
    assert remedy.code == 'options = {"create_graph": True}'
    assert found.site.code.startswith("(gradient,) = torch.autograd.grad(")
    assert found.bytes > 5 * ROWS * WIDTH * 4


@pytest.mark.parametrize("program", [learns_through_them, keeps_none])
def test_a_graph_that_is_gone_through_or_not_there_is_none(program, tmp_path):
    assert "unused-second-order" not in names(program, tmp_path / "run.json")
