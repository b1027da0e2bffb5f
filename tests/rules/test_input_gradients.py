"""frozen-graph, where a library's method has the inputs ask: for checkpointing, of which is none."""

from __future__ import annotations

import torch

from tests.rules.recorded import findings_of
from tests.rules.saliency import BATCH, WIDTH, probe


class Base(torch.nn.Module):
    """What of a transformers' model this is about: an input embedding, and the method."""

    def __init__(self, backbone):
        super().__init__()
        self.embedding, self.backbone = torch.nn.Embedding(BATCH, WIDTH), backbone
        self.embedding.requires_grad_(False)

    def enable_input_require_grads(self):
        self.embedding.register_forward_hook(lambda *given: given[-1].requires_grad_(True))

    def forward(self, ids):
        return self.backbone(self.embedding(ids))


def asks_as_checkpointing_needs():
    backbone, head, optimizer = probe()
    base = Base(backbone)
    base.enable_input_require_grads()

    def step(number):
        head(base(torch.arange(BATCH))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_inputs_that_ask_as_checkpointing_needs_it_are_told_at_that_call(tmp_path):
    found, *_ = findings_of(asks_as_checkpointing_needs, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("frozen-graph", False)
    first, second = found.remedies
    assert (first.fix, first.code) == ("detach", "base.enable_input_require_grads()")
    assert first.why.startswith("Leave `enable_input_require_grads()` out: only checkpointing")
    assert second.fix == "no_grad"
