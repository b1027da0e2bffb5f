"""unused-gradients: gradients that no optimizer reads and nothing clears."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(192, 192) for _ in range(3)))

    def forward(self, x):
        return self.body(x)


class Teacher(Net):
    pass


def fires():
    net, teacher = Net(), Teacher()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(number):
        x = torch.randn(64, 192)
        wanted = teacher(x)
        (net(x) - wanted).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def looks_alike():
    """The critic of a generator gets gradients in each step, and is trained in every third."""
    net, critic = Net(), Teacher()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    of_critic = torch.optim.SGD(critic.parameters(), 0.1)

    def step(number):
        made = net(torch.randn(64, 192))
        critic(made).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 3 == 0:
            of_critic.zero_grad()
            (-critic(made.detach()).mean()).backward()
            of_critic.step()

    return step


def test_they_are_the_gradients_of_the_teacher_and_its_output_is_cut_off(tmp_path):
    (unused,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "unused-gradients"
    ]
    assert unused.bytes == 3 * (192 * 192 * 4 + 1024)  # a bias takes two blocks of 512 bytes
    assert unused.match.modules == "`Teacher.body`"
    assert not unused.match.within_model
    assert [remedy.fix for remedy in unused.remedies] == ["detach", "freeze_params", "no_grad"]
    assert "+        wanted = teacher(x).detach()" in unused.remedies[0].patch
