"""pruned-masks: weights that were pruned again and again keep the mask of each time."""

from __future__ import annotations

import re

import torch
from torch import nn
from torch.nn.utils import prune

from tests.rules.recorded import findings_of

WIDTH = 256


def pruned_in_turn(last, *, is_permanent=False):
    """A layer that loses a few weights more in each step up to the last of a schedule."""

    def program():
        layer = nn.Linear(WIDTH, WIDTH)

        def step(number):
            if number < last:
                if is_permanent and prune.is_pruned(layer):
                    prune.remove(layer, "weight")
                with torch.no_grad():
                    mask = (layer.weight.abs() > 0.001 * number).float()
                prune.custom_from_mask(layer, "weight", mask)
            return layer(torch.randn(4, WIDTH)).sum().item()

        return step

    return program


def test_masks_of_a_schedule_that_is_over_are_waste_but_for_the_last(tmp_path):
    found = findings_of(pruned_in_turn(20), tmp_path / "run.json", 40)
    (one,) = [one for one in found if one.rule == "pruned-masks"]
    first = one.remedies[0]
    assert re.search(r"pruned \d+ times or more, in turn$", one.title)
    assert one.bytes == 20 * WIDTH * WIDTH * 4
    assert first.code == 'prune.custom_from_mask(layer, "weight", mask)'
    assert first.typed.endswith('prune.remove(module, "weight")')
    assert first.saves_bytes >= 18 * WIDTH * WIDTH * 4
    fixed = findings_of(pruned_in_turn(20, is_permanent=True), tmp_path / "fixed.json", 40)
    assert "in turn" not in " ".join(one.title for one in fixed)
