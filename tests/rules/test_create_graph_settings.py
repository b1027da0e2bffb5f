"""create-graph: the backward pass gets `create_graph` by a variable, or in keyword arguments."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, findings_of_fork, named_by

WIDTH = 64


class Penalty:
    """A critic whose gradient is penalized, by a method that a step calls."""

    def __init__(self):
        self.critic = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def of(self, real):
        raise NotImplementedError

    def step(self, number):
        real = torch.randn(WIDTH, WIDTH, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it makes a cycle
            return self.of(real).item()


class ByKeywords(Penalty):
    def __init__(self):
        super().__init__()
        self.backward_settings = {"create_graph": True}

    def of(self, real):
        self.critic(real).sum().backward(**self.backward_settings)
        return real.grad.square().sum(1).mean()


class ByVariable(Penalty):
    def of(self, real):
        settings = {"create_graph": True}
        self.critic(real).mean().backward(**settings)
        return real.grad.square().sum(1).mean()


class ByFlag(Penalty):
    def of(self, real):
        second_order = True
        self.critic(real).norm().backward(create_graph=second_order)
        return real.grad.square().sum(1).mean()


class WithoutGraph(Penalty):
    """No graph is made, and what grows is a list of gradients."""

    def __init__(self):
        super().__init__()
        self.settings, self.gradients = {"create_graph": False}, []

    def of(self, real):
        self.critic(real).sum().backward(**self.settings)
        self.gradients.append(real.grad)
        return real.grad.square().sum(1).mean()


def by_keywords():
    return ByKeywords().step


def by_variable():
    return ByVariable().step


def by_flag():
    return ByFlag().step


def without_graph():
    return WithoutGraph().step


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (by_keywords, "self.critic(real).sum().backward(**self.backward_settings)"),
        (by_variable, "self.critic(real).mean().backward(**settings)"),
        (by_flag, "self.critic(real).norm().backward(create_graph=second_order)"),
    ],
)
def test_the_backward_pass_is_told(program, code, tmp_path):
    found = findings_of_fork(program, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert found.rule == first.rule == "create-graph"
    assert (first.fix, first.code) == ("set_to_none", code)


def test_settings_that_make_no_graph_are_none(tmp_path):
    found = findings_of(without_graph, tmp_path / "run.json")
    assert any(one.bytes_per_step for one in found)
    assert "create-graph" not in {name for one in found for name in named_by(one)}
