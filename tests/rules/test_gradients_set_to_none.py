"""unused-gradients: what the program steps by hand and lets go of now and then is in use."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

ROWS, WIDTH, PERIOD = 64, 256, 12


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.table(x))


def training():
    """The table is trained by hand, every twelve batches."""
    model = Net()
    optimizer = torch.optim.Adam(model.head.parameters())

    def step(number):
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % PERIOD == PERIOD - 1:
            with torch.no_grad():
                for parameter in model.table.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)
                    parameter.grad = None

    return step


def test_gradients_that_go_by_hand_are_trained_by_hand(tmp_path):
    found = findings_of(training, tmp_path / "run.json", 48)
    assert "unused-gradients" not in {one.rule for one in found}
