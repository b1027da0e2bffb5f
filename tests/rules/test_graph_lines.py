"""Of several lines that fill what keeps a graph, the one that stores a tensor with a graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


class Memory(nn.Module):
    """Its reset stands before the line that carries the graph on."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("state", torch.zeros(WIDTH, WIDTH))

    def reset(self):
        self.state = torch.zeros_like(self.state)

    def forward(self, number):
        index = torch.arange(8)
        self.state = self.state.index_copy(0, index, torch.tanh(self.cell(self.state[index])))


class Priorities:
    """A number is stored first, and a tensor with a graph later on."""

    def __init__(self):
        self.model = nn.Linear(WIDTH, WIDTH)
        self.priority = torch.zeros(WIDTH)
        self.size = 0

    def add(self, number):
        self.priority[number % WIDTH] = self.priority.max().item() if self.size else 1.0
        self.size += 1

    def step(self, number):
        self.add(number)
        error = torch.tanh(self.model(torch.randn(WIDTH, WIDTH))).mean(0)
        self.priority[torch.randperm(WIDTH)] = error.abs() + 1e-4


class Newton(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    def advance(self, loss):
        for group in self.param_groups:
            gradients = torch.autograd.grad(loss, group["params"], create_graph=True)
            for parameter, gradient in zip(group["params"], gradients, strict=True):
                kept = self.state[parameter]
                if not kept:
                    kept["momentum"] = torch.zeros_like(parameter)
                kept["momentum"] = 0.9 * kept["momentum"] + gradient


def carries():
    return Memory().forward


def prioritizes():
    return Priorities().step


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        self.optimizer = Newton(self.model.parameters())

    def step(self, number):
        self.optimizer.advance(self.model(torch.randn(WIDTH, WIDTH)).mean())


def optimizes():
    return Trainer().step


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (carries, "self.state = self.state.index_copy("),
        (prioritizes, "self.priority[torch.randperm(WIDTH)] = error.abs() + 1e-4"),
        (optimizes, 'kept["momentum"] = 0.9 * kept["momentum"] + gradient'),
    ],
)
def test_the_line_that_stores_the_graph_is_to_detach(program, code, tmp_path):
    first = findings_of(program, tmp_path / "run.json", steps=24)[0].remedies[0]
    assert first.code.startswith(code)
    assert first.fix == "detach"


def score(critic, x):
    return critic(x).mean()


def validated():
    """The sum of a validation's losses has their graphs until the next one begins."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    critic = nn.Sequential(*(m for _ in range(2) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    total = [0.0]

    def step(number):
        x = torch.randn(512, WIDTH)
        model(x).square().mean().backward()
        model.zero_grad()
        if number % 6 == 0:
            total[0] = 0.0
        total[0] = total[0] + score(critic, x)

    return step


def test_old_graphs_that_never_go_backward_need_not_be_built(tmp_path):
    """A line that is known to add them up says more, and comes first."""
    (graphs,) = [
        one for one in findings_of(validated, tmp_path / "run.json") if one.rule == "old-graphs"
    ]
    added, unbuilt = graphs.remedies
    assert (added.fix, added.code) == ("detach", "total[0] = total[0] + score(critic, x)")
    assert "add `score(critic, x)` detached" in added.why
    assert (unbuilt.fix, unbuilt.code) == ("no_grad", "return critic(x).mean()")
    assert "+@torch.no_grad()\n def score(critic, x):" in unbuilt.patch


def adapted():
    """An evaluation in the middle: its sum has the graphs of all its rounds until the next one."""
    model = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    last = []

    def loss_after_adapting():
        loss = model(torch.randn(512, WIDTH)).square().mean()
        inner = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        return loss + sum(one.square().sum() for one in inner)

    def evaluate():
        total = 0.0
        for _ in range(4):
            loss = loss_after_adapting()
            total += loss
        return total

    def step(number):
        loss_after_adapting().backward()
        model.zero_grad()
        if number == 10:
            last[:] = [evaluate()]

    return step


def test_graphs_of_one_evaluation_that_came_late_are_no_growth(tmp_path):
    (graphs,) = [
        one for one in findings_of(adapted, tmp_path / "run.json") if one.rule == "old-graphs"
    ]
    assert graphs.match.steps == 1
    assert not graphs.minor
    (cut,) = graphs.remedies
    assert (cut.fix, cut.code) == ("detach", "last[:] = [evaluate()]")
