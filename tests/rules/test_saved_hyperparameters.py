"""saved-hyperparameters: Lightning keeps a copy of a large argument as a hyperparameter."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.rules.recorded import findings_of

ROWS, WIDTH = 4096, 64


class LightningModule(nn.Module):
    """As Lightning keeps what it is given."""

    def save_hyperparameters(self, **arguments):
        self._hparams = arguments
        self._hparams_initial = copy.deepcopy(arguments)


class Recommender(LightningModule):
    def __init__(self, items, *, saved):
        super().__init__()
        if saved:
            self.save_hyperparameters(items=items, width=WIDTH)
        else:
            self.save_hyperparameters(width=WIDTH)
        self.items = nn.Embedding.from_pretrained(items)
        self.project = nn.Linear(WIDTH, WIDTH)


def trains(*, saved):
    def program():
        model = Recommender(torch.rand(ROWS, WIDTH), saved=saved)
        optimizer = torch.optim.SGD(model.project.parameters(), 0.1)

        def step(number):
            chosen = torch.randint(ROWS, (64,))
            model.project(model.items(chosen)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


fires = trains(saved=True)
looks_alike = trains(saved=False)


def test_the_argument_is_to_be_left_out(tmp_path):
    (found,) = (
        one
        for one in findings_of(fires, tmp_path / "run.json")
        if one.rule == "saved-hyperparameters"
    )
    (first,) = found.remedies
    assert (found.minor, found.bytes) == (False, ROWS * WIDTH * 4)
    assert "a copy of the argument `items` that is saved" in found.title
    assert (first.fix, first.typed) == ("del_ref", 'self.save_hyperparameters(ignore=["items"])')
    assert first.saves_bytes == ROWS * WIDTH * 4
