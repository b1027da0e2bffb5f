import functools
import torch
from torch import nn


def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


class Features:
    def __init__(self):
        self.net, self.first = build(), []

    @torch.no_grad()
    def step(self):
        out = self.net(torch.randn(96, 192))
        self.first.append(out[0])


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = Features()
        for _ in range(steps):
            job.step()
            tracker.step()
