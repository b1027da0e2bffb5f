"""unread-outputs: keys and values go with an output of which the scores are taken at once."""

from __future__ import annotations

import pytest
import torch

from tests.rules.layered_models import ROWS, WIDTH, decoder
from tests.rules.recorded import findings_of, names, peak_of


def scores():
    model = decoder()

    @torch.no_grad()
    def step(number):
        logits = model(torch.ones(ROWS, WIDTH)).logits
        return logits.sum().item()

    return step


def without_cache():
    model = decoder()

    @torch.no_grad()
    def step(number):
        logits = model(torch.ones(ROWS, WIDTH), use_cache=False).logits
        return logits.sum().item()

    return step


def test_they_are_told_though_they_go_with_the_call(tmp_path):
    found = findings_of(scores, tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix) == ("unread-outputs", "drop_outputs")
    assert only.code == "logits = model(torch.ones(ROWS, WIDTH)).logits"
    assert "unread-outputs" not in names(without_cache, tmp_path / "without.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "without.json")
    assert only.saves_bytes == pytest.approx(saved, rel=0.1)
