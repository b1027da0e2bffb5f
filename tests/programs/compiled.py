"""A compiled model; knows nothing of memprof."""

import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 3))
c = torch.compile(net)
o = torch.optim.Adam(net.parameters(), lr=0.01)
for _ in range(8):
    x = torch.randn(32, 16)
    loss = c(x).square().mean()
    o.zero_grad()
    loss.backward()
    o.step()
    print(repr(loss.item()))
