"""What asks for activation checkpointing: then inputs have to take gradients."""

from __future__ import annotations

import pytest

from memprof.rules.waste.frozen_graph import asks_for_checkpointing
from memprof.source_code.program import program_of


@pytest.mark.parametrize(
    ("line", "asks"),
    [
        ("base.gradient_checkpointing_enable()", True),
        ("args = TrainingArguments(gradient_checkpointing=True)", True),
        ("y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)", True),
        ("save_checkpoint(base, path)", False),
        ("trainer = Trainer(resume_from_checkpoint=path)", False),
    ],
)
def test_a_call_or_a_switch_asks_for_it(line, asks, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(line + "\n")
    assert asks_for_checkpointing(program_of(str(path))) is asks
