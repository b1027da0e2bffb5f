"""wide-checkpoint: one checkpoint spans many blocks, which are all computed again at once."""

from __future__ import annotations

from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.rules.checkpointing_models import BLOCKS, WIDTH, Block
from tests.rules.recorded import findings_of, peak_of
from tests.rules.test_idle_checkpointing import learning


class Encoder(nn.Module):
    def __init__(self, of_each):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.of_each = of_each

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.of_each else block(x)
        return x


class Model(nn.Module):
    def __init__(self, of_each):
        super().__init__()
        self.into, self.encoder = nn.Linear(WIDTH, WIDTH), Encoder(of_each)
        self.of_each = of_each

    def forward(self, x):
        x = self.into(x)
        if self.of_each:
            return self.encoder(x)
        return checkpoint(self.encoder, x, use_reentrant=False)


fires = learning(lambda: Model(of_each=False))
looks_alike = learning(lambda: Model(of_each=True))


def test_a_checkpoint_of_each_block_is_what_saves(tmp_path):
    found = next(
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "wide-checkpoint"
    )
    (first,) = found.remedies
    assert not found.minor
    assert found.title.endswith("that one checkpoint computes again at once")
    assert first.code == "return checkpoint(self.encoder, x, use_reentrant=False)"
    findings_of(looks_alike, tmp_path / "each.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "each.json")
    # What is told is no more than what is saved, but for what else the process did meanwhile.
    assert 0.8 * saved <= first.saves_bytes <= 1.02 * saved
