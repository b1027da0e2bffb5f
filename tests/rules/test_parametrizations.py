"""parametrizations: every call puts one more parametrization on those that a module has."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.parametrize import register_parametrization

from tests.rules.recorded import findings_of

WIDTH = 64


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("noise", torch.zeros(WIDTH, WIDTH))

    def forward(self, weight):
        return weight + self.noise


def fires():
    layer = nn.Linear(WIDTH, WIDTH)

    def step(number):
        register_parametrization(layer, "weight", Noise())

    return step


def looks_alike():
    """It is registered once; what grows is a list of the weights as they are computed."""
    layer, weights = nn.Linear(WIDTH, WIDTH), []
    register_parametrization(layer, "weight", Noise())

    def step(number):
        weights.append(layer.weight.detach())

    return step


def test_it_is_to_be_registered_once(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "parametrizations"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == (
        "del_ref",
        'register_parametrization(layer, "weight", Noise())',
    )


def by_a_function_of_torch():
    """Its vectors come again with every call."""
    layer = nn.Linear(1, WIDTH * WIDTH)

    def step(number):
        spectral_norm(layer)

    return step


def test_a_function_of_torch_that_registers_one_is_to_be_called_once(tmp_path):
    found, *_ = findings_of(by_a_function_of_torch, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "parametrizations"
    assert found.bytes_per_step >= WIDTH * WIDTH * 4
    assert (first.fix, first.code) == ("del_ref", "spectral_norm(layer)")
