"""retained-graph: activations stay after the step's last backward pass, until the next step."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


def job():
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.Tanh())))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def fires():
    model, optimizer = job()
    kept = {}

    def step(number):
        kept["loss"] = model(torch.randn(512, 64)).square().mean()
        kept["loss"].backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()

    return step


def looks_alike():
    """The loss stays, and its graph went with the backward pass."""
    model, optimizer = job()
    kept = {}

    def step(number):
        kept["loss"] = model(torch.randn(512, 64)).square().mean()
        kept["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Game:
    """A graph is made in one function and gone through in another, which asks to keep it."""

    def __init__(self):
        self.model, self.optimizer = job()

    def learn(self, made):
        self.optimizer.zero_grad()
        loss = made.square().mean()
        loss.backward(retain_graph=True)
        self.optimizer.step()
        return {"loss": loss}


def played():
    """A step is over with its optimizer's; what is replaced after it counts to the next."""
    game, terms = Game(), {}

    def step(number):
        made = game.model(torch.randn(512, 64))
        terms.update(game.learn(made))

    return step


def test_the_line_that_asks_is_found_by_the_backward_pass_itself(tmp_path):
    (found, *_) = findings_of(played, tmp_path / "run.json")
    (first, *_) = found.remedies
    assert (found.rule, first.fix) == ("retained-graph", "no_retain_graph")
    assert first.code == "loss.backward(retain_graph=True)"
    assert "-        loss.backward(retain_graph=True)\n+        loss.backward()\n" in first.patch
    assert "unvisited-graph" not in {one.rule for one in findings_of(played, tmp_path / "run.json")}
