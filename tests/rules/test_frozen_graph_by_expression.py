"""frozen-graph: a hook that is written in one expression asks for the gradient of embeddings.

It has a file of its own: the statement that asks for a gradient is looked for in every file that
stands in the stacks, and so are those that read one.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

HOOK = "self.words.register_forward_hook(lambda module, args, out: out.requires_grad_())"
BATCH, WORDS, WIDTH, LAYERS = 512, 32, 64, 6


class Tuned(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.words = nn.Embedding(WORDS, WIDTH)
        self.body = nn.Sequential(*layers)
        self.requires_grad_(False)
        self.words.register_forward_hook(lambda module, args, out: out.requires_grad_())
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


def program():
    return training(Tuned())


def test_what_the_body_keeps_is_told_at_the_hook(tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    kept = (LAYERS + 1) * BATCH * WIDTH * 4  # each tanh keeps its result; and the embeddings
    assert (found.rule, found.bytes) == ("frozen-graph", kept)
    first = found.remedies[0]
    assert (first.fix, first.code) == ("detach", HOOK)
    assert first.why.startswith("Leave the hook out: only checkpointing needs it")
