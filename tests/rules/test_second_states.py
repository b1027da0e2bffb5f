"""second-states: two optimizers hold state for the same parameters."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH, LAYERS, SWITCH = 128, 3, 6


def model():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def trained(net, optimizer):
    net(torch.randn(16, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def fires():
    """Training is warmed up with one optimizer and goes on with another."""
    net = model()
    warm = torch.optim.Adam(net.parameters(), 1e-3)
    main = torch.optim.Adam(net.parameters(), 1e-4)

    def step(number):
        trained(net, warm if number < SWITCH else main)

    return step


def looks_alike():
    """A generator and its critic: two optimizers with states of the same sizes."""
    generator, critic = model(), model()
    first = torch.optim.Adam(generator.parameters(), 1e-3)
    second = torch.optim.Adam(critic.parameters(), 1e-3)

    def step(number):
        trained(generator, first)
        if number >= SWITCH:
            trained(critic, second)

    return step


def test_the_older_state_is_told_with_what_it_takes(tmp_path):
    (found,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "second-states"
    ]
    assert found.bytes == 2 * LAYERS * WIDTH * WIDTH * 4
    assert found.first_step == found.last_step == 0
    assert found.remedies[0].code == "warm = torch.optim.Adam(net.parameters(), 1e-3)"
