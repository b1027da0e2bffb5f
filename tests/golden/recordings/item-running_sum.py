import functools
import torch
from torch import nn


def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


class Meter:
    def __init__(self):
        self.net, self.sum = build(), 0.0

    def step(self):
        error = self.net(torch.randn(64, 192)).square().mean()
        self.sum = self.sum + error


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = Meter()
        for _ in range(steps):
            job.step()
            tracker.step()
