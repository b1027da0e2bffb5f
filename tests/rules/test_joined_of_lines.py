"""reduced-later, where parts that several lines make are joined."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of

PASSES, ROWS, CLASSES = 8, 64, 512
PART = ROWS * CLASSES * 4


def predicted(flipped):
    scores = torch.rand(ROWS, CLASSES)
    if flipped:
        return scores.flip(0)
    return scores.softmax(1)


def voting():
    """Predictions for an image and its mirror image come of two lines."""

    @torch.no_grad()
    def step(number):
        votes = []
        for at in range(PASSES):
            votes.append(predicted(at % 2))
        return torch.stack(votes).mean(dim=0).max().item()

    return step


def test_parts_of_one_size_are_known_whatever_line_made_them(tmp_path):
    (found,) = (
        one for one in findings_of(voting, tmp_path / "run.json") if one.rule == "reduced-later"
    )
    (first,) = found.remedies
    assert found.title.startswith("2 MiB")
    assert f"are {PASSES} results and the tensor joined from them" in found.title
    assert (first.fix, found.bytes) == ("running_total", 2 * PASSES * PART)
