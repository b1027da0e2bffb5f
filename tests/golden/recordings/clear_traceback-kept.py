import functools
import torch
from torch import nn


def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


def broken(net):
    hidden = net(torch.randn(96, 192))
    raise ValueError(hidden.shape)


class Skipping:
    def __init__(self):
        self.net = build()

    def step(self):
        problem = None
        try:
            broken(self.net)
        except ValueError as error:
            problem = error
        return problem is not None


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = Skipping()
        for _ in range(steps):
            job.step()
            tracker.step()
