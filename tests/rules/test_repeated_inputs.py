"""repeated: what a step repeats and hands to a model."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

ROWS, HEADS, PLACES = 4, 16, 64
MASK = ROWS * HEADS * PLACES * PLACES * 4


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(8, 8)

    def forward(self, x, mask):
        scores = x @ self.weight(x).transpose(-1, -2)
        return [(scores + mask[:, head]).amax(-1) for head in range(HEADS)]


def masked(for_heads):
    model = Scores()

    @torch.no_grad()
    def step(number):
        mask = torch.zeros(ROWS, 1, PLACES, PLACES)
        mask.masked_fill_(torch.rand(ROWS, 1, PLACES, PLACES) < 0.5, float("-inf"))
        model(torch.rand(ROWS, PLACES, 8), for_heads(mask))

    return step


def fires():
    def for_heads(mask):
        return mask.repeat(1, HEADS, 1, 1)

    return masked(for_heads)


def looks_alike():
    def for_heads(mask):
        return mask.expand(-1, HEADS, -1, -1)

    return masked(for_heads)


def repeated(program, path):
    return [one for one in findings_of(program, path) if one.rule == "repeated"]


def test_a_mask_for_each_head_is_to_be_shown_as_a_view(tmp_path):
    (one,) = repeated(fires, tmp_path / "run.json")
    (first, _) = one.remedies
    assert (one.bytes, first.fix, first.code) == (
        MASK,
        "reshape",
        "return mask.repeat(1, HEADS, 1, 1)",
    )
    assert first.saves_bytes >= 0.9 * MASK


def test_a_view_is_none(tmp_path):
    assert not repeated(looks_alike, tmp_path / "run.json")
