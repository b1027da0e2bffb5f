"""carried-state: a state is made from that of the step before, with the graphs of all steps."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from tests.rules.recorded import findings_of


def fires():
    cell, memory = nn.GRUCell(64, 64), SimpleNamespace()
    memory.state = torch.zeros(16, 64)

    def step(number):
        memory.state = cell(torch.randn(16, 64), memory.state)

    return step


def looks_alike():
    """The state is cut off between two steps, and each is kept as a list of predictions."""
    cell, memory = nn.GRUCell(64, 64), SimpleNamespace()
    memory.hidden, predictions = torch.zeros(16, 64), []

    def step(number):
        memory.hidden = cell(torch.randn(16, 64), memory.hidden.detach())
        memory.hidden.square().mean().backward()
        predictions.append(memory.hidden.detach())

    return step


def test_the_state_is_handed_on_without_its_graph(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "carried-state"
    assert first.fix == "detach"
    assert "memory.state.detach())" in first.patch
