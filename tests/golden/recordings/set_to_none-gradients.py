import functools
import torch
from torch import nn


def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


class Zeroing:
    def __init__(self):
        self.net = build(blocks=4)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def step(self):
        loss = self.net(torch.randn(512, 192)).square().mean()
        self.opt.zero_grad(set_to_none=False)
        loss.backward()
        self.opt.step()


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = Zeroing()
        for _ in range(steps):
            job.step()
            tracker.step()
