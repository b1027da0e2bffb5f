"""broadcast: two vectors of n values come out as an n × n table."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of


def fires():
    def step(number):
        guess, wanted = torch.randn(1024, 1), torch.randn(1024)
        loss = (guess - wanted).square().mean()
        loss.item()

    return step


def looks_alike():
    """A table of n × n from two vectors of n values as well: a product, and scaled."""

    def step(number):
        queries, keys = torch.randn(1024, 1), torch.randn(1, 1024)
        scores = queries @ keys / 8
        scores.sum().item()

    return step


def test_the_table_has_as_many_rows_as_columns(tmp_path):
    found = next(
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "broadcast"
    )
    assert found.match.side == 1024
    assert found.remedies[0].fix == "reshape"
