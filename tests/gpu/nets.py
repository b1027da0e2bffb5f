"""A model whose weights take bytes that nothing else in a small job takes."""

from __future__ import annotations

import torch

__all__ = ["WIDTH", "Net"]

WIDTH = 640


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.second(self.first(x).relu())
