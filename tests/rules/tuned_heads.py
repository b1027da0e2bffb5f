"""A model whose head alone is trained, as a hook of its embeddings is tried on it; no test."""

from __future__ import annotations

import torch
from torch import nn

BATCH, WORDS, WIDTH, LAYERS = 512, 32, 64, 6
KEPT = (LAYERS + 1) * BATCH * WIDTH * 4
"""Bytes that its frozen body keeps: each tanh its result; and the embeddings."""


class Tuned(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.words = nn.Embedding(WORDS, WIDTH)
        self.body = nn.Sequential(*layers)
        self.requires_grad_(False)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, words):
        return self.head(self.body(self.words(words)))


def training(model):
    optimizer = torch.optim.SGD(model.head.parameters(), 0.1)

    def step(number):
        model(torch.randint(WORDS, (BATCH,))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
