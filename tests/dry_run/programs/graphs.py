"""A whole training step captured into a CUDA graph and replayed, as in torch's notes on graphs."""

import torch
from figures import print_figures
from torch import nn
from torch.nn import functional

model = nn.Sequential(nn.Linear(512, 512), nn.Dropout(0.2), nn.ReLU(), nn.Linear(512, 512)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, target = torch.rand(64, 512, device="cuda"), torch.rand(64, 512, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    functional.mse_loss(model(x), target).backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
for _ in range(5):
    x.copy_(torch.rand(64, 512))
    graph.replay()
callable_ = torch.cuda.make_graphed_callables(
    nn.Linear(512, 512).cuda(), (torch.rand(8, 512, device="cuda", requires_grad=True),)
)
callable_(torch.rand(8, 512, device="cuda", requires_grad=True)).sum().backward()
print_figures([model, callable_], [optimizer])
