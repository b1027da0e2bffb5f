"""large-buffer: a module's forward reads a slice of a buffer that makes much of the peak."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


class Causal(nn.Module):
    def __init__(self, longest):
        super().__init__()
        side = longest
        self.register_buffer("visible", torch.ones(side, side).tril())

    def forward(self, scores):
        t = scores.shape[-1]
        return scores * self.visible[:t, :t]


class Whole(nn.Module):
    """A table that is read whole, beside a slice of the scores."""

    def __init__(self, longest):
        super().__init__()
        self.register_buffer("decay", torch.ones(longest, longest).tril())

    def forward(self, scores):
        t = scores.shape[-1]
        return scores[:, :t] @ self.decay.mean(0)[:t]


def step_of(mask):
    linear = nn.Linear(32, 32)

    def step(number):
        mask(linear(torch.randn(32, 32))).square().mean().backward()
        linear.zero_grad()

    return step


def fires():
    return step_of(Causal(256))


def looks_alike():
    return step_of(Whole(256))


def test_it_is_told_where_its_size_is_set(tmp_path):
    (large,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "large-buffer"
    ]
    assert large.bytes == 256 * 256 * 4
    (remedy,) = large.remedies
    assert (remedy.fix, remedy.code) == ("right_size", "side = longest")


class Queue(nn.Module):
    """Negatives of earlier batches: each batch writes a part, and all of them are read."""

    def __init__(self, places):
        super().__init__()
        self.register_buffer("negatives", torch.randn(places, 32))
        self.at = 0

    def forward(self, keys):
        self.negatives[self.at : self.at + len(keys)].copy_(keys.detach())
        self.at = (self.at + len(keys)) % self.negatives.size(0)
        return keys @ self.negatives.t()


def test_a_queue_of_which_a_part_is_written_is_read_whole(tmp_path):
    found = findings_of(lambda: step_of(Queue(2048)), tmp_path / "run.json")
    assert "large-buffer" not in [one.rule for one in found]


class Turning(nn.Module):
    """Tables for the longest input, of which each input reads the first rows."""

    def __init__(self, longest):
        super().__init__()
        angles = torch.rand(longest, 32)
        self.register_buffer("turned", angles.cos(), persistent=False)

    def forward(self, scores):
        return scores * self.turned.narrow(0, 0, len(scores))


class OfAllRows(nn.Module):
    """What is narrowed is another tensor than the buffer."""

    def __init__(self, longest):
        super().__init__()
        weights = torch.rand(longest, 32)
        self.register_buffer("spread", weights.sin(), persistent=False)

    def forward(self, scores):
        return scores * self.spread.softmax(0).narrow(0, 0, len(scores))


class Masked(nn.Module):
    """A triangle whose rows all differ, as samples of them do not tell."""

    def __init__(self, longest):
        super().__init__()
        mask = torch.full((longest, longest), float("-inf")).triu_(1)
        self.register_buffer("hidden", mask[None, None], persistent=False)

    def forward(self, scores):
        t = scores.shape[-1]
        return (scores + self.hidden[..., :t, :t]).softmax(-1)


def test_rows_that_are_narrowed_are_a_slice(tmp_path):
    found = findings_of(lambda: step_of(Turning(8192)), tmp_path / "run.json")
    (large,) = [one for one in found if one.rule == "large-buffer"]
    assert large.bytes == 8192 * 32 * 4
    assert large.site.code == 'self.register_buffer("turned", angles.cos(), persistent=False)'


def test_what_is_computed_of_all_of_it_needs_it_whole(tmp_path):
    found = findings_of(lambda: step_of(OfAllRows(8192)), tmp_path / "run.json")
    assert "large-buffer" not in [one.rule for one in found]


def first_of(table, length):
    return table[:length]


class Renamed(nn.Module):
    """The buffer has another name where a slice is read of it, in a function."""

    def __init__(self, longest):
        super().__init__()
        self.register_buffer(name="renamed_table", tensor=torch.rand(longest, 32).cos())

    def rows(self, length):
        table = self.renamed_table
        return first_of(table.float(), length)

    def forward(self, scores):
        return scores * self.rows(len(scores))


class RenamedWhole(Renamed):
    """That name is read whole as well."""

    def __init__(self, longest):
        super().__init__(8)
        self.register_buffer("read_whole", torch.rand(longest, 32).sin())

    def rows(self, length):
        table = self.read_whole
        return first_of(table, length) * table.mean()


def test_a_slice_is_read_by_another_name(tmp_path):
    found = findings_of(lambda: step_of(Renamed(8192)), tmp_path / "run.json")
    (large,) = [one for one in found if one.rule == "large-buffer"]
    assert large.bytes == 8192 * 32 * 4
    found = findings_of(lambda: step_of(RenamedWhole(8192)), tmp_path / "whole.json")
    assert "large-buffer" not in [one.rule for one in found]


def test_a_triangle_does_not_repeat_itself(tmp_path):
    found = findings_of(lambda: step_of(Masked(2500)), tmp_path / "run.json")
    rules = [one.rule for one in found]
    assert rules[0] == "large-buffer"
    assert "same-values" not in rules
