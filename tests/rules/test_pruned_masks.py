"""pruned-masks: weights are pruned, and served with their masks and their old values."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from tests.rules.recorded import findings_of, peak_of

WIDTH, DEPTH = 256, 4


def layers():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)))


def serving(net):
    net = net.eval().requires_grad_(False)

    @torch.inference_mode()
    def step(number):
        return net(torch.randn(2, WIDTH)).sum().item()

    return step


def fires():
    net = layers()
    for layer in net:
        prune.l1_unstructured(layer, "weight", amount=0.5)
    return serving(net)


CLASSES = {"l1": prune.L1Unstructured, "random": prune.RandomUnstructured}


def by_class():
    """The class's own method, of whichever is asked for."""
    net = layers()
    for layer in net:
        CLASSES["random"].apply(layer, "weight", amount=0.5)
    return serving(net)


def looks_alike():
    """It is trained on, with its masks."""
    net = layers()
    for layer in net:
        prune.l1_unstructured(layer, "weight", amount=0.5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(number):
        optimizer.zero_grad()
        net(torch.randn(2, WIDTH)).square().mean().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (fires, 'prune.l1_unstructured(layer, "weight", amount=0.5)'),
        (by_class, 'CLASSES["random"].apply(layer, "weight", amount=0.5)'),
    ],
)
def test_masks_and_products_are_saved(program, code, tmp_path):
    found = findings_of(program, tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix) == ("pruned-masks", "remove_masks")
    assert only.code == code
    assert only.typed == 'prune.remove(module, "weight")'
    # a mask for each, and at least the products that stay
    assert found.bytes >= 2 * DEPTH * WIDTH * WIDTH * 4
    findings_of(lambda: serving(layers()), tmp_path / "plain.json")
    after = peak_of(tmp_path / "plain.json")
    assert only.peak_after == pytest.approx(after, rel=0.1)
