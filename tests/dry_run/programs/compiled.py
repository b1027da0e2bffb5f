"""A model under torch.compile: kernels of Triton, which are compiled and not run."""

import torch
from figures import print_figures
from torch import nn
from torch.nn import functional

model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256))
model = model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile
def loss_of(x):
    return functional.mse_loss(torch.softmax(model(x), -1), x)


for _ in range(2):
    x = torch.rand(64, 256).cuda()
    loss_of(x).backward()
    optimizer.step()
    optimizer.zero_grad()
del x
print_figures([model], [optimizer])
