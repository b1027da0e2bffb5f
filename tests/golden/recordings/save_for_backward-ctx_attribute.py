import functools
import torch
from torch import nn


def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x * x
        ctx.y = y
        return y

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad * ctx.y.abs().pow(2 / 3)


class Cubing:
    def __init__(self):
        self.net = build(blocks=1)

    def step(self):
        Cube.apply(self.net(torch.randn(96, 192))).sum().backward()
        self.net.zero_grad()


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = Cubing()
        for _ in range(steps):
            job.step()
            tracker.step()
