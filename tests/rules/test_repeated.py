"""repeated: a tensor is copied several times where a view would do."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of


def fires():
    def step(number):
        queries, keys = torch.randn(64, 32), torch.randn(64, 32)
        pairs = queries.unsqueeze(1).repeat(1, 64, 1)
        (pairs + keys).tanh_().sum().item()

    return step


def looks_alike():
    """The same sum, of a view."""

    def step(number):
        queries, keys = torch.randn(64, 32), torch.randn(64, 32)
        pairs = queries.unsqueeze(1).expand(64, 64, 32)
        (pairs + keys).tanh_().sum().item()

    return step


def copies_what_is_expanded():
    def step(number):
        mask, keys = torch.randn(64, 1, 32), torch.randn(64, 32)
        pairs = mask.expand(-1, 64, -1).contiguous()
        (pairs + keys).tanh_().sum().item()

    return step


def test_a_copy_of_what_expand_shows_is_one_as_well(tmp_path):
    found = findings_of(copies_what_is_expanded, tmp_path / "run.json")
    first = next(one for one in found if one.rule == "repeated").remedies[0]
    assert first.fix == "reshape"
    assert "`expand` shows the same values several times and takes no memory" in first.why
