"""A job of which a library's trainer runs each step; no test is here."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["fitted_by"]

WIDTH = 192


def fitted_by(library):
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    trainer = library.Trainer(model, torch.optim.SGD(model.parameters(), 0.1))
    return lambda _: trainer.fit_batch(torch.randn(128, WIDTH))
