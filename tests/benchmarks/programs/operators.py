"""A million small operators without a module, an optimizer or a step: a simulation."""

import torch

torch.manual_seed(0)
x = torch.randn(64)
for _ in range(500_000):
    x = x * 0.999 + 0.001  # two operators, each with a result of its own
print(x.sum().item().hex())
