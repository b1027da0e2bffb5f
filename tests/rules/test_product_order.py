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


def with_a_softmax(q, k, v):
    scores = q @ k.T
    return scores.softmax(-1) @ v


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
    ],
)
def test_the_other_order_is_told(attention, typed, tmp_path):
    found = findings_of(lambda: training(attention), tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix, only.typed) == ("product-order", "apply_factors", typed)
    assert ("products with ones" in only.why) is (attention is by_name)


@pytest.mark.parametrize("attention", [with_a_softmax, with_a_mask, that_is_returned, that_divides])
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
