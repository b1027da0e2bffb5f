"""product-order: a large product of two small matrices is made, only to be multiplied again."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.recorded import findings_of, names, peak_of

LENGTH, WIDTH = 512, 16


def training(attention):
    project = nn.Linear(WIDTH, 3 * WIDTH)

    def step(number):
        project.zero_grad()
        q, k, v = project(torch.randn(LENGTH, WIDTH)).chunk(3, -1)
        attention(q, k, v).square().mean().backward()

    return step


def on_the_spot(q, k, v):
    return (q @ k.transpose(-2, -1) / len(k)) @ v


def by_name(q, k, v):
    scores = q @ k.T
    return torch.mm(scores, v) / (scores.sum(-1, keepdim=True) + 1e6)


def from_the_right(q, k, v):
    scores = torch.matmul(q, k.T)
    return v.T @ scores


def as_a_weight(q, k, v):
    return F.linear(v.T, q @ k.T)


def by_a_factor(q, k, v):
    scores = 0.5 * (q @ k.T)
    return (scores / len(k)) @ v


def that_divides(q, k, v):
    return (1.0 / (q @ k.T)) @ v


def by_einsum(q, k, v):
    scores = torch.einsum("id,jd->ij", q, k)
    return torch.einsum("ij,jd->id", scores / q.size(0), v) / q.size(1)


def by_einsum_of_heads(q, k, v):
    q, k, v = (one.view(LENGTH, 1, WIDTH) for one in (q, k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k)
    return torch.einsum("hij,jhd->ihd", scores, v)


def with_a_softmax(q, k, v):
    scores = q @ k.T
    return scores.softmax(-1) @ v


def with_a_softmax_and_einsum(q, k, v):
    scores = torch.einsum("id,jd->ij", q, k) / q.size(1) ** 0.5
    return torch.einsum("ij,jd->id", scores.softmax(-1), v)


def value_by_value(q, k, v):
    """Weights for each pair, and no product of matrices."""
    scores = torch.einsum("id,jd->ij", q, k)
    return torch.einsum("ij,ij->i", scores, k @ v.T)


def with_a_mask(q, k, v):
    scores = (q @ k.T).tril()
    return scores @ v


def that_is_returned(q, k, v):
    scores = q @ k.T
    return scores @ v + scores.diagonal()[:, None]


def in_the_other_order(q, k, v):
    return q @ (k.transpose(-2, -1) @ v) / len(k)


def fires():
    return training(on_the_spot)


def looks_alike():
    return training(with_a_mask)


@pytest.mark.parametrize(
    ("attention", "typed"),
    [
        (on_the_spot, "q @ (k.transpose(-2, -1) @ v) / len(k)"),
        (by_a_factor, "q @ (k.T @ v) * 0.5 / len(k)"),
        (by_name, "q @ (k.T @ v)"),
        (from_the_right, "(v.T @ q) @ k.T"),
        (as_a_weight, "(v.T @ k) @ q.mT"),
        (by_einsum, "q @ (k.mT @ v) / q.size(0)"),
        (
            by_einsum_of_heads,
            'torch.einsum("ihd,hde->ihe", q, torch.einsum("jhd,jhe->hde", k, v))',
        ),
    ],
)
def test_the_other_order_is_told(attention, typed, tmp_path):
    found = findings_of(lambda: training(attention), tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix, only.typed) == ("product-order", "apply_factors", typed)
    assert ("products with ones" in only.why) is (attention is by_name)


@pytest.mark.parametrize(
    "attention",
    [
        *(with_a_softmax, with_a_softmax_and_einsum, with_a_mask),
        *(that_is_returned, that_divides, value_by_value),
    ],
)
def test_what_more_is_done_with_it_needs_it(attention, tmp_path):
    assert "product-order" not in names(lambda: training(attention), tmp_path / "run.json")


def test_the_saving_is_that_of_the_other_order(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    findings_of(lambda: training(in_the_other_order), tmp_path / "other.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "other.json")
    assert found.remedies[0].saves_bytes == pytest.approx(saved, rel=0.05)


def test_both_orders_compute_the_same():
    q, k, v = torch.randn(3, LENGTH, WIDTH, dtype=torch.float64)
    whole = q @ k.T
    torch.testing.assert_close(on_the_spot(q, k, v), in_the_other_order(q, k, v))
    torch.testing.assert_close(torch.mm(whole, v), q @ (k.T @ v))
    torch.testing.assert_close(by_a_factor(q, k, v), q @ (k.T @ v) * 0.5 / len(k))
    torch.testing.assert_close(from_the_right(q, k, v), (v.T @ q) @ k.T)
    torch.testing.assert_close(as_a_weight(q, k, v), (v.T @ k) @ q.mT)
    torch.testing.assert_close(by_einsum(q, k, v), q @ (k.mT @ v) / q.size(0) / q.size(1))
    heads = [one.view(LENGTH, 1, WIDTH) for one in (q, k, v)]
    inner = torch.einsum("jhd,jhe->hde", *heads[1:])
    other = torch.einsum("ihd,hde->ihe", heads[0], inner)
    torch.testing.assert_close(by_einsum_of_heads(q, k, v), other)


class LowRank(nn.Module):
    """Its weights are a product of two parameters."""

    def __init__(self):
        super().__init__()
        self.left = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.right = nn.Parameter(torch.randn(WIDTH, LENGTH))


class ByProperty(LowRank):
    @property
    def weight(self):
        return torch.mm(self.left, self.right)

    def forward(self, x):
        return F.linear(x, self.weight)


class ByMethod(LowRank):
    def product(self):
        whole = self.left @ self.right
        return whole / self.left.size(1)

    def forward(self, x):
        return F.linear(x, self.product())


class WithAPenalty(LowRank):
    """The product itself is read as well."""

    @property
    def weight(self):
        return torch.mm(self.left, self.right)

    def forward(self, x):
        return F.linear(x, self.weight) + self.weight.abs().mean()


class Adapter(LowRank):
    """An attribute is a number that scales the weights, and the layer has a bias."""

    def __init__(self, rank=WIDTH, alpha=2 * WIDTH):
        super().__init__()
        self.scaling = alpha / rank
        self.bias = nn.Parameter(torch.zeros(LENGTH))

    def delta(self):
        return (self.left @ self.right) * self.scaling

    def forward(self, x):
        return F.linear(x, self.delta(), self.bias)


class Turned(LowRank):
    """The weights have a name, and are turned for the product."""

    def forward(self, x):
        weight = self.left @ self.right
        return x @ weight.t()


class TurnedAndAdded(LowRank):
    """Something is added to the turned weights."""

    def forward(self, x):
        weight = self.left @ self.right
        return (weight.T + x.mean()) @ x.T


class WeighedByRows(LowRank):
    """What scales them has a value for each row."""

    def __init__(self, rows=None):
        super().__init__()
        self.scaling = nn.Parameter(torch.rand(LENGTH, 1)) if rows is None else rows

    def delta(self):
        return (self.left @ self.right) * self.scaling

    def forward(self, x):
        return F.linear(x, self.delta())


def trained(layer):
    def step(number):
        layer.zero_grad()
        layer(torch.randn(4, LENGTH)).square().mean().backward()

    return step


@pytest.mark.parametrize(
    ("kind", "at_once", "typed"),
    [
        (ByProperty, 1, "(x @ self.right.mT) @ self.left.mT"),
        (ByMethod, 2, "(x @ self.right.mT) @ self.left.mT / self.left.size(1)"),
        (Turned, 1, "(x @ self.right.mT) @ self.left.mT"),
        (Adapter, 2, "(x @ self.right.mT) @ self.left.mT * self.scaling + self.bias"),
    ],
)
def test_a_product_that_a_property_or_a_method_returns_is_followed(kind, at_once, typed, tmp_path):
    found = findings_of(lambda: trained(kind()), tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix, only.typed) == ("product-order", "apply_factors", typed)
    assert found.bytes == at_once * LENGTH * LENGTH * 4


@pytest.mark.parametrize("kind", [WithAPenalty, TurnedAndAdded, WeighedByRows])
def test_a_product_that_a_penalty_reads_too_or_that_values_scale_is_needed(kind, tmp_path):
    assert "product-order" not in names(lambda: trained(kind()), tmp_path / "run.json")


def test_what_a_layer_with_a_bias_computes_is_the_same():
    layer, x = Adapter().double(), torch.randn(4, LENGTH, dtype=torch.float64)
    torch.nn.init.normal_(layer.bias)
    instead = (x @ layer.right.mT) @ layer.left.mT * layer.scaling + layer.bias
    torch.testing.assert_close(layer(x), instead)
