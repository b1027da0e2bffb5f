"""Small training loops for the exact tests: each yields once a step, before and after nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

STEPS = 6


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.norm = nn.BatchNorm1d(64)
        self.second = nn.Linear(64, 10)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(8 * 8 * 8, 10)

    def forward(self, x):
        return self.head(self.drop(self.features(x).flatten(1)))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, recompute: str = "") -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.blocks = nn.ModuleList(Block(32) for _ in range(2))
        self.head = nn.Linear(32, 100, bias=False)
        self.recompute = recompute

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            if self.recompute:
                x = checkpoint(block, x, use_reentrant=self.recompute == "reentrant")
            else:
                x = block(x)
        return self.head(x)


def classify(model, make_batch, optimizer, accumulate: int = 1, cast: bool = False):
    """A training loop with cross entropy; yields the loss at each step's end."""
    for _ in range(STEPS):
        for _ in range(accumulate):
            x, target = make_batch()
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                loss = F.cross_entropy(model(x).flatten(0, -2), target.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield model, optimizer, loss.item()


def _vectors():
    return torch.randn(16, 32), torch.randint(10, (16,))


def _images():
    return torch.randn(4, 3, 16, 16), torch.randint(10, (4,))


def _tokens():
    text = torch.randint(100, (4, 17))
    return text[:, :-1], text[:, 1:]


def mlp():
    model = Mlp()
    return classify(model, _vectors, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


def cnn():
    model = Cnn()
    return classify(model, _images, torch.optim.Adam(model.parameters()))


def transformer():
    model = Transformer()
    return classify(model, _tokens, torch.optim.AdamW(model.parameters()))


def transformer_foreach():
    model = Transformer()
    return classify(model, _tokens, torch.optim.AdamW(model.parameters(), foreach=True))


def transformer_fused():
    model = Transformer()
    return classify(model, _tokens, torch.optim.AdamW(model.parameters(), fused=True))


def amp():
    model = Transformer()
    return classify(model, _tokens, torch.optim.AdamW(model.parameters()), cast=True)


def accumulation():
    model = Transformer()
    return classify(model, _tokens, torch.optim.AdamW(model.parameters()), accumulate=3)


def reentrant():
    model = Transformer("reentrant")
    return classify(model, _tokens, torch.optim.AdamW(model.parameters()))


def not_reentrant():
    model = Transformer("not")
    return classify(model, _tokens, torch.optim.AdamW(model.parameters()))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(32, 16, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def recurrent():
    model = Recurrent()

    def batch():
        return torch.randn(4, 5, 32), torch.randint(10, (4,))

    return classify(model, batch, torch.optim.RMSprop(model.parameters()))


def lbfgs():
    model = Mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for _ in range(STEPS):
        x, target = _vectors()

        def closure(x=x, target=target):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        yield model, optimizer, loss.item()


JOBS: dict[str, Callable[[], Iterator]] = {
    job.__name__: job
    for job in (
        mlp, cnn, transformer, transformer_foreach, transformer_fused, amp, accumulation,
        reentrant, not_reentrant, recurrent, lbfgs,
    )
}  # fmt: skip


def run(name: str) -> Iterator:
    """The job of this name, with a fixed seed."""
    torch.manual_seed(0)
    return JOBS[name]()


if __name__ == "__main__":
    print([loss for _, _, loss in run(sys.argv[1])])
