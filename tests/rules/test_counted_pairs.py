"""one-hot: two tables that are multiplied to count pairs of classes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.recorded import findings_of

ROWS, CLASSES, WIDTH = 4096, 64, 8


def counting(count):
    layer = nn.Linear(WIDTH, CLASSES)
    pairs = torch.zeros(CLASSES, CLASSES)

    def step(number):
        nonlocal pairs
        target = torch.randint(CLASSES, (ROWS,))
        with torch.no_grad():
            pairs = count(pairs, target, layer(torch.randn(ROWS, WIDTH)).argmax(1))

    return step


def at_once(pairs, target, guess):
    return pairs + F.one_hot(target, CLASSES).float().T @ F.one_hot(guess, CLASSES).float()


def by_names(pairs, target, guess):
    rows = F.one_hot(target, CLASSES).float()
    columns = F.one_hot(guess, CLASSES).float()
    return pairs + rows.t().matmul(columns)


def by_bincount(pairs, target, guess):
    counts = torch.bincount(target * CLASSES + guess, minlength=CLASSES * CLASSES)
    return pairs + counts.view(CLASSES, CLASSES)


@pytest.mark.parametrize("count", [at_once, by_names])
def test_a_table_of_counts_is_told_with_bincount(count, tmp_path):
    found = findings_of(lambda: counting(count), tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix) == ("one-hot", "class_indices")
    assert "multiplied with another one, to count pairs of classes" in found.title
    assert only.typed == (
        "torch.bincount(target * CLASSES + guess, minlength=CLASSES * CLASSES)"
        ".view(CLASSES, CLASSES)"
    )
    assert only.saves_bytes > ROWS * CLASSES * 8  # a table of int64, and more


def test_what_is_told_counts_the_same():
    target, guess = torch.randint(CLASSES, (2, ROWS))
    nothing = torch.zeros(CLASSES, CLASSES)
    counts = by_bincount(nothing, target, guess)
    assert torch.equal(at_once(nothing, target, guess), counts)
    assert torch.equal(by_names(nothing, target, guess), counts)
