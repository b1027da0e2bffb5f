"""frozen-graph says nothing where hooks read the gradients that hooks ask for.

It has a file of its own, as every file in the stacks is looked at.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import names

BATCH, WORDS, WIDTH, LAYERS = 512, 32, 64, 6


def probe():
    layers = [m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    words, body = nn.Embedding(WORDS, WIDTH), nn.Sequential(*layers)
    body.requires_grad_(False)
    words.requires_grad_(False)
    return words, body, nn.Linear(WIDTH, 4)


def training(words, body, head):
    optimizer = torch.optim.SGD(head.parameters(), 0.1)

    def step(number):
        rows = words(torch.randint(WORDS, (BATCH,)))
        head(body(rows)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def of_words():
    """The gradient of each word is written down."""
    words, body, head = probe()
    norms = []

    def ask(module, args, output):
        output.requires_grad_(True)
        output.register_hook(lambda gradient: norms.append(gradient.norm().item()))

    words.register_forward_hook(ask)
    return training(words, body, head)


def test_gradients_that_a_hook_reads_are_needed(tmp_path):
    assert "frozen-graph" not in names(of_words, tmp_path / "run.json")
