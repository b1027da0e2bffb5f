"""in-place-update: values are written into a tensor with the graphs that made them."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memprof.loading import load
from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder
from tests.rules.recorded import Recording, findings_of, names

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


class Center(Bank):
    """A running mean of what another net returned; methods of values, which have no index."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(WIDTH))

    def update(self, bank, index, new):
        self.center.mul_(0.9).add_(new.tanh().mean(0), alpha=0.1)


class Replaced(Center):
    """A new tensor each time, which is no update in place."""

    def update(self, bank, index, new):
        self.center = 0.9 * self.center + 0.1 * new.tanh().mean(0)


def test_methods_of_values_are_told_by_the_name_of_what_they_write_into(tmp_path):
    found = findings_of(lambda: training(Center), tmp_path / "run.json", 24)[0]
    first, second, *_ = found.remedies
    assert (found.rule, first.fix, second.fix) == ("in-place-update", "no_grad", "detach")
    assert first.code == "self.center.mul_(0.9).add_(new.tanh().mean(0), alpha=0.1)"
    assert "`self.center` is written into with values that have a graph" in first.why
    rules = names(lambda: training(Replaced), tmp_path / "other.json")
    assert rules
    assert "in-place-update" not in rules


NODES = """
def enqueue(self, keys):
    self.rows[: len(keys)] = WRITTEN
"""


@pytest.mark.parametrize(("written", "is_told"), [("keys.T", True), ("rows", False)])
def test_only_nodes_of_the_graph_may_stay_on_the_host(written, is_told, tmp_path):
    """Nothing is saved of what is written: the tensor itself is known to have the graph."""
    source = tmp_path / "job.py"
    text = NODES.replace("WRITTEN", written)
    source.write_text(text if is_told else f"@torch.no_grad(){text}")
    os.utime(source, (1, 1))  # before the recording, whose time is made up
    links = [
        Link(LinkKind.LOCAL, "bank", "main", filename=str(source), line=3),
        Link(LinkKind.BUFFER, "rows", "Bank"),
    ]
    holder = Holder(LinkKind.BUFFER, str(source), 3, "", links)
    looks = [
        Finding("host_growth", device="host", step=step, holders=[holder], details={})
        for step in (16, 24, 32)
    ]
    trace = TraceBuilder(device="cpu")
    for step in range(40):
        trace.label(step=step).alloc(512, "work").free("work")
    recording = Recording((trace,), more=tuple(looks))
    every = findings(load(recording.write(tmp_path / "run.json")))
    (found,) = (one for one in every if one.rule == "growing-graph")
    fixes = [one.fix for one in found.remedies]
    assert found.rule == "growing-graph"
    assert (fixes[:2] == ["no_grad", "detach"]) is is_told


class Averages:
    """Means of gradients of gradients, one for each parameter, which are only read detached."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.curvature = [torch.zeros_like(one) for one in self.parameters]

    def update(self, loss):
        first = torch.autograd.grad(loss, self.parameters, create_graph=True)
        dot = sum(one.square().sum() for one in first)
        second = torch.autograd.grad(dot, self.parameters, create_graph=True)
        for mean, new in zip(self.curvature, second, strict=True):
            mean.mul_(0.9).add_(new.abs(), alpha=0.1)


def averages():
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    means = Averages(net.parameters())

    def step(number):
        means.update(net(torch.randn(BATCH, WIDTH)).square().mean())

    return step


def test_tensors_of_a_list_are_written_into_by_a_loop_over_it(tmp_path):
    found = findings_of(averages, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (first.rule, first.fix) == ("in-place-update", "no_grad")
    assert first.code == "mean.mul_(0.9).add_(new.abs(), alpha=0.1)"
    assert first.why.startswith("`mean` is written into with values that have a graph")
