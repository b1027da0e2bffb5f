"""old-graphs: what is made once before a loop keeps its graph throughout."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


class Features(nn.Module):
    """Some layers, whose results are all returned."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(m for _ in range(2) for m in (nn.Linear(64, 64), nn.Tanh()))

    def forward(self, x):
        results = []
        for layer in self.layers:
            x = layer(x)
            results.append(x)
        return results


def targets():
    """The targets of an optimization, made once before it with the graph of a large batch."""
    features = Features()
    wanted = features(torch.randn(2048, 64))
    image = torch.randn(512, 64, requires_grad=True)

    def step(number):
        made = features(image)
        loss = sum(
            (a.mean(0) - b.mean(0)).square().mean() for a, b in zip(made, wanted, strict=True)
        )
        loss.backward(retain_graph=True)
        image.grad = None

    return step


def test_targets_that_are_made_once_save_all_that_their_graph_has(tmp_path):
    (graphs,) = [
        one for one in findings_of(targets, tmp_path / "run.json") if one.rule == "old-graphs"
    ]
    assert graphs.match.steps == 1
    assert "1 earlier step whose" in graphs.title
    assert graphs.remedies[0].code == "wanted = features(torch.randn(2048, 64))"
    assert graphs.remedies[0].patch == ""  # in `forward` it would cut the graph of every pass
