"""hook: a registered hook keeps all that its function closes over."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


def fires():
    """The hook of a tensor reads the tensor."""
    layer = nn.Linear(WIDTH, WIDTH)

    def step(number):
        z = layer(torch.randn(WIDTH, WIDTH))
        z.register_hook(lambda grad: grad * (z > 0))
        z.sum().backward()
        layer.zero_grad()

    return step


def looks_alike():
    """The hook reads a mask that was computed beforehand; masks pile up in a list."""
    layer, masks = nn.Linear(WIDTH, WIDTH), []

    def step(number):
        z = layer(torch.randn(WIDTH, WIDTH))
        mask = (z.detach() > 0).float()
        masks.append(mask)
        z.register_hook(lambda grad: grad * mask)
        z.sum().backward()
        layer.zero_grad()

    return step


def test_the_cycle_is_named_where_the_hook_is_registered(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first, second, *_ = found.remedies
    assert found.rule == first.rule == second.rule == "hook"
    assert (first.fix, second.fix) == ("break_cycle", "remove_hook")
    assert first.code == "z.register_hook(lambda grad: grad * (z > 0))"
