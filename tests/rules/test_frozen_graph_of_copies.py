"""frozen-graph: a function hands out copies of a batch that ask for gradients nobody reads.

It has a file of its own: the statement that asks for a gradient is looked for in every file that
stands in the stacks, and so are those that read one.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

BATCH, WIDTH, LAYERS = 512, 64, 6


def asking(batch):
    return {key: value.detach().clone().requires_grad_() for key, value in batch.items()}


def program():
    layers = [m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    backbone, head = nn.Sequential(*layers).requires_grad_(False), nn.Linear(WIDTH, 4)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)

    def step(number):
        batch = asking({"pixels": torch.randn(BATCH, WIDTH)})
        head(backbone(batch["pixels"])).square().mean().backward()
        for parameter in head.parameters():
            parameter.grad.clamp_(-1, 1)
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_what_the_backbone_keeps_is_told_at_the_copies(tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    assert (found.rule, found.bytes) == ("frozen-graph", LAYERS * BATCH * WIDTH * 4)
    first = found.remedies[0]
    assert first.fix == "detach"
    assert first.code.startswith("return {key: value.detach().clone().requires_grad_()")
