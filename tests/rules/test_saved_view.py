"""saved-view: a custom Function saves a view of its own output."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gated = x.sigmoid()
        first = gated[:16]
        ctx.save_for_backward(first.flatten())
        return first, gated

    @staticmethod
    def backward(ctx, of_first, of_gated):
        (first,) = ctx.saved_tensors
        return of_gated * first.mean()


class Scaled(torch.autograd.Function):
    """Saves a view of its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.flatten())
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 + 0 * x.sum()


def fires():
    layer = nn.Linear(WIDTH, WIDTH)

    def step(number):
        first, gated = Gate.apply(layer(torch.randn(WIDTH, WIDTH)))
        (first.mean() + gated.mean()).item()

    return step


def looks_alike():
    layer, outputs = nn.Linear(WIDTH, WIDTH), []

    def step(number):
        out = Scaled.apply(layer(torch.randn(WIDTH, WIDTH)))
        out.mean().backward()
        layer.zero_grad()
        outputs.append(out.detach())

    return step


def test_a_clone_is_to_be_saved(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "saved-view"
    assert first.fix == "clone_view"
    assert "+        ctx.save_for_backward(first.flatten().clone())" in first.patch
