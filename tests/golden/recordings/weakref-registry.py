import functools
import torch
from torch import nn


def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


class Adapter(nn.Module):
    everyone = set()

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(160, 160)
        Adapter.everyone.add(self)


class Pipeline:
    def step(self):
        with torch.no_grad():
            Adapter().proj(torch.randn(4, 160))


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = Pipeline()
        for _ in range(steps):
            job.step()
            tracker.step()
