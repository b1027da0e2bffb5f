"""evaluation-graph: a forward pass keeps its activations for a backward pass that never comes."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


def job():
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.Tanh())))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def trained(model, optimizer):
    model(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def fires():
    model, optimizer = job()

    def step(number):
        trained(model, optimizer)
        model(torch.randn(1024, 64)).square().mean().item()

    return step


def looks_alike():
    model, optimizer = job()

    def step(number):
        trained(model, optimizer)
        with torch.no_grad():
            model(torch.randn(1024, 64)).square().mean().item()

    return step


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return torch.tanh(x + self.second(torch.tanh(self.first(x)).exp()).exp())


def votes():
    """No optimizer: a call of each model is taken for a step, and graphs last for several."""
    members = [nn.Sequential(*(Block() for _ in range(3))).eval() for _ in range(5)]

    def step(number):
        x = torch.randn(512, 64)
        results = [member(x).softmax(-1) for member in members]
        return torch.stack(results).mean(0).argmax(-1).tolist()

    return step


def with_features():
    """A model that returns what its blocks made, without a graph."""
    members = [nn.Sequential(*(Block() for _ in range(3))).eval() for _ in range(5)]

    @torch.no_grad()
    def step(number):
        x = torch.randn(512, 64)
        features = []
        for member in members:
            for block in member:
                x = block(x)
                features.append(x)
        return torch.stack(features).mean(0).argmax(-1).tolist()

    return step


def test_graphs_that_several_models_keep_until_their_votes_are_counted_are_for_nothing(tmp_path):
    (first, *_) = findings_of(votes, tmp_path / "run.json")
    assert (first.rule, first.minor) == ("evaluation-graph", False)
    remedy = first.remedies[0]
    assert (remedy.fix, remedy.code) == (
        "no_grad",
        "results = [member(x).softmax(-1) for member in members]",
    )


def drawn_on():
    """An image that a model draws from itself, until the next one begins."""
    layers = (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))
    model = nn.Sequential(*(m for _ in range(3) for m in layers)).eval()
    images = [torch.randn(512, 64)]

    def step(number):
        images[0] = torch.randn(512, 64) if number == 14 else model(images[0]) / 2

    return step


def test_graphs_of_earlier_steps_need_not_be_cut_where_they_need_not_be(tmp_path):
    (first, *others) = findings_of(drawn_on, tmp_path / "run.json")
    assert (first.rule, first.minor) == ("evaluation-graph", False)
    assert "old-graphs" not in [one.rule for one in others]


def test_what_blocks_return_without_a_graph_is_none(tmp_path):
    rules = {one.rule for one in findings_of(with_features, tmp_path / "run.json")}
    assert "evaluation-graph" not in rules
