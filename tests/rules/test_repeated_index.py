"""repeated-index: an index is copied for each value of a row, where it could be shown again."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of

BATCH, LENGTH, TAKEN, WIDTH = 16, 64, 48, 256


def training(take):
    layer = nn.Linear(WIDTH, WIDTH)

    def step(number):
        layer.zero_grad()
        order = torch.rand(BATCH, LENGTH).argsort(1)[:, :TAKEN]
        take(layer(torch.randn(BATCH, LENGTH, WIDTH)), order).square().mean().backward()

    return step


def by_repeat(x, order):
    return torch.gather(x, 1, order.unsqueeze(-1).repeat(1, 1, WIDTH))


def by_name(x, order):
    index = order[..., None].repeat(1, 1, WIDTH)
    return x.gather(1, index)


def by_its_own_name(x, order):
    order = order[:, :, None].repeat(1, 1, WIDTH)
    return x.gather(1, order)


def by_tile(x, order):
    order = torch.tile(order[:, :, None], (1, 1, WIDTH))
    return x.gather(dim=1, index=order)


def by_view(x, order):
    return torch.gather(x, 1, order.unsqueeze(-1).expand(-1, -1, WIDTH))


def along_the_other(x, order):
    """It repeats what has a length already: `expand` shows nothing of that."""
    rows = order[:, :1].unsqueeze(0).repeat(1, 1, WIDTH)
    return torch.gather(x, 1, rows.permute(1, 0, 2).repeat(1, TAKEN, 1))


def weights(x, order):
    """The repeated values are computed with."""
    return x[:, :TAKEN] * order.unsqueeze(-1).repeat(1, 1, WIDTH)


def fires():
    return training(by_repeat)


def looks_alike():
    return training(weights)


@pytest.mark.parametrize(
    ("take", "typed"),
    [
        (by_repeat, "order.unsqueeze(-1).expand(-1, -1, WIDTH)"),
        (by_its_own_name, "order[:, :, None].expand(-1, -1, WIDTH)"),
        (by_tile, "order[:, :, None].expand(-1, -1, WIDTH)"),
        (by_name, "order[..., None].expand(-1, -1, WIDTH)"),
    ],
)
def test_the_index_is_saved_and_its_view_told(take, typed, tmp_path):
    found = findings_of(lambda: training(take), tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix, only.typed) == ("repeated-index", "expand_index", typed)
    assert found.bytes == BATCH * TAKEN * WIDTH * 8
    findings_of(lambda: training(by_view), tmp_path / "view.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "view.json")
    assert only.saves_bytes == pytest.approx(saved, rel=0.02)


def test_a_view_is_none(tmp_path):
    assert "repeated-index" not in names(lambda: training(by_view), tmp_path / "run.json")


def test_what_repeats_another_dimension_than_the_new_one_is_none(tmp_path):
    rules = names(lambda: training(along_the_other), tmp_path / "run.json")
    assert "repeated-index" not in rules
