"""unread-buffer: a large buffer of a module that nothing in the program reads."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


class Biased(nn.Module):
    """An earlier version added the distances; this one adds a bias for each."""

    def __init__(self):
        super().__init__()
        distances = torch.arange(256).float()[:, None] - torch.arange(256)
        self.register_buffer("distances", distances)
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return self.linear(x)


class Gathering(nn.Module):
    """The whole table is read, by an index."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(256, 256))
        self.linear = nn.Linear(256, 64)

    def forward(self, x):
        return self.linear(self.frequencies[x])


def trained(model, x):
    model(x).square().mean().backward()
    model.zero_grad()


def fires():
    model = Biased()
    return lambda number: trained(model, torch.randn(64, 64))


def looks_alike():
    model = Gathering()
    return lambda number: trained(model, torch.randint(256, (64,)))


def test_it_is_as_large_as_the_table_and_named(tmp_path):
    (unread,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "unread-buffer"
    ]
    assert unread.bytes == 256 * 256 * 4
    # The name by itself, as a text, would be a place that may read it.
    assert unread.title.endswith("are a buffer of `Biased` that nothing reads, `distances`")
    assert [remedy.fix for remedy in unread.remedies] == ["del_ref", "right_size"]
