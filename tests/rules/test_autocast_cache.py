"""autocast-cache: an autocast region that stays open keeps low-precision copies of weights."""

from __future__ import annotations

from collections import defaultdict, deque

import torch
from torch import nn

from tests.rules.recorded import findings_of


def model():
    return nn.Sequential(*(nn.Linear(192, 192, bias=False) for _ in range(6)))


def fires():
    net = model()

    def serving():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            while True:  # the region ends when the generator is collected
                with torch.no_grad():
                    yield net(torch.randn(8, 192)).float().mean().item()

    server = serving()
    return lambda number: next(server)


def looks_alike():
    """The last outputs of each layer, of exactly half its weight's bytes, are stored."""
    net = model()
    outputs = defaultdict(lambda: deque(maxlen=4))

    @torch.no_grad()
    def step(number):
        x = torch.randn(96, 192)
        for layer in net:
            x = layer(x)
            outputs[layer].append(x)

    return step


def test_there_is_one_copy_of_each_weight(tmp_path):
    (cached,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "autocast-cache"
    ]
    assert cached.match.copies == 6
    assert cached.bytes == 6 * 192 * 192 * 2
    assert "cache_enabled=False" in cached.remedies[0].patch
