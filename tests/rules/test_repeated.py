"""repeated: a tensor is copied several times where a view would do."""

from __future__ import annotations

import pytest
import torch

from tests.rules.recorded import findings_of, names


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


def of_many_lengths():
    """The same as the first, of batches that differ in length."""

    def step(number):
        length = 64 - number % 8
        queries, keys = torch.randn(length, 32), torch.randn(length, 32)
        pairs = queries.unsqueeze(1).repeat(1, length, 1)
        (pairs + keys).tanh_().sum().item()

    return step


def test_the_saving_counts_the_copies_of_batches_of_every_length(tmp_path):
    found = findings_of(of_many_lengths, tmp_path / "run.json")
    one = next(one for one in found if one.rule == "repeated")
    assert one.remedies[0].saves_bytes >= 64 * 64 * 32 * 4 // 2


def test_a_copy_of_what_expand_shows_is_one_as_well(tmp_path):
    found = findings_of(copies_what_is_expanded, tmp_path / "run.json")
    first = next(one for one in found if one.rule == "repeated").remedies[0]
    assert first.fix == "reshape"
    assert "`expand` shows the same values several times and takes no memory" in first.why


def pairs_of_nodes():
    weight = torch.randn(64, 1)

    def step(number):
        nodes = torch.randn(64, 32)
        source = nodes.repeat_interleave(64, dim=0)
        target = nodes.repeat(64, 1)
        pairs = torch.cat([source, target], dim=1)
        (pairs @ weight).sum().item()

    return step


def tokens_of_a_batch():
    """What is joined to the repeated token is a batch of its own."""
    token = torch.randn(1, 1, 32)

    def step(number):
        patches = torch.randn(64, 64, 32)
        tokens = torch.cat([token.expand(64, -1, -1), patches], dim=1)
        tokens.tanh_().sum().item()

    return step


def test_pairs_that_are_joined_are_to_be_a_sum_that_broadcasts(tmp_path):
    found = findings_of(pairs_of_nodes, tmp_path / "run.json")
    (one,) = [finding for finding in found if finding.rule == "repeated"]
    first = one.remedies[0]
    assert (one.bytes, one.minor) == (64 * 64 * 64 * 4, False)
    assert (first.fix, first.code) == ("reshape", "pairs = torch.cat([source, target], dim=1)")
    assert "a linear layer of joined parts is the sum of one for each part" in first.why


def test_a_token_before_a_batch_is_no_repetition(tmp_path):
    assert "repeated" not in names(tokens_of_a_batch, tmp_path / "run.json")


def draws(text):
    """Negatives for each of many words, of one distribution."""
    namespace = {"torch": torch, "noise": torch.rand(4096)}

    def step(number):
        n, few = 64, 5
        if text == "function":
            return torch.multinomial(namespace["noise"].repeat(n, 1), few).sum().item()
        return namespace["noise"].repeat(n, 1).multinomial(num_samples=few).sum().item()

    return step


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        (
            "function",
            "torch.multinomial(namespace['noise'], n * few, replacement=True).view(n, few)",
        ),
        ("method", ""),
    ],
)
def test_draws_from_rows_that_are_the_same_are_draws_from_one(text, typed, tmp_path):
    found = findings_of(lambda: draws(text), tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix, first.typed) == ("repeated", "reshape", typed)
    assert "draw all numbers from one of them" in first.why
