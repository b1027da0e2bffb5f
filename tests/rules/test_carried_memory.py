"""retained-graph, lingering: what the next turn of a loop is given is no graph that stays."""

from __future__ import annotations

import gc

import torch
from torch import nn

import memprof
from memprof.loading import load
from memprof.rules.ranked_findings import findings

WIDTH, BATCH, LONGEST = 64, 32, 64


class Remembering(nn.Module):
    """Layers that look at what they were given before, which is handed on without its graph."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, 8)

    def forward(self, x, memory):
        following = []
        for layer, before in zip(self.layers, memory, strict=True):
            both = x.detach() if before is None else torch.cat([before, x.detach()], 1)
            both = both[:, -LONGEST:].clone()
            following.append(both)
            scores = (layer(x) @ both.transpose(1, 2)).softmax(-1)
            x = scores @ both + x
        return self.out(x), following


def train(tracker):
    model, memory = Remembering(), [None] * 3
    for _ in range(30):
        logits, memory = model(torch.randn(BATCH, 8, WIDTH), memory)
        loss = logits.square().mean()
        loss.backward()
        model.zero_grad()
        tracker.step()


def test_a_memory_that_is_handed_on_is_needed(tmp_path):
    gc.collect()
    with memprof.track(tmp_path / "run.json", sources=["cpu"], allowance_s=600) as tracker:
        train(tracker)
    told = [one.rule for one in findings(load(tmp_path / "run.json")) if not one.minor]
    assert not {"retained-graph", "lingering"} & {*told}
