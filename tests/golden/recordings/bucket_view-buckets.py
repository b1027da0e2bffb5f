import functools
import torch
from torch import nn


def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Parallel

if not dist.is_initialized():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class Distributed:
    def __init__(self):
        self.net = Parallel(build(blocks=8))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def step(self):
        self.net(torch.randn(8, 192)).square().mean().backward()
        self.opt.step()
        self.opt.zero_grad()


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = Distributed()
        for _ in range(steps):
            job.step()
            tracker.step()
