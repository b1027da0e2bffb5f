"""uncalled-module: a part of a model is called as the model is made, and no more."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 256


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, x):
        return self.layers(x)


class Prompted(nn.Module):
    """Compares what one tower makes of a batch with what another made of all names at first."""

    def __init__(self, towers):
        super().__init__()
        self.towers = towers
        towers.of_names.requires_grad_(False)
        self.register_buffer("weights", self.embedded())

    @torch.no_grad()
    def embedded(self):
        return self.towers.of_names(torch.ones(4, WIDTH))

    def forward(self, x):
        return self.towers.of_images(x) @ self.weights.t()


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.of_names, self.of_images = Tower(), Tower()


def training(evaluated=lambda model, number: None):
    model = Prompted(Towers())
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad])

    def step(number):
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()
        evaluated(model, number)

    return step


def done():
    return training()


def asked_again_at_the_end():
    return training(lambda model, number: model.embedded() if number == 23 else None)


def test_the_call_of_what_called_it_last_is_where_it_is_to_be_dropped(tmp_path):
    (found,) = [
        one
        for one in findings_of(done, tmp_path / "run.json", steps=24, is_over=True)
        if one.rule == "uncalled-module"
    ]
    (first,) = found.remedies
    assert found.bytes == 4 * (WIDTH + 1) * WIDTH * 4
    assert first.code == 'self.register_buffer("weights", self.embedded())'
    line = Prompted.embedded.__wrapped__.__code__.co_firstlineno + 2
    assert first.why.startswith(f"Line {line} is the last that calls `Prompted.towers.of_names`")


@pytest.mark.parametrize("program", [asked_again_at_the_end])
def test_what_is_called_again_is_needed(program, tmp_path):
    findings = findings_of(program, tmp_path / "run.json", steps=24, is_over=True)
    assert "uncalled-module" not in [one.rule for one in findings]


def test_where_only_a_block_was_recorded_it_may_be_called_later(tmp_path):
    findings = findings_of(done, tmp_path / "run.json", steps=24)
    assert "uncalled-module" not in [one.rule for one in findings]
