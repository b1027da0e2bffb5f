"""hook: functions that are registered with a part of their arguments, on layers of others."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


def give(outputs, module, inputs, output):
    outputs.append(output.detach().clone())


def replace(outputs, module, inputs, output):
    outputs["last"] = output.detach().clone()


class Features:
    def __init__(self, layers):
        self.outputs = []
        for layer in layers:
            layer.register_forward_hook(hook=partial(give, self.outputs))


class LastFeatures:
    def __init__(self, layers):
        self.outputs = {}
        for layer in layers:
            layer.register_forward_hook(hook=partial(replace, self.outputs))


def fires():
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH)).requires_grad_(False)

    def step(number):
        for _ in range(1):
            Features([net[0]])
        net(torch.ones(WIDTH, WIDTH))

    return step


def looks_alike():
    """Registered once, and it replaces what it has."""
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH)).requires_grad_(False)
    LastFeatures([net[0]])
    return lambda number: net(torch.ones(WIDTH, WIDTH))


def test_a_partial_is_removed_where_it_is_registered(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json", steps=40)
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("hook", "remove_hook")
    assert first.code == "layer.register_forward_hook(hook=partial(give, self.outputs))"


def test_a_partial_that_replaces_what_it_has_is_no_growth(tmp_path):
    found = findings_of(looks_alike, tmp_path / "run.json", steps=40)
    assert not any(one.bytes_per_step for one in found)
