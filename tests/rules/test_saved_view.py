"""saved-view: a custom Function saves a view of its own output."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names

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


class Halves(torch.autograd.Function):
    """Saves both halves of its output, by names that one statement unpacks."""

    @staticmethod
    def forward(x):
        return x.sigmoid()

    @staticmethod
    def setup_context(ctx, inputs, output):
        first, second = output.chunk(2, dim=-1)
        ctx.save_for_backward(inputs[0], first, second)

    @staticmethod
    def backward(ctx, grad):
        _, first, second = ctx.saved_tensors
        return grad * first.mean() * second.mean()


def remember(ctx, tensor, width):
    part = tensor[:, :width]
    ctx.save_for_backward(part)


class Remembering(torch.autograd.Function):
    """Has a function save a part of its output."""

    @staticmethod
    def forward(ctx, x):
        out = x.sigmoid()
        remember(ctx, out, 8)
        return out

    @staticmethod
    def backward(ctx, grad):
        (part,) = ctx.saved_tensors
        return grad * part.mean()


class Copying(torch.autograd.Function):
    """Saves its output, and a copy of a part."""

    @staticmethod
    def forward(ctx, x):
        out = x.sigmoid()
        part = out[:, :8].clone()
        ctx.save_for_backward(out, part)
        return out

    @staticmethod
    def backward(ctx, grad):
        out, part = ctx.saved_tensors
        return grad * out * part.mean()


def trained_with(function):
    """A job that also runs backward passes, through other layers."""
    layer = nn.Linear(WIDTH, WIDTH)

    def step(number):
        function.apply(layer(torch.randn(WIDTH, WIDTH))).mean().item()
        layer(torch.randn(WIDTH, WIDTH)).square().mean().backward()

    return step


def halves():
    return trained_with(Halves)


def remembering():
    return trained_with(Remembering)


def copying():
    return trained_with(Copying)


@pytest.mark.parametrize(
    ("program", "code", "line"),
    [
        (
            halves,
            "ctx.save_for_backward(inputs[0], first, second)",
            "ctx.save_for_backward(inputs[0], first.clone(), second.clone())",
        ),
        (
            remembering,
            "ctx.save_for_backward(part)",
            "ctx.save_for_backward(part.clone())",
        ),
    ],
)
def test_a_view_that_has_a_name_is_told_by_the_chain(program, code, line, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.rule, first.fix) == ("saved-view", "saved-view", "clone_view")
    assert first.code == code
    assert f"+ {line}" in " ".join(first.patch.split())


def test_a_copy_of_a_part_may_be_saved(tmp_path):
    assert "saved-view" not in names(copying, tmp_path / "run.json")
