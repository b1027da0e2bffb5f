"""unused-gradients: weights have gradients beside the low-rank factors that are trained."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.recorded import findings_of, names, peak_of

WIDTH, RANK, BATCH = 256, 4, 8


class LowRank(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, WIDTH, bias=False)
        self.down = nn.Parameter(torch.randn(RANK, WIDTH))
        self.up = nn.Parameter(torch.zeros(WIDTH, RANK))

    def forward(self, x):
        return super().forward(x) + F.linear(F.linear(x, self.down), self.up)


def training(net, *, frozen=False):
    if frozen:
        for layer in net:
            layer.weight.requires_grad_(False)
    factors = [one for layer in net for one in (layer.down, layer.up)]
    optimizer = torch.optim.AdamW(factors)

    def step(number):
        net(torch.randn(BATCH, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def low_rank():
    return nn.Sequential(LowRank(), LowRank())


def test_the_line_that_makes_the_weights_is_told(tmp_path):
    found = findings_of(lambda: training(low_rank()), tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix) == ("unused-gradients", "freeze_params")
    assert only.typed == "parameter.requires_grad_(False)"  # the module's factors are trained
    assert "gradients of parameters of `Sequential` that its optimizer does not have" in found.title
    assert only.code == "super().__init__(WIDTH, WIDTH, bias=False)"
    assert found.bytes == 2 * WIDTH * WIDTH * 4
    findings_of(lambda: training(low_rank(), frozen=True), tmp_path / "frozen.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "frozen.json")
    assert abs(only.saves_bytes - saved) <= 0.05 * saved


def test_nothing_is_said_where_all_of_a_module_is_trained_and_filled_with_zeros(tmp_path):
    def program():
        net = low_rank()
        optimizer = torch.optim.AdamW(net.parameters())

        def step(number):
            net(torch.randn(BATCH, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

        return step

    assert "unused-gradients" not in names(program, tmp_path / "run.json")
