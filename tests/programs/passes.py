"""Programs whose passes can be arranged otherwise: checkpointed, or with a backward pass each."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import gelu
from torch.utils.checkpoint import checkpoint

import memprof

STEPS = 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(96, 384), nn.Linear(384, 96)
        self.norm = nn.LayerNorm(96)

    def forward(self, x):
        return x + self.narrow(gelu(self.wide(self.norm(x))))


class Tower(nn.Module):
    def __init__(self, again):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(8))
        self.head, self.again = nn.Linear(96, 10), again

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(x)


class Deep:
    """One pass through many blocks."""

    def __init__(self, mended):
        self.net = Tower(again=mended)

    def passes(self):
        self.net(torch.randn(512, 96)).square().mean().backward()


class Summed:
    """Several passes, and one backward pass for the sum of their losses."""

    def __init__(self, mended):
        self.net, self.mended = Tower(again=False), mended

    def passes(self):
        total = torch.zeros(())
        for length in (60, 120, 180, 240):
            loss = self.net(torch.randn(length, 96)).square().mean()
            if self.mended:
                loss.backward()
            else:
                total = total + loss
        if not self.mended:
            total.backward()


class Unrolled(Summed):
    """Passes of which each goes on with what the one before has made."""

    def passes(self):
        total, state = torch.zeros(()), torch.randn(120, 96)
        for _ in range(4):
            state = state + self.net(state).mean()
            total = total + state.square().mean()
        total.backward()


def record(path, kind, mended):
    job = kind(mended)
    optimizer = torch.optim.SGD(job.net.parameters(), lr=1e-3)
    with memprof.track(path, sources=["cpu"]) as tracker:
        for _ in range(STEPS):
            optimizer.zero_grad()
            job.passes()
            optimizer.step()
            tracker.step()
