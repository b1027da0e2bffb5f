"""double-precision: the peak lies in the optimizer's step, beyond all that modules compute."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 256


def training():
    net = nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    net = net.to(dtype=torch.double)
    optimizer = torch.optim.Adam(net.parameters())

    def step(number):
        net(torch.randn(64, 16, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_what_modules_compute_tells_though_none_of_it_is_there(tmp_path):
    found, *_ = findings_of(training, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("double-precision", False)
    assert found.site.code == "net = net.to(dtype=torch.double)"
    assert found.match.saving.bytes == found.bytes // 2
