"""parameter-groups: parameters are put into a group that an optimizer has."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names

WIDTH = 64


class Prompts:
    """A model whose prompt is replaced, and the optimizer that trains it."""

    def __init__(self):
        self.body = nn.Linear(WIDTH, WIDTH)
        self.optimizer = torch.optim.SGD(self.body.parameters(), 0.1)
        self.prompt = self.made()

    def made(self):
        return nn.Parameter(torch.ones(WIDTH, WIDTH))

    def train(self):
        self.body(self.prompt).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def appended():
    tuner = Prompts()

    def step(number):
        tuner.prompt = tuner.made()
        tuner.optimizer.param_groups[0]["params"].append(tuner.prompt)
        tuner.train()

    return step


def extended_in_a_loop():
    tuner = Prompts()

    def step(number):
        tuner.prompt = tuner.made()
        for group in tuner.optimizer.param_groups:
            group["params"] += [tuner.prompt]
        tuner.train()

    return step


def made_anew():
    tuner = Prompts()

    def step(number):
        tuner.prompt = tuner.made()
        group = tuner.optimizer.param_groups[0]
        group["params"] = [*group["params"], tuner.prompt]
        tuner.train()

    return step


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (appended, 'tuner.optimizer.param_groups[0]["params"].append(tuner.prompt)'),
        (extended_in_a_loop, 'group["params"] += [tuner.prompt]'),
        (made_anew, 'group["params"] = [*group["params"], tuner.prompt]'),
    ],
)
def test_old_parameters_are_to_be_taken_out_of_the_group(program, code, tmp_path):
    found, *_ = findings_of(program, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "parameter-groups"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == ("del_ref", code)
    assert "take old ones out of the group's `params` and `state`" in first.why


def replaced():
    """The prompt's place in the group is given to the new one, and its rate is set."""
    tuner = Prompts()
    tuner.optimizer.param_groups[0]["params"].append(tuner.prompt)
    outputs = []

    def step(number):
        tuner.prompt = tuner.made()
        tuner.optimizer.param_groups[0]["params"][-1] = tuner.prompt
        tuner.optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
        tuner.train()
        outputs.append(tuner.body(tuner.prompt).detach())

    return step


def test_a_parameter_that_is_replaced_in_the_group_is_none(tmp_path):
    assert "parameter-groups" not in names(replaced, tmp_path / "run.json")
