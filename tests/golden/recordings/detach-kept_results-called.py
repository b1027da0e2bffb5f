import functools
import torch
from torch import nn


def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


class Calling:
    def __init__(self):
        self.net, self.values = build(), []

    def step(self):
        self.net(torch.randn(64, 192)).square().mean().backward()
        self.net.zero_grad()
        self.values.append(self.net(torch.randn(64, 192)).square().mean())


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = Calling()
        for _ in range(steps):
            job.step()
            tracker.step()
