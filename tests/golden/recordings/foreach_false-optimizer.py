import functools
import torch
from torch import nn


def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


class Foreach:
    def __init__(self):
        self.net = build(blocks=8)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3, foreach=True)

    def step(self):
        self.net(torch.randn(8, 192)).square().mean().backward()
        self.opt.step()
        self.opt.zero_grad()


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = Foreach()
        for _ in range(steps):
            job.step()
            tracker.step()
