"""same-values: several tensors have the same values, or one has them again and again."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

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


LENGTH, SHARED = 128, 4
"""Steps that a cache is long, and heads that share keys and values."""


def cached(*, repeated):
    """Keys and values of two heads, kept for each of the eight that read them; or only read so."""
    kept = 1 if repeated else SHARED
    shape = 24, HEADS // kept, LENGTH, 32
    keys = torch.zeros(shape)
    values = torch.zeros(shape)

    @torch.no_grad()
    def step(number):
        query = torch.randn(24, HEADS, 1, 32)
        made = torch.randn(2, 24, HEADS // SHARED, 1, 32)
        if repeated:
            made = made.repeat_interleave(SHARED, dim=2)
        keys[:, :, number : number + 1], values[:, :, number : number + 1] = made
        read = keys[:, :, : number + 1], values[:, :, : number + 1]
        return functional.scaled_dot_product_attention(query, *read, enable_gqa=not repeated)

    return step


def test_keys_and_values_are_kept_once_for_heads_that_share_them(tmp_path):
    found = findings_of(lambda: cached(repeated=True), tmp_path / "run.json", LENGTH)[0]
    assert (found.rule, found.minor) == ("same-values", False)
    assert found.bytes == 2 * 24 * HEADS * LENGTH * 32 * 4
    assert found.title.endswith(f"are the same values {SHARED} times over")
    (first,) = found.remedies
    assert (first.fix, first.code) == ("reshape", "keys = torch.zeros(shape)")
    assert "enable_gqa" in first.why
    findings_of(lambda: cached(repeated=False), tmp_path / "once.json", LENGTH)
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "once.json")
    assert abs(first.saves_bytes - saved) <= 0.1 * saved
    assert not same(lambda: cached(repeated=False), tmp_path / "again.json")


class Biased(nn.Module):
    """Attention of eight heads with a bias for what is padded, in as many copies as there are."""

    def __init__(self, copies):
        super().__init__()
        self.copies = copies
        self.qkv = nn.Linear(32, 96)

    def forward(self, x, padded):
        batch, length, _ = x.shape
        row = padded[:, None, :].float() * -1e9
        bias = torch.stack([row + torch.zeros(length, 1)] * self.copies, dim=1)
        heads = self.qkv(x).view(batch, length, 3, HEADS, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)


def biased(copies):
    def program():
        model = Biased(copies)

        def step(number):
            padded = torch.rand(8, 256) < 0.5
            model(torch.randn(8, 256, 32), padded).square().mean().backward()
            model.zero_grad()

        return step

    return program


def test_a_bias_that_no_weight_made_is_no_activation(tmp_path):
    found = findings_of(biased(HEADS), tmp_path / "run.json")[0]
    nbytes = 8 * HEADS * 256 * 256 * 4
    assert (found.rule, found.bytes) == ("same-values", nbytes)
    assert found.title.endswith(f"are the same values {HEADS * 256:,} times over")
    findings_of(biased(1), tmp_path / "one.json")
    (first,) = found.remedies
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "one.json")
    assert 0 < saved <= first.saves_bytes <= nbytes


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


def of_frames(made, images):
    def program():
        frames = made(torch.rand(images, SIDE // 8, SIDE // 8))

        def step(number):
            return frames[number % images].sum().item()

        return step

    return program


def enlarged(small):
    return small.repeat_interleave(8, 1).repeat_interleave(8, 2)


def repeated(small):
    return small.repeat_interleave(8, 1).flatten(1)


@pytest.mark.parametrize(("made", "headlines"), [(enlarged, []), (repeated, ["same-values"])])
def test_images_that_are_enlarged_are_meant(made, headlines, tmp_path):
    found = findings_of(of_frames(made, 6), tmp_path / "run.json")
    assert [one.rule for one in found if not one.minor] == headlines


PICTURES, CAPTIONS = 64, 5


def of_pairs(paired):
    """Pictures with several captions each, as pairs of a data set; the last line shows pictures."""
    pictures = torch.randn(PICTURES, 3, 32, 32)
    rows = paired(pictures)
    model = nn.Conv2d(3, 4, 3)

    def step(number):
        batch = rows(torch.randint(PICTURES * CAPTIONS, (8,)))
        model(batch).square().mean().backward()
        model.zero_grad()
        return pictures[:4].mean().item()

    return step


def in_pairs(pictures):
    data = pictures.repeat_interleave(CAPTIONS, dim=0)
    return lambda places: data[places]


def by_place(pictures):
    return lambda places: pictures[places // CAPTIONS]


def test_rows_that_are_repeated_are_to_be_read_by_their_place(tmp_path):
    found = findings_of(lambda: of_pairs(in_pairs), tmp_path / "run.json")[0]
    (first,) = found.remedies
    assert (found.rule, first.fix) == ("same-values", "store_once")
    assert "read row `i // 5` for the i-th" in first.why
    findings_of(lambda: of_pairs(by_place), tmp_path / "once.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "once.json")
    assert first.saves_bytes == saved == PICTURES * CAPTIONS * 3 * 32 * 32 * 4
