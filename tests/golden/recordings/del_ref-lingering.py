import functools
import torch
from torch import nn


def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


class Trials:
    def __init__(self):
        self.net = None

    def step(self):
        self.net = build(blocks=6)


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = Trials()
        for _ in range(steps):
            job.step()
            tracker.step()
