"""grown-by-concatenation: a tensor is replaced in every step by one that has more appended."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from tests.rules.recorded import findings_of

ROWS, WIDTH = 16, 64


def fires():
    state = SimpleNamespace(preds=torch.zeros(0, WIDTH))

    def step(number):
        state.preds = torch.cat([state.preds, torch.randn(ROWS, WIDTH)])

    return step


def looks_alike():
    """Parts pile up in a list, and are joined anew in each step."""
    parts = []

    def step(number):
        parts.append(torch.randn(ROWS, WIDTH))
        joined = torch.cat(parts)
        joined.mean().item()

    return step


def test_it_is_to_be_begun_anew_or_its_parts_collected_on_the_host(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json")
    first, second, *_ = found.remedies
    assert found.rule == first.rule == second.rule == "grown-by-concatenation"
    assert found.bytes_per_step == ROWS * WIDTH * 4
    assert (first.fix, second.fix) == ("clear_container", "cpu_offload")
    assert first.code == "state.preds = torch.cat([state.preds, torch.randn(ROWS, WIDTH)])"
