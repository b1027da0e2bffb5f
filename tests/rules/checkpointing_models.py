"""A model that recomputes its blocks in training mode alone, as models of transformers do."""

from __future__ import annotations

from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, BLOCKS, ROWS = 64, 8, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return x + self.layers(x)


class Model(nn.Module):
    """As models of transformers, it looks at its switch in training mode alone."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.recomputes = False

    def gradient_checkpointing_enable(self):
        self.recomputes = True

    def forward(self, x):
        for block in self.blocks:
            if self.recomputes and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return x
