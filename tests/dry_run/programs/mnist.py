"""The convolutional net and the loop of pytorch/examples/mnist, on random images."""

import torch
from figures import print_figures
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = functional.relu(self.conv1(x))
        x = functional.relu(self.conv2(x))
        x = self.dropout1(functional.max_pool2d(x, 2))
        x = functional.relu(self.fc1(torch.flatten(x, 1)))
        return functional.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def train(model, optimizer):
    model.train()
    for _ in range(3):
        data, target = torch.rand(64, 1, 28, 28).cuda(), torch.randint(10, (64,)).cuda()
        optimizer.zero_grad()
        functional.nll_loss(model(data), target).backward()
        optimizer.step()


def test(model):
    model.eval()
    with torch.no_grad():
        output = model(torch.rand(1000, 1, 28, 28).cuda())
        output.argmax(dim=1, keepdim=True).eq(output.argmax(dim=1, keepdim=True)).sum().item()


model = Net().cuda()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
train(model, optimizer)
test(model)
print_figures([model], [optimizer])
