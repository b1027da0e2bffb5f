"""saved-unread: tensors are saved for a backward pass that never reads them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of, record

ROWS, WIDTH, LAYERS = 64, 256, 6
ONE = ROWS * WIDTH * 4


class Norm(torch.autograd.Function):
    """Saves its input and output, too."""

    @staticmethod
    def forward(ctx, x, weight):
        inverse = x.square().mean(1, keepdim=True).rsqrt()
        normal = x * inverse
        y = normal * weight
        ctx.save_for_backward(x, normal, y, inverse, weight)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, normal, y, inverse, weight = ctx.saved_tensors  # noqa: RUF059 - that is the mistake
        of_normal = grad * weight
        inner = (of_normal * normal).mean(1, keepdim=True)
        return (of_normal - normal * inner) * inverse, (grad * normal).sum(0)


class LeanNorm(torch.autograd.Function):
    """Saves what its backward pass reads."""

    @staticmethod
    def forward(ctx, x, weight):
        inverse = x.square().mean(1, keepdim=True).rsqrt()
        normal = x * inverse
        y = normal * weight
        ctx.save_for_backward(normal, inverse, weight)
        return y

    @staticmethod
    def backward(ctx, grad):
        normal, inverse, weight = ctx.saved_tensors
        of_normal = grad * weight
        inner = (of_normal * normal).mean(1, keepdim=True)
        return (of_normal - normal * inner) * inverse, (grad * normal).sum(0)


class Squared(torch.autograd.Function):
    """Its input is the next layer's, which has saved it as well; it is not read here."""

    @staticmethod
    def forward(ctx, x, weight):
        y = x * weight
        ctx.save_for_backward(x, y, weight)
        return y

    @staticmethod
    def backward(ctx, grad):
        saved = ctx.saved_tensors
        return grad * saved[2], (grad * saved[0]).sum(0)


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.weights = nn.ParameterList(torch.ones(WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        for layer, weight in zip(self.layers, self.weights, strict=True):
            x = self.function.apply(layer(x), weight) + 0.1  # another tensor goes on
        return x


def trained(function):
    def program():
        model = Model(function)
        optimizer = torch.optim.SGD(model.parameters())

        def step(number):
            model(torch.rand(ROWS, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


def fires():
    """Six norms, of which each keeps two tensors more than it needs."""
    return trained(Norm)()


def looks_alike():
    """The same norms, which save what they read."""
    return trained(LeanNorm)()


def test_what_is_not_read_is_not_to_be_saved(tmp_path):
    found = findings_of(fires, tmp_path / "run.json", steps=24)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("saved-unread", "save_less")
    # the result of each linear layer, and that of each norm
    assert found.bytes == 2 * LAYERS * ONE
    assert first.typed == "ctx.save_for_backward(normal, inverse, weight)"
    assert first.code == "ctx.save_for_backward(x, normal, y, inverse, weight)"
    assert first.why.startswith("`x` and `y` are saved and never read in `backward`")


def test_the_saving_is_what_saving_less_saves(tmp_path):
    first = findings_of(fires, tmp_path / "run.json", steps=24)[0].remedies[0]
    record(trained(LeanNorm), tmp_path / "lean.json", steps=24)
    assert first.peak_after == pytest.approx(peak_of(tmp_path / "lean.json"), rel=0.05)


@pytest.mark.parametrize("function", [LeanNorm, Squared])
def test_what_is_read_or_not_taken_apart_is_left_alone(function, tmp_path):
    assert "saved-unread" not in names(trained(function), tmp_path / "run.json")
