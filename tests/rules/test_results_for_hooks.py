"""partly-read: what a layer makes is read whole where a hook is given it."""

from __future__ import annotations

import torch

from tests.rules.recorded import names
from tests.rules.test_partly_read import POSITIONS, ROWS, WORDS, Decoder


def training():
    """The last position is trained, and all of them are kept small by a hook on the layer."""
    decoder, values = Decoder(), {}

    def keep_small(layer, inputs, output):
        values["small"] = output.logsumexp(-1).square().mean()

    decoder.head.register_forward_hook(keep_small)

    def step(number):
        logits = decoder(torch.randint(WORDS, (ROWS, POSITIONS)))
        (logits[:, -1].logsumexp(-1).mean() + values.pop("small")).backward()
        decoder.zero_grad()

    return step


def test_a_result_that_a_hook_is_shown_is_read_whole(tmp_path):
    assert "partly-read" not in names(training, tmp_path / "run.json")
