"""chained-pruning: weights are pruned again and again, and keep the mask of each time."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import prune

from tests.rules.recorded import findings_of, names

WIDTH = 128


def pruning(last, *, is_permanent=False):
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


def fires():
    return pruning(16)()


def looks_alike():
    return pruning(16, is_permanent=True)()


def test_each_pruning_is_to_be_made_permanent_before_the_next(tmp_path):
    (found,) = [one for one in findings_of(fires, tmp_path / "run.json") if not one.minor]
    first = found.remedies[0]
    assert (found.rule, first.rule, first.fix) == (*["chained-pruning"] * 2, "remove_masks")
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert first.code == 'prune.custom_from_mask(layer, "weight", mask)'
    assert first.typed.endswith('prune.remove(module, "weight")')


def test_masks_of_a_schedule_that_is_over_are_waste(tmp_path):
    steps = 40
    found = findings_of(pruning(20), tmp_path / "run.json", steps)
    (one,) = [one for one in found if one.rule == "pruned-masks"]
    assert one.title.endswith("one upon the other")
    assert one.bytes == 20 * WIDTH * WIDTH * 4
    assert one.remedies[0].saves_bytes >= 18 * WIDTH * WIDTH * 4
    found = names(pruning(20, is_permanent=True), tmp_path / "fixed.json")
    assert not {"pruned-masks", "chained-pruning"} & set(found)
