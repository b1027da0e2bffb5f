"""Digits in a data set served by two worker processes; knows nothing of memprof."""

import torch
from torch.utils.data import DataLoader, Dataset


class D(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(16, generator=g), i % 3


def main():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    o = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        for x, y in DataLoader(D(), batch_size=16, num_workers=2, shuffle=True):
            loss = torch.nn.functional.cross_entropy(net(x), y)
            o.zero_grad()
            loss.backward()
            o.step()
            print(repr(loss.item()))


if __name__ == "__main__":
    main()
