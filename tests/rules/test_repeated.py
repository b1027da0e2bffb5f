"""repeated: a tensor is copied several times where a view would do."""

from __future__ import annotations

import torch


def fires():
    def step(number):
        queries, keys = torch.randn(64, 32), torch.randn(64, 32)
        pairs = queries.unsqueeze(1).repeat(1, 64, 1)
        (pairs + keys).tanh_().sum().item()

    return step


def looks_alike():
    """The same sum, of a view."""

    def step(number):
        queries, keys = torch.randn(64, 32), torch.randn(64, 32)
        pairs = queries.unsqueeze(1).expand(64, 64, 32)
        (pairs + keys).tanh_().sum().item()

    return step
