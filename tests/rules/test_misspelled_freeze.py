"""frozen-by-attribute: an attribute of parameters that is only nearly `requires_grad`."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH, BATCH = 256, 32


def layers():
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False)
    )


class Misspelled(nn.Module):
    """Loops over parameters, and sets what they do not have."""

    def __init__(self):
        super().__init__()
        self.net = layers()
        self.out = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.out(self.net(x))


def freeze(net):
    for _, parameter in net.named_parameters():
        parameter.require_grad = False


def misspelled():
    net = Misspelled()
    freeze(net)
    net.out = nn.Linear(WIDTH, 2)
    optimizer = torch.optim.Adam(net.out.parameters())

    def step(number):
        net(torch.randn(BATCH, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_an_attribute_of_parameters_that_is_misspelled_is_named(tmp_path):
    found = findings_of(misspelled, tmp_path / "run.json")
    first = found[0].remedies[0]
    assert found[0].rule == "frozen-by-attribute"
    assert "`Misspelled.net`" in found[0].title
    assert (first.fix, first.code) == ("freeze_params", "parameter.require_grad = False")
    assert first.typed == "parameter.requires_grad = False"
    assert "+        parameter.requires_grad = False" in first.patch
    # the gradients of two matrices
    assert found[0].bytes >= 2 * WIDTH * WIDTH * 4
