"""late-mean: a linear layer is applied to each position, of whose results the mean is taken."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of

BATCH, POSITIONS, WIDTH, WIDE = 8, 128, 16, 512


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDE)


class Late(Embedder):
    def forward(self, x):
        return self.project(x).mean(dim=1)


class Early(Embedder):
    def forward(self, x):
        return self.project(x.mean(dim=1))


class Between(Embedder):
    """An activation comes in between."""

    def forward(self, x):
        return self.project(x).relu().mean(dim=1)


class OfFeatures(Embedder):
    """Of a matrix it is the mean of the features."""

    def forward(self, x):
        return self.project(x.flatten(0, 1)).mean(dim=1)


def training(net):
    def step(number):
        net.zero_grad()
        net(torch.randn(BATCH, POSITIONS, WIDTH)).square().mean().backward()

    return step


def fires():
    return training(Late())


def looks_alike():
    return training(Between())


def test_the_mean_of_what_goes_in_saves_a_row_for_each_position(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix, only.typed) == (
        "late-mean",
        "mean_first",
        "self.project(x.mean(dim=1))",
    )
    assert only.code == "return self.project(x).mean(dim=1)"
    findings_of(lambda: training(Early()), tmp_path / "early.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "early.json")
    assert only.saves_bytes == pytest.approx(saved, rel=0.05)


def test_both_orders_compute_the_same():
    late, early = Late().double(), Early().double()
    early.load_state_dict(late.state_dict())
    x = torch.randn(BATCH, POSITIONS, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(late(x), early(x))


@pytest.mark.parametrize("net", [Between, OfFeatures])
def test_what_comes_in_between_or_a_mean_of_features_is_another_matter(net, tmp_path):
    assert "late-mean" not in names(lambda: training(net()), tmp_path / "run.json")
