"""unfused-attention: attention written by hand keeps scores that a fused kernel never makes."""

from __future__ import annotations

import math

import torch
from torch import nn

from tests.rules.recorded import findings_of

LENGTH, WIDTH, HEADS = 512, 32, 2


def attend(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH)
    weights = torch.softmax(scores, -1)
    return weights @ v


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        return x + attend(*self.project(x).chunk(3, -1))


def fires():
    model = nn.Sequential(*(Attention() for _ in range(3)))

    def step(number):
        model(torch.randn(HEADS, LENGTH, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


class Router(nn.Module):
    """Probabilities of a table, which are what is wanted: no product follows."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(LENGTH, WIDTH))

    def forward(self, x):
        scores = x @ self.table.T
        return torch.softmax(scores, -1)


def looks_alike():
    model = Router()

    def step(number):
        model(torch.randn(HEADS * LENGTH, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


def test_the_tables_of_all_layers_are_counted_at_the_function_that_makes_them(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    table = HEADS * LENGTH * LENGTH * 4
    assert (found.rule, found.minor) == ("unfused-attention", False)
    assert found.match.function == "attend"
    assert found.bytes >= 3 * table  # the probabilities of each layer at the least
    remedy = found.remedies[0]
    assert remedy.typed.startswith("F.scaled_dot_product_attention(")
    assert remedy.saves_bytes >= 3 * table
