"""made-ahead: the loop that goes through the list works in place, and makes nothing itself."""

from __future__ import annotations

import torch

from memprof.loading import load
from memprof.views.examination import examine
from tests.rules.recorded import findings_of, record

TILES, SIDE = 8, 256
TILE = SIDE * SIDE * 4


def stitched():
    @torch.no_grad()
    def step(number):
        scores = [torch.rand(SIDE, SIDE) for _ in range(TILES)]
        canvas = torch.zeros(SIDE, SIDE + TILES)
        for at, score in zip(range(TILES), scores, strict=True):
            canvas[:, at : at + SIDE].add_(score)
        return canvas[0, 0].item()

    return step


def one_by_one():
    @torch.no_grad()
    def step(number):
        canvas = torch.zeros(SIDE, SIDE + TILES)
        for at in range(TILES):
            canvas[:, at : at + SIDE].add_(torch.rand(SIDE, SIDE))
        return canvas[0, 0].item()

    return step


def test_tiles_are_to_be_made_as_they_are_added(tmp_path):
    (found,) = (
        one for one in findings_of(stitched, tmp_path / "run.json") if one.rule == "made-ahead"
    )
    (first,) = found.remedies
    assert (found.bytes, first.fix) == (TILES * TILE, "yield_items")
    assert first.code == "scores = [torch.rand(SIDE, SIDE) for _ in range(TILES)]"
    record(one_by_one, tmp_path / "mended.json")
    (mended,) = examine(load(tmp_path / "mended.json")).devices
    assert first.peak_after == mended.peak_allocated
