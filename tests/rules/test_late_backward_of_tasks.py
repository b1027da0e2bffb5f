"""late-backward: tasks that each adapt a model, and one backward pass for the sum of their losses."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from memprof.loading import load
from memprof.views.examination import examine
from tests.rules.recorded import findings_of, record

TASKS, ROWS, WIDTH = 4, 512, 64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x)))


def adapted(model, x):
    params = dict(model.named_parameters())
    for _ in range(2):
        loss = functional_call(model, params, (x,)).square().mean()
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        params = {name: one - 0.1 * g for (name, one), g in zip(params.items(), grads, strict=True)}
    return params


def scored(model, tasks):
    for x in tasks:
        params = {name: one.detach().requires_grad_() for name, one in model.named_parameters()}
        loss = functional_call(model, params, (x,)).square().mean()
        torch.autograd.grad(loss, list(params.values()))


def summed():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tasks = [torch.randn(ROWS, WIDTH) for _ in range(TASKS)]

    def step(number):
        optimizer.zero_grad()
        total = 0.0
        for x in tasks:
            fast = adapted(model, x)
            total = total + functional_call(model, fast, (x,)).square().mean()
        total.backward()
        optimizer.step()
        if number % 4 == 3:
            scored(model, tasks)

    return step


def each_by_itself():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tasks = [torch.randn(ROWS, WIDTH) for _ in range(TASKS)]

    def step(number):
        optimizer.zero_grad()
        for x in tasks:
            fast = adapted(model, x)
            functional_call(model, fast, (x,)).square().mean().backward()
        optimizer.step()
        if number % 4 == 3:
            scored(model, tasks)

    return step


def test_a_backward_pass_for_each_task_saves_all_graphs_but_one(tmp_path):
    found, *_ = findings_of(summed, tmp_path / "run.json")
    first, *_ = found.remedies
    assert (found.rule, first.fix) == ("late-backward", "early_backward")
    assert f"of {TASKS} passes" in found.title
    assert first.line == summed.__code__.co_firstlineno + 10
    record(each_by_itself, tmp_path / "mended.json")
    (mended,) = examine(load(tmp_path / "mended.json")).devices
    saved = first.peak_before - mended.peak_allocated
    assert abs(first.saves_bytes - saved) < 0.05 * saved
