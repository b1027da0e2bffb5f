"""unused-second-order: gradients keep the graph that made them, and none are taken through it."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from tests.rules.recorded import findings_of, names

WIDTH = 64


class Learner:
    """It adapts weights to a task, in its training and in its test."""

    def __init__(self):
        self.model = nn.Sequential(
            nn.Linear(1, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)

    def loss(self, weights, x):
        return (functional_call(self.model, weights, (x,)) - x).square().mean()

    def adapt(self, x, rounds):
        weights = dict(self.model.named_parameters())
        for _ in range(rounds):
            grads = torch.autograd.grad(
                self.loss(weights, x), list(weights.values()), create_graph=True
            )
            weights = {k: w - 0.01 * g for (k, w), g in zip(weights.items(), grads, strict=True)}
        return weights

    def train(self, rounds=2, rows=8):
        x = torch.randn(rows, 1)
        self.optimizer.zero_grad()
        self.loss(self.adapt(x, rounds), x).backward()
        self.optimizer.step()

    def test(self):
        x = torch.randn(1024, 1)
        weights = self.adapt(x, 6)
        with torch.no_grad():
            return self.loss(weights, x).item()


def fires():
    learner = Learner()

    def step(number):
        learner.train()
        if number % 4 == 3:
            learner.test()

    return step


def looks_alike():
    learner = Learner()
    return lambda _: learner.train(rounds=6, rows=1024)


class Field(nn.Module):
    """Its third derivative is asked for: each pass goes through the one before."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def curvature(self, x):
        y = self.net(x)
        for _ in range(3):
            y = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
        return y.square().mean().item()


def derivative_of_a_derivative():
    field = Field()
    return lambda _: field.curvature(torch.randn(2048, 1, requires_grad=True))


def test_a_test_that_adapts_as_the_training_does_needs_no_graph_of_its_gradients(tmp_path):
    (found,) = [
        one
        for one in findings_of(fires, tmp_path / "run.json")
        if one.rule == "unused-second-order"
    ]
    (remedy,) = found.remedies
    assert remedy.fix == "no_create_graph"
    assert remedy.code.startswith("grads = torch.autograd.grad(")
    assert "where it is called from line" in remedy.why
    # Two layers keep 1024 rows of 64 floats for each of six passes, twice: forward and backward.
    assert found.bytes > 6 * 4 * 1024 * WIDTH * 4
    assert remedy.saves_bytes > 0.7 * found.bytes


def test_a_loss_that_goes_back_through_all_passes_needs_it(tmp_path):
    assert "unused-second-order" not in names(looks_alike, tmp_path / "run.json")


def test_so_does_a_derivative_of_the_derivative_before(tmp_path):
    assert "unused-second-order" not in names(derivative_of_a_derivative, tmp_path / "run.json")
