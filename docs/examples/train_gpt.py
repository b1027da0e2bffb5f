"""Train a small GPT on eight of Shakespeare's sonnets, character by character.

An ordinary training script that knows nothing of memprof. One thing in it is wasteful on purpose;
run it under memprof and let the report point at it:

    memprof run -o demo-run.json docs/examples/train_gpt.py
    memprof report demo-run.json
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

TEXT = Path(__file__).with_name("sonnets.txt")


class Attention(nn.Module):
    """Causal self-attention that keeps its weights for a later look at them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        self.seen.append(weights.mean(dim=1).detach())  # never emptied: this is the waste
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """One layer of the transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        wide = 4 * width
        self.mlp = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A language model over characters."""

    def __init__(self, characters: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(data: torch.Tensor, size: int, length: int, device: str):
    """Random stretches of the text and, for each character, the one that follows."""
    while True:
        starts = torch.randint(len(data) - length - 1, (size,)).tolist()
        x = torch.stack([data[s : s + length] for s in starts])
        y = torch.stack([data[s + 1 : s + length + 1] for s in starts])
        yield x.to(device), y.to(device)


def train(steps: int, device: str) -> float:
    """Train and return the last loss."""
    torch.manual_seed(0)
    text = TEXT.read_text()
    characters = sorted(set(text))
    data = torch.tensor([characters.index(c) for c in text])
    model = GPT(len(characters), length=64, width=96, heads=4, layers=3).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = torch.zeros(())
    for step, (x, y) in zip(range(steps), batches(data, 8, 64, device), strict=False):
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}")
    return loss.item()


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    print(f"final loss {train(options.steps, options.device):.3f}")


if __name__ == "__main__":
    main()
