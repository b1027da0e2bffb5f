"""A model that keeps something of each call, in a file of its own; no test is here."""

from __future__ import annotations

from torch import nn

__all__ = ["Remembering"]


class Remembering(nn.Module):
    """Adds what it was given last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.last = None

    def forward(self, x):
        last, self.last = self.last, x
        return self.outer(self.inner(x if last is None else x + last))
