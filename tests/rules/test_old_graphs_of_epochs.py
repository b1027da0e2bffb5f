"""old-graphs: a list that is emptied at each epoch's end has as much in both halves."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


def emptied_at_each_epoch():
    """Embeddings of an epoch, emptied when it ends: the last recorded step has the most of them."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    critic = nn.Sequential(*(m for _ in range(2) for m in (nn.Linear(64, 64), nn.Tanh())))
    embeddings = []

    def step(number):
        x = torch.randn(512, 64)
        embeddings.append(critic(x))
        model(x).square().mean().backward()
        model.zero_grad()
        if number % 8 == 7:
            embeddings.clear()

    return step


def test_what_is_emptied_now_and_then_does_not_grow(tmp_path):
    (graphs,) = [
        one
        for one in findings_of(emptied_at_each_epoch, tmp_path / "run.json", steps=23)
        if one.rule == "old-graphs"
    ]
    assert (
        graphs.match.steps == 6
    )  # the peak comes before the eighth is made, whose own the seventh is
    assert graphs.holders[0].code == "embeddings.append(critic(x))"
    assert graphs.remedies[0].code == "embeddings.append(critic(x))"
