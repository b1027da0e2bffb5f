"""same-values: several tensors have the same values, or one has them again and again."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of, peak_of

HEADS, SIDE = 8, 512


class Head(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, scores):
        return scores.masked_fill(self.mask == 0, -1e9).softmax(-1)


def masks_of_each():
    return [torch.ones(SIDE, SIDE).tril() for _ in range(HEADS)]


def one_for_all():
    return [torch.ones(SIDE, SIDE).tril()] * HEADS


def attending(masks):
    def program():
        heads = nn.ModuleList([Head(mask) for mask in masks()])

        @torch.no_grad()
        def step(number):
            scores = torch.randn(SIDE, SIDE)
            return sum(head(scores).sum().item() for head in heads)

        return step

    return program


fires = attending(masks_of_each)
looks_alike = attending(one_for_all)


def same(program, path):
    return [one for one in findings_of(program, path) if one.rule == "same-values"]


def test_one_of_them_does_for_all(tmp_path):
    (found,) = same(fires, tmp_path / "run.json")
    (first,) = found.remedies
    assert found.title.endswith(f"are {HEADS} tensors of the same values")
    assert found.bytes == HEADS * SIDE * SIDE * 4
    assert (first.fix, first.code) == ("store_once", line_of_masks())
    findings_of(looks_alike, tmp_path / "once.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "once.json")
    assert abs(first.saves_bytes - saved) <= 0.1 * saved


def line_of_masks():
    return "return [torch.ones(SIDE, SIDE).tril() for _ in range(HEADS)]"


def for_each_head():
    """A function of somebody else's makes the bias as large as the scores."""
    bias = torch.cat([torch.randn(1, SIDE, SIDE)] * HEADS)

    @torch.no_grad()
    def step(number):
        return (torch.randn(SIDE, SIDE) + bias[number % HEADS]).sum().item()

    return step


def test_what_is_there_again_along_a_dimension_is_to_be_kept_once(tmp_path):
    (found,) = same(for_each_head, tmp_path / "run.json")
    (first,) = found.remedies
    assert found.title.endswith(f"are the same values {HEADS} times over")
    assert (first.fix, found.bytes) == ("reshape", HEADS * SIDE * SIDE * 4)
    assert first.saves_bytes == found.bytes * (HEADS - 1) // HEADS


def alike_at_first():
    """Weights of clients are the same until each has learned."""
    weights = torch.randn(SIDE, SIDE)
    clients = [weights.clone() for _ in range(HEADS)]

    @torch.no_grad()
    def step(number):
        for client in clients:
            client.add_(torch.randn(SIDE, SIDE))
        return clients[0].sum().item()

    return step


def test_what_the_last_look_saw_counts(tmp_path):
    assert not same(alike_at_first, tmp_path / "run.json")
