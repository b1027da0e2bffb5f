"""Ask memprof who keeps a tensor alive."""

import functools

import torch

import memprof


class Trainer:
    def __init__(self):
        self.outputs = []

    def step(self):
        x = torch.ones(4, requires_grad=True)
        self.outputs.append((x * 2).sum())


@functools.cache
def mask(length):
    return torch.ones(length, length)


def main():
    trainer = Trainer()
    for _ in range(3):
        trainer.step()
    for holder in memprof.holders(trainer.outputs[0]):
        print(holder.description, "|", holder.code)
    for holder in memprof.holders(mask(8)):
        print(holder.description, "|", holder.code)
    for live in memprof.tensors()[:6]:
        print(live.name, live.shape, live.storage_bytes)


main()
