"""idle-states: an optimizer has made states for parameters that never get a gradient."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 192


class Eager(torch.optim.Optimizer):
    """It makes its averages as it is made, as many optimizers that people write do."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})
        for group in self.param_groups:
            for one in group["params"]:
                self.state[one]["average"] = torch.zeros_like(one)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    average = self.state[one]["average"].lerp_(one.grad, 0.1)
                    one.sub_(average, alpha=group["lr"])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)))
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x):
        return self.head(self.backbone(x))


def training(optimizer, *, frozen):
    model = Classifier()
    model.backbone.requires_grad_(not frozen)
    made = optimizer(model.parameters())

    def step(number):
        model(torch.randn(4, WIDTH)).square().mean().backward()
        made.step()
        made.zero_grad()

    return step


def fires():
    return training(Eager, frozen=True)


def looks_alike():
    return training(Eager, frozen=False)


def torchs_own():
    return training(lambda parameters: torch.optim.Adam(parameters, foreach=False), frozen=True)


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WIDTH, WIDTH, sparse=True)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x):
        return self.head(self.table(x))


def sparse_gradients():
    """torch's Adagrad makes its sums as it is made, for a table whose gradients are sparse too."""
    model = Table()
    optimizer = torch.optim.Adagrad(model.parameters())

    def step(number):
        with torch.sparse.check_sparse_tensor_invariants():
            model(torch.arange(8)).square().mean().backward()
            optimizer.step()
        optimizer.zero_grad()

    return step


def idle(program, path, *, is_over=True):
    found = findings_of(program, path, is_over=is_over)
    return [one for one in found if one.rule == "idle-states"]


def test_states_of_a_frozen_part_are_told_with_the_line_that_gives_it(tmp_path):
    (found,) = idle(fires, tmp_path / "run.json")
    (remedy,) = found.remedies
    assert found.bytes == remedy.saves_bytes == 4 * WIDTH * WIDTH * 4
    assert remedy.fix == "trained_parameters"
    assert remedy.code == "made = optimizer(model.parameters())"
    assert not found.is_tentative


def test_a_part_may_be_trained_after_the_recording(tmp_path):
    (found,) = idle(fires, tmp_path / "run.json", is_over=False)
    assert found.is_tentative


def test_a_table_with_sparse_gradients_is_trained(tmp_path):
    assert idle(sparse_gradients, tmp_path / "run.json") == []


def test_an_optimizer_that_waits_for_gradients_has_none(tmp_path):
    assert idle(torchs_own, tmp_path / "run.json") == []
