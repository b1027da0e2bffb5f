"""frozen-graph: modules that take no gradient keep activations, because their input takes one."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of
from tests.rules.saliency import BATCH, LAYERS, WIDTH, probe, saliency


def fires():
    backbone, head, optimizer = probe()

    def step(number):
        images = torch.randn(BATCH, WIDTH)
        images.requires_grad_(True)
        head(backbone(images)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


looks_alike = saliency


def test_what_the_backbone_keeps_is_told_at_the_statement_that_asks_for_it(tmp_path):
    (found,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "frozen-graph"
    ]
    assert found.bytes == LAYERS * BATCH * WIDTH * 4  # each tanh keeps its result
    assert [(remedy.fix, remedy.code) for remedy in found.remedies] == [
        ("detach", "images.requires_grad_(True)"),
        ("no_grad", "head(backbone(images)).square().mean().backward()"),
    ]
