"""context-attribute: a custom Function stores its output as an attribute of `ctx`."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x * x
        ctx.y = y
        return y

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad * ctx.y.abs().pow(2 / 3)


class Power(torch.autograd.Function):
    """Stores a number as an attribute, and its output as it should."""

    @staticmethod
    def forward(ctx, x):
        y = x * x * x
        ctx.exponent = 2 / 3
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return 3 * grad * y.abs().pow(ctx.exponent)


def fires():
    layer = nn.Linear(WIDTH, WIDTH)

    def step(number):
        Cube.apply(layer(torch.randn(WIDTH, WIDTH))).sum().item()

    return step


def looks_alike():
    layer, outputs = nn.Linear(WIDTH, WIDTH), []

    def step(number):
        outputs.append(Power.apply(layer(torch.randn(WIDTH, WIDTH))))

    return step


def test_it_is_to_be_saved_for_the_backward_pass(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "context-attribute"
    assert (first.fix, first.code) == ("save_for_backward", "ctx.y = y")
    assert "+        ctx.save_for_backward(y)" in first.patch
    assert "+        return 3 * grad * ctx.saved_tensors[0].abs().pow(2 / 3)" in first.patch


def through_layers():
    layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def step(number):
        h = torch.randn(WIDTH, WIDTH)
        for layer in layers:
            h = Cube.apply(layer(h))
        h.sum().item()

    return step


def test_layers_that_hand_on_what_they_made_are_no_state_of_the_step_before(tmp_path):
    found, *_ = findings_of(through_layers, tmp_path / "run.json")
    assert found.remedies[0].fix == "save_for_backward"
    assert "detach" not in {one.fix for one in found.remedies}
