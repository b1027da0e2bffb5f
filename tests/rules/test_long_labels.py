"""bytes-as-floats: labels of a data set that take eight bytes each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of

IMAGES, SIDE, CLASSES = 256, 64, 21


def segmentation(dtype):
    images = torch.rand(IMAGES, SIDE, SIDE)
    masks = torch.randint(CLASSES, (IMAGES, SIDE, SIDE)).to(dtype)
    layer = nn.Conv2d(1, CLASSES, 1)

    def step(number):
        layer.zero_grad()
        at = torch.randint(IMAGES, (1,))
        scores = layer(images[at][:, None])
        nn.functional.cross_entropy(scores, masks[at].long()).backward()

    return step


@pytest.mark.parametrize(("dtype", "is_told"), [(torch.int64, True), (torch.int32, False)])
def test_labels_of_eight_bytes_are_told_where_they_are_half_of_the_peak(dtype, is_told, tmp_path):
    found = findings_of(lambda: segmentation(dtype), tmp_path / "run.json")
    told = [one for one in found if one.rule == "bytes-as-floats" and not one.minor]
    assert bool(told) is is_told
    if told:
        assert told[0].bytes == IMAGES * SIDE * SIDE * 8
        assert told[0].remedies[0].saves_bytes == IMAGES * SIDE * SIDE * 7
