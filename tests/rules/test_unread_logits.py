"""unread-value: logits stay by their name through the backward pass, which needs none of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from memprof.loading import load
from memprof.views.examination import examine
from tests.rules.recorded import findings_of, record

ROWS, WIDTH, CLASSES = 256, 32, 2048
TABLE = ROWS * CLASSES * 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x)))


def training(computed):
    def program():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(number):
            computed(model, torch.randn(ROWS, WIDTH), torch.zeros(ROWS, dtype=torch.long))
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


def named(model, x, y):
    logits = model(x)
    loss = F.cross_entropy(logits.view(-1, CLASSES), y.flatten())
    loss.backward()


def dropped(model, x, y):
    logits = model(x)
    loss = F.cross_entropy(logits.view(-1, CLASSES), y.flatten())
    del logits
    loss.backward()


criterion = nn.CrossEntropyLoss()


def by_an_object(model, x, y):
    logits = model(x)
    loss = criterion(logits, y)
    loss.backward()


def of_squares(model, x, y):
    """The loss keeps its input for the backward pass."""
    logits = model(x)
    loss = F.mse_loss(logits, torch.zeros_like(logits))
    loss.backward()


def read_again(model, x, y):
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    loss.backward()
    assert (logits.argmax(-1) == y).sum() >= 0


def of_logits(program, path):
    found = findings_of(program, path)
    return [one for one in found if one.rule == "unread-value" and "`logits`" in one.title]


@pytest.mark.parametrize("computed", [named, by_an_object])
def test_logits_are_to_be_dropped_before_the_backward_pass(computed, tmp_path):
    (found,) = of_logits(training(computed), tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.minor, found.bytes) == (False, TABLE)
    assert first.fix == "del_ref"
    record(training(dropped), tmp_path / "mended.json")
    (mended,) = examine(load(tmp_path / "mended.json")).devices
    assert first.peak_after == mended.peak_allocated


@pytest.mark.parametrize("computed", [dropped, of_squares, read_again])
def test_what_is_read_or_saved_is_left_alone(computed, tmp_path):
    assert not of_logits(training(computed), tmp_path / "run.json")
