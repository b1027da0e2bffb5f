"""lbfgs-history: where the program says how many pairs are kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import names

WIDTH = 256


def training(size):
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    x, y = torch.randn(32, WIDTH), torch.randn(32, WIDTH)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=4, history_size=size)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    return lambda number: optimizer.step(closure)


@pytest.mark.parametrize(("size", "is_told"), [(20, False), (30, True)])
def test_a_history_that_was_chosen_counts_from_twenty_pairs(size, is_told, tmp_path):
    rules = names(lambda: training(size), tmp_path / "run.json")
    assert ("lbfgs-history" in rules) is is_told
