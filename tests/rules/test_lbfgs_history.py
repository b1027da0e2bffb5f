"""lbfgs-history: L-BFGS keeps a hundred pairs of vectors, each as long as all parameters."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64
VECTOR = (WIDTH * WIDTH + WIDTH) * 4


def training(**options):
    model = nn.Linear(WIDTH, WIDTH)
    x, y = torch.randn(32, WIDTH), torch.randn(32, WIDTH)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, **options)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    return lambda number: optimizer.step(closure)


def fires():
    return training()


def looks_alike():
    """The history is short."""
    return training(history_size=10)


def test_a_short_history_saves_all_older_pairs(tmp_path):
    (found,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "lbfgs-history"
    ]
    (only,) = found.remedies
    vectors = len(found.match.rows)
    assert f"are {vectors // 2} pairs of vectors" in found.title
    assert 0 <= vectors * VECTOR - found.bytes < VECTOR
    assert only.fix == "history_size"
    assert only.code.startswith("optimizer = torch.optim.LBFGS(")
    assert only.patch == ""  # it may be among the options
    assert only.saves_bytes >= (vectors - 20 - 2) * VECTOR
