"""written-out: a function that torch has is written out, and each of its steps is kept."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.recorded import findings_of, peak_of

ROWS, WIDTH, LAYERS = 1024, 64, 4
TABLE = ROWS * WIDTH * 4


class Layer(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.linear, self.activation = nn.Linear(WIDTH, WIDTH), activation

    def forward(self, x):
        return self.activation(self.linear(x))


def training(activation):
    layers = [Layer(activation) for _ in range(LAYERS)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(number):
        optimizer.zero_grad()
        model(torch.rand(ROWS, WIDTH)).mean().backward()
        optimizer.step()

    return step


def fires():
    """A GELU, as old models have it."""

    def gelu(x):
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))
        return 0.5 * x * (1 + torch.tanh(inner))

    return training(gelu)


def looks_alike():
    """torch computes it."""
    return training(lambda x: F.gelu(x, approximate="tanh"))


def by_sigmoid():
    def swish(x):
        return x * torch.sigmoid(x)

    return training(swish)


def by_silu():
    return training(F.silu)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.gain * (x - mean) / torch.sqrt(variance + 1e-5) + self.bias


def by_norm():
    return training(Norm())


def by_layer_norm():
    return training(nn.LayerNorm(WIDTH))


def by_methods():
    """A GELU of methods, by a variable that is bound again."""

    def gelu(x):
        part = x.div(math.sqrt(2)).erf()
        part = part.add(1.0).mul(0.5)
        return x * part

    return training(gelu)


def by_gelu():
    return training(F.gelu)


def without_gradients():
    """Nothing waits for a backward pass."""
    layers = nn.Sequential(*[Layer(lambda x: x * torch.sigmoid(x)) for _ in range(LAYERS)])

    def step(number):
        with torch.no_grad():
            layers(torch.rand(ROWS, WIDTH))

    return step


def among_wider_layers():
    """A small part of the peak."""
    model = nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH),
        nn.ReLU(),
        nn.Linear(2 * WIDTH, WIDTH),
        Layer(lambda x: x * torch.sigmoid(x)),
    )

    def step(number):
        model.zero_grad()
        model(torch.rand(ROWS, WIDTH)).mean().backward()

    return step


def written_out_in(program, tmp_path):
    found = findings_of(program, tmp_path / "run.json")
    return [one for one in found if one.rule == "written-out"]


@pytest.mark.parametrize(
    ("program", "function", "instead"),
    [
        (fires, "F.gelu", looks_alike),
        (by_sigmoid, "F.silu", by_silu),
        (by_norm, "F.layer_norm", by_layer_norm),
        (by_methods, "F.gelu", by_gelu),
    ],
)
def test_the_function_is_told_and_what_it_saves(program, function, instead, tmp_path):
    (one,) = written_out_in(program, tmp_path)
    (first,) = one.remedies
    assert (one.minor, first.fix) == (False, "one_function")
    assert first.typed.startswith(f"{function}(x")
    findings_of(instead, tmp_path / "instead.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "instead.json")
    assert first.saves_bytes == pytest.approx(saved, abs=TABLE)
    assert saved >= LAYERS * TABLE


@pytest.mark.parametrize("program", [without_gradients, by_silu, by_layer_norm])
def test_where_no_step_waits_nothing_is_told(program, tmp_path):
    assert written_out_in(program, tmp_path) == []


def test_a_small_part_is_no_headline(tmp_path):
    (one,) = written_out_in(among_wider_layers, tmp_path)
    assert one.minor
    assert (
        one.bytes == 3 * TABLE
    )  # the result of `sigmoid`, and two gradients on the way to the last
