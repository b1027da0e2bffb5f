"""merged-adapters: a layer adds the product of two small matrices to its weights in each call."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from tests.rules.recorded import findings_of, peak_of

WIDTH, RANK, ROWS, LAYERS = 384, 4, 16, 6
WEIGHT = WIDTH * WIDTH * 4


class Merging(nn.Module):
    def __init__(self, scale=0.5):
        super().__init__()
        self.base, self.scale = nn.Linear(WIDTH, WIDTH).requires_grad_(False), scale
        self.down = nn.Parameter(torch.randn(RANK, WIDTH))
        self.up = nn.Parameter(torch.zeros(WIDTH, RANK))

    def forward(self, x):
        weight = self.base.weight + self.scale * (self.up @ self.down)
        return F.linear(x, weight, self.base.bias)


class ByName(Merging):
    def forward(self, x):
        change = torch.matmul(self.up, self.down) * self.scale
        return F.linear(x, self.base.weight + change)


class ByMethod(Merging):
    def change(self):
        return torch.einsum("or,ri->oi", self.up, self.down) * self.scale

    def forward(self, x):
        weight = self.base.weight + self.change()
        return F.linear(x, weight)


class ByAddition(Merging):
    def forward(self, x):
        weight = torch.addmm(self.base.weight, self.up, self.down, alpha=self.scale)
        return F.linear(x, weight)


def merged(weight, up, down, scale):
    return weight + scale * torch.mm(up, down)


class ByFunction(Merging):
    def forward(self, x):
        weight = merged(self.base.weight, self.up, down=self.down, scale=self.scale)
        return F.linear(x, weight)


class OfBuffer(Merging):
    """The weights are a buffer, which a variable stands for."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frozen", self.base.weight.detach().clone())
        del self.base

    def forward(self, x):
        weight = self.frozen
        weight = weight + (self.down.t().mm(self.up.t())).t()
        return x @ weight.T


class Added(nn.Module):
    """A parametrization: it is given the weights of a layer."""

    def __init__(self):
        super().__init__()
        self.down = nn.Parameter(torch.randn(RANK, WIDTH))
        self.up = nn.Parameter(torch.zeros(WIDTH, RANK))

    def forward(self, original):
        return original + self.up @ self.down


def parametrized():
    layer = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    parametrize.register_parametrization(layer, "weight", Added())
    return layer


class OnRows(Added):
    """No parametrization: what is added to are rows that are as many as the weights have."""

    def forward(self, x):
        rows = x[:1].expand(WIDTH, -1)
        return (rows + self.up @ self.down).tanh()[: len(x)]


class Applying(Merging):
    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.down), self.up)


class Shifting(Merging):
    """The weights get noise: there are no factors to be applied."""

    def forward(self, x):
        weight = self.base.weight + self.scale * torch.randn_like(self.base.weight)
        return F.linear(x, weight) + self.up.sum() + self.down.sum()


def training(layer):
    def program():
        model = nn.Sequential(*(layer() for _ in range(LAYERS)))
        trained = [one for one in model.parameters() if one.requires_grad]
        optimizer = torch.optim.SGD(trained, 0.1)

        def step(number):
            optimizer.zero_grad()
            model(torch.rand(ROWS, WIDTH)).square().mean().backward()
            optimizer.step()

        return step

    return program


fires = training(Merging)
looks_alike = training(Applying)


def merged_told(program, path):
    return [one for one in findings_of(program, path) if one.rule == "merged-adapters"]


@pytest.mark.parametrize(
    ("layer", "product"),
    [
        (Merging, "self.up @ self.down"),
        (ByName, "torch.matmul(self.up, self.down)"),
        (ByMethod, "torch.einsum('or,ri->oi', self.up, self.down)"),
        (ByFunction, "torch.mm(self.up, self.down)"),
        (OfBuffer, "self.down.t().mm(self.up.t())"),
        (ByAddition, "torch.addmm(self.base.weight, self.up, self.down, alpha=self.scale)"),
    ],
)
def test_the_factors_are_to_be_applied_and_what_it_saves(layer, product, tmp_path):
    (one,) = merged_told(training(layer), tmp_path / "run.json")
    (first,) = one.remedies
    assert (one.minor, first.fix) == (False, "apply_factors")
    assert one.title.endswith(f"are weights to which each call adds `{product}`")
    # the first of them is given data, and its weights are not needed for a gradient
    assert one.bytes >= (LAYERS - 1) * WEIGHT
    findings_of(looks_alike, tmp_path / "applied.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "applied.json")
    assert first.saves_bytes == pytest.approx(saved, rel=0.1)


def test_a_parametrization_is_given_the_weights_of_a_layer(tmp_path):
    (one,) = merged_told(training(parametrized), tmp_path / "run.json")
    (first,) = one.remedies
    assert one.title.endswith("are weights to which each call adds `self.up @ self.down`")
    assert (first.fix, first.code) == ("apply_factors", "return original + self.up @ self.down")
    assert one.bytes >= (LAYERS - 1) * WEIGHT
    findings_of(looks_alike, tmp_path / "applied.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "applied.json")
    assert (LAYERS - 1) * WEIGHT <= first.saves_bytes <= saved


@pytest.mark.parametrize("layer", [Applying, Shifting, OnRows])
def test_weights_without_such_a_product_are_left_alone(layer, tmp_path):
    assert merged_told(training(layer), tmp_path / "run.json") == []


class InTurn(Merging):
    """Methods that return what one another return, and variables that stand for one another."""

    def one(self, x):
        return self.other(x)

    def other(self, x):
        return self.one(x) if x is None else x

    def forward(self, x):
        weight = self.base.weight + self.one(x[:1, :1]) + self.up.sum()
        return F.linear(x, weight)


def test_what_goes_round_is_given_up(tmp_path):
    assert merged_told(training(InTurn), tmp_path / "run.json") == []


class Normed(Applying):
    """The rows are scaled by the norms of what the weights would be: nothing is kept of these."""

    @torch.no_grad()
    def norms(self):
        merged = torch.addmm(self.base.weight, self.up, self.down, alpha=self.scale)
        return merged.norm(dim=1)

    def forward(self, x):
        return super().forward(x) / self.norms()


def test_what_no_backward_pass_needs_is_no_merged_weight(tmp_path):
    assert merged_told(training(Normed), tmp_path / "run.json") == []
