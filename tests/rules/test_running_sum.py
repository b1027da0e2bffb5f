"""running-sum: a sum over the steps hangs on the graph of everything that was added to it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from tests.rules.recorded import findings_of


def job():
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


def fires():
    model, meter = job(), SimpleNamespace(total=0.0)

    def step(number):
        loss = model(torch.randn(64, 64)).square().mean()
        meter.total = meter.total + loss

    return step


def looks_alike():
    """Batch statistics, as a normalization keeps them: a sum over the steps of what has no graph."""
    model, kept = job(), []
    meter = SimpleNamespace(total=torch.zeros(64))

    def step(number):
        out = model(torch.randn(64, 64))
        meter.total = meter.total + out.detach().mean(0)
        kept.append(out.detach())
        out.square().mean().backward()

    return step


def test_what_was_added_is_named_and_the_number_added_instead(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first, *_, last = found.remedies
    assert found.rule == first.rule == "running-sum"
    assert (first.fix, last.fix) == ("item", "detach")
    assert first.code == "meter.total = meter.total + loss"
    assert "+        meter.total = meter.total + loss.item()" in first.patch
    assert first.saves_bytes == round(found.bytes_per_step)
