"""grown-by-concatenation: tensors that are padded, and the new part is written into them."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


class Support(nn.Module):
    """Reads the newest rows alone."""

    def __init__(self):
        super().__init__()
        self.register_buffer("support_rows", torch.zeros(0, WIDTH))

    def add(self, x):
        self.support_rows = nn.functional.pad(self.support_rows, (0, 0, 0, len(x)))
        self.support_rows[-len(x) :].copy_(x)

    def forward(self, x):
        self.add(x)
        return (x @ self.support_rows[-128:].T).max()


class Cache(nn.Module):
    """Computes with all rows that there are, as attention does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cached_rows", torch.zeros(0, WIDTH))

    def forward(self, x):
        self.cached_rows = nn.functional.pad(self.cached_rows, (0, 0, 0, len(x)))
        self.cached_rows[-len(x) :].copy_(x)
        return (x @ self.cached_rows.T).max()


def calling(module):
    def program():
        model = module()
        return lambda number: model(torch.ones(WIDTH, WIDTH))

    return program


def test_no_more_rows_are_to_be_kept_than_are_read(tmp_path):
    found, *_ = findings_of(calling(Support), tmp_path / "run.json", steps=40)
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("grown-by-concatenation", "right_size")
    assert first.code.startswith("self.support_rows = nn.functional.pad(")
    assert "nothing but `self.support_rows[-128:]` is read" in first.why


def test_what_is_computed_with_as_a_whole_is_a_cache(tmp_path):
    found, *_ = findings_of(calling(Cache), tmp_path / "run.json", steps=40)
    assert (found.rule, found.remedies[0].fix) == ("generation-cache", "clear_container")
