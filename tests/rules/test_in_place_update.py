"""in-place-update: values are written into a tensor with the graphs that made them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.recorded import findings_of, names

ROWS, BATCH, WIDTH = 512, 64, 64


class Bank(nn.Module):
    """An average of what a model returned for each row, which is read detached."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(ROWS, WIDTH))

    def likeness(self, query, index):
        return (query * self.rows.detach()[index]).sum(1)

    def update(self, bank, index, new):
        bank.index_copy_(0, index, 0.5 * torch.index_select(bank, 0, index) + new.tanh())


class ByIndex(Bank):
    def update(self, bank, index, new):
        bank[index] = 0.5 * bank[index] + new.tanh()


class Counted(Bank):
    """What has no graph is written into first."""

    def __init__(self):
        super().__init__()
        self.times = torch.zeros(ROWS)

    def update(self, bank, index, new):
        self.times[index] = 1.0
        self.rows[index] = 0.5 * self.rows[index] + new.tanh()


class WithoutGraph(Bank):
    @torch.no_grad()
    def update(self, bank, index, new):
        super().update(bank, index, new)


def training(kind):
    model, bank = nn.Linear(WIDTH, WIDTH), kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number):
        index = torch.randperm(ROWS)[:BATCH]
        out = model(torch.randn(BATCH, WIDTH))
        loss = -F.logsigmoid(bank.likeness(out, index)).mean()
        bank.update(bank.rows, index, out)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def fires():
    return training(Bank)


def looks_alike():
    return training(WithoutGraph)


@pytest.mark.parametrize(
    ("kind", "name", "line"), [(Bank, "bank", 1), (ByIndex, "bank", 1), (Counted, "self.rows", 2)]
)
def test_the_statement_that_writes_is_to_build_no_graph(kind, name, line, tmp_path):
    found = findings_of(lambda: training(kind), tmp_path / "run.json", 24)[0]
    first, second, *_ = found.remedies
    assert (found.rule, first.fix, second.fix) == ("in-place-update", "no_grad", "detach")
    assert first.line == kind.update.__code__.co_firstlineno + line
    assert f"`{name}` is written into with values that have a graph" in first.why
    assert "in-place-update" not in names(looks_alike, tmp_path / "fixed.json")
