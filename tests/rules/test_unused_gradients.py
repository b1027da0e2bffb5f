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
    gradients = 3 * (192 * 192 * 4 + 1024)  # a bias takes two blocks of 512 bytes
    assert unused.match.graph == 2 * 64 * 192 * 4  # the input is there all the same
    assert unused.bytes == gradients + unused.match.graph
    assert unused.match.modules == "`Teacher.body`"
    assert not unused.match.within_model
    assert [remedy.fix for remedy in unused.remedies] == ["detach", "freeze_params", "no_grad"]
    assert "+        wanted = teacher(x).detach()" in unused.remedies[0].patch


class Distiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(*(Net() for _ in range(4)))
        self.student = nn.Linear(192, 192)

    def forward(self, x):
        wanted = self.teacher(x)
        return (self.student(x) - wanted).square().mean()


def distils():
    """A teacher within the model: its graph is larger than its gradients."""
    model = Distiller()
    optimizer = torch.optim.Adam(model.student.parameters(), 0.1)

    def step(number):
        model(torch.randn(4096, 192)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def learns_through():
    """The same with something that is trained before the teacher, which needs its graph."""
    model = nn.Sequential(nn.Linear(192, 192), Net())
    optimizer = torch.optim.Adam(model[0].parameters(), 0.1)

    def step(number):
        model(torch.randn(64, 192)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_what_a_teacher_without_no_grad_keeps_is_its_graph_and_the_line_is_its_call(tmp_path):
    found = findings_of(distils, tmp_path / "run.json")[0]
    assert (found.rule, found.minor) == ("unused-gradients", False)
    assert found.match.graph >= 10 * 4096 * 192 * 4
    remedy = found.remedies[0]
    assert (remedy.fix, remedy.typed) == ("no_grad", "with torch.no_grad():")
    assert remedy.code == "wanted = self.teacher(x)"
    assert remedy.saves_bytes > 8 * 4096 * 192 * 4
    assert remedy.peak_before - remedy.peak_after == remedy.saves_bytes


def test_a_graph_that_something_trained_learns_through_is_needed(tmp_path):
    found = [
        one
        for one in findings_of(learns_through, tmp_path / "run.json")
        if one.rule == "unused-gradients"
    ]
    assert [one.match.graph for one in found] == [0]
    assert found[0].remedies[0].fix == "freeze_params"
