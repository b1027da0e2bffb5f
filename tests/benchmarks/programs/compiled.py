"""A multilayer perceptron, trained as torch.compile compiles it."""

import torch
from torch import nn

torch.manual_seed(0)
model = torch.compile(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10)))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(100):
    loss = nn.functional.cross_entropy(model(torch.randn(128, 256)), torch.randint(0, 10, (128,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex())
print(torch._dynamo.utils.counters["stats"]["unique_graphs"], "graphs")
