"""late-mean: a linear layer is applied to each position, of whose results the mean is taken."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

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


class OfTable(nn.Module):
    """The layer is an entry of a dictionary, and the mean a quotient of sums."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"wide": nn.Linear(WIDTH, WIDE), "out": nn.Linear(WIDE, 2)})

    def forward(self, x):
        wide = self.layers["wide"](x)
        pooled = torch.einsum("btc->bc", wide) / x.size(1)
        return self.layers["out"](pooled)


class Pooled(Embedder):
    def forward(self, x):
        rows = self.project(x)
        return functional.adaptive_avg_pool1d(rows.transpose(1, 2), 1).squeeze(-1)


class Added(Embedder):
    """A sum has the bias as many times as there are positions."""

    def forward(self, x):
        rows = self.project(x)
        return torch.einsum("btc->bc", rows)


class ReadTwice(Embedder):
    def forward(self, x):
        rows = self.project(x)
        return rows.mean(1) + rows.amax(1)


class PooledInParts(Embedder):
    """Two means, each of a half of the positions."""

    def forward(self, x):
        rows = self.project(x)
        return functional.adaptive_avg_pool1d(rows.transpose(1, 2), 2).flatten(1)


class ByTheSameName(Embedder):
    def forward(self, x):
        x = self.project(x)
        x = x.mean(dim=1)
        return x.tanh()


class WithoutBias(nn.Module):
    """A function takes the mean, of rows that are counted from the last dimension."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDE, bias=False)

    def forward(self, x):
        return functional.normalize(torch.mean(self.project(x), dim=-2), dim=-1)


class Masked(Embedder):
    """The mean is of the positions that are there."""

    def mask(self, x):
        return (x[..., :1] > -2).float().squeeze(-1)

    def forward(self, x):
        rows = self.project(x)
        mask = self.mask(x).unsqueeze(-1)
        return (rows * mask).sum(1) / mask.sum(1).clamp(min=1)


class MaskedByFeature(Masked):
    """Each feature has weights of its own."""

    def mask(self, x):
        return torch.ones(BATCH, POSITIONS, WIDE).tril()

    def forward(self, x):
        rows = self.project(x)
        mask = self.mask(x)
        return (rows * mask).sum(1) / mask.sum(1)


class ReadBetween(Embedder):
    def forward(self, x):
        x = self.project(x)
        largest = x.amax(1)
        x = x.mean(1)
        return x + largest


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


@pytest.mark.parametrize(
    ("net", "code", "typed"),
    [
        (OfTable, 'wide = self.layers["wide"](x)', "self.layers['wide'](x.mean(1))"),
        (Pooled, "rows = self.project(x)", "self.project(x.mean(1))"),
        (ByTheSameName, "x = self.project(x)", "self.project(x.mean(1))"),
        (
            WithoutBias,
            "return functional.normalize(torch.mean(self.project(x), dim=-2), dim=-1)",
            "self.project(x.mean(1))",
        ),
    ],
)
def test_a_mean_may_be_taken_of_a_variable_and_be_written_otherwise(net, code, typed, tmp_path):
    found = findings_of(lambda: training(net()), tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix, only.code, only.typed) == ("late-mean", "mean_first", code, typed)
    rows = BATCH * POSITIONS * WIDE * 4
    assert found.bytes % rows == 0
    findings_of(lambda: training(Early()), tmp_path / "early.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "early.json")
    assert only.saves_bytes == pytest.approx(saved, rel=0.05)


def test_a_mean_may_be_of_the_positions_that_are_there(tmp_path):
    found = findings_of(lambda: training(Masked()), tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix, only.code) == (
        "late-mean",
        "mean_first",
        "rows = self.project(x)",
    )
    assert only.typed == "self.project((x * mask).sum(1) / mask.sum(1).clamp(min=1))"
    net, x = Masked().double(), torch.randn(BATCH, POSITIONS, WIDTH, dtype=torch.float64)
    mask = net.mask(x).double().unsqueeze(-1)
    early = net.project((x * mask).sum(1) / mask.sum(1).clamp(min=1))
    torch.testing.assert_close(net(x), early)


_OTHERS = [Between, OfFeatures, Added, ReadTwice, PooledInParts, MaskedByFeature, ReadBetween]


@pytest.mark.parametrize("net", _OTHERS)
def test_what_comes_in_between_or_a_mean_of_features_is_another_matter(net, tmp_path):
    assert "late-mean" not in names(lambda: training(net()), tmp_path / "run.json")
