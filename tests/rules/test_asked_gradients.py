"""unused-gradients, where the program asks for gradients of data: every backward pass leaves one."""

from __future__ import annotations

import torch
from torch import nn

from memprof.source_code.asked_gradients import data_asked_for_gradients
from memprof.source_code.program import program_of
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


BESIDE_A_MODEL = """
def learn(critic, real):
    critic.requires_grad_(True)
    real.requires_grad_(True)
    return critic(real).mean()
"""


def test_a_model_that_is_asked_for_gradients_is_no_data(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(BESIDE_A_MODEL)
    place, name = data_asked_for_gradients([program_of(str(path))])
    assert (place.line, name) == (4, "real")
