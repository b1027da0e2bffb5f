"""unused-gradients, where the program asks for gradients of data: every backward pass leaves one."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

BATCH, WIDTH, BATCHES = 64, 256, 8


def penalized(own):
    """The critic's gradient by its input is to be small; ``own`` makes the input the step's own."""

    def program():
        critic = nn.Linear(WIDTH, 1)
        optimizer = torch.optim.Adam(critic.parameters())
        data = [torch.randn(BATCH, WIDTH) for _ in range(BATCHES)]

        def learn(real):
            real = own(real)
            real.requires_grad_(True)
            loss = critic(real).mean()
            (slope,) = torch.autograd.grad(loss, real, create_graph=True)
            optimizer.zero_grad()
            (loss + slope.square().mean()).backward()
            optimizer.step()

        def step(number):
            learn(data[number % BATCHES])

        return step

    return program


def gradients(program, path):
    return [one for one in findings_of(program, path) if one.rule == "unused-gradients"]


def test_data_that_is_asked_for_its_gradient_keeps_one(tmp_path):
    (found,) = gradients(penalized(lambda real: real), tmp_path / "run.json")
    (first,) = found.remedies
    assert found.title.endswith("are gradients of data, of what is handed in as `real`")
    assert found.bytes == BATCHES * BATCH * WIDTH * 4
    assert (first.fix, first.code) == ("detach", "real.requires_grad_(True)")
    assert first.typed == "real = real.detach().requires_grad_()"


def test_a_tensor_of_the_steps_own_takes_it_away(tmp_path):
    assert not gradients(penalized(lambda real: real.detach()), tmp_path / "run.json")
