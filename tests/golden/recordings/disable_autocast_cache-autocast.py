import functools
import torch
from torch import nn


def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


class Serving:
    def __init__(self):
        self.net = build(blocks=8).eval()
        self.amp = torch.autocast("cpu", dtype=torch.bfloat16)
        self.amp.__enter__()

    @torch.no_grad()
    def step(self):
        self.net(torch.randn(8, 192)).float().mean().item()


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = Serving()
        for _ in range(steps):
            job.step()
            tracker.step()
