"""lbfgs-history: as many pairs as a program itself asks for, up to forty, are meant."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


def training():
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    x, y = torch.randn(32, WIDTH), torch.randn(32, WIDTH)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=4, history_size=40)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    return lambda number: optimizer.step(closure)


def test_forty_pairs_that_the_program_asks_for(tmp_path):
    found = findings_of(training, tmp_path / "run.json", 24)
    assert "lbfgs-history" not in [one.rule for one in found]
