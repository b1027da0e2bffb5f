import functools
import torch
from torch import nn


def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


@functools.lru_cache(maxsize=None)
def table(n):
    return torch.arange(n * 64, dtype=torch.float32).view(n, 64)


class Decoder:
    def __init__(self):
        self.n = 100

    def step(self):
        for _ in range(12):
            self.n += 1
            table(self.n)


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = Decoder()
        for _ in range(steps):
            job.step()
            tracker.step()
