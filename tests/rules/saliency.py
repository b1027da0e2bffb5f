"""A program that learns from the gradient of its images: frozen-graph must be silent.

It has a file of its own: the statement that asks for a gradient is looked for in every file that
stands in the stacks, and one that is never run counts as well.
"""

from __future__ import annotations

import torch
from torch import nn

BATCH, WIDTH, LAYERS = 512, 64, 6


def probe():
    """A frozen backbone, and a head that is trained on what comes out of it."""
    layers = [m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    backbone = nn.Sequential(*layers).requires_grad_(False)
    head = nn.Linear(WIDTH, 4)
    return backbone, head, torch.optim.SGD(head.parameters(), 0.1)


def saliency():
    """Step of a probe that weighs what the head looks at."""
    backbone, head, optimizer = probe()
    shares = []

    def step(number):
        images = torch.randn(BATCH, WIDTH)
        images.requires_grad_(True)
        head(backbone(images)).square().mean().backward()
        shares.append(images.grad.abs().mean().item())
        optimizer.step()
        optimizer.zero_grad()

    return step
