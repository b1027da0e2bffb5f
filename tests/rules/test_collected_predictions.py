"""collected-predictions: a framework's evaluation keeps what the model returned for every batch."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

TRAINER = """
class Trainer:
    def __init__(self, model, reduced=None):
        self.model, self.reduced = model, reduced

    def evaluation_loop(self, batches):
        collected = None
        with torch.no_grad():
            for batch in batches:
                logits = self.model(batch)
                if self.reduced is not None:
                    logits = self.reduced(logits)
                collected = logits if collected is None else torch.cat((collected, logits))
        return collected
"""
"""The shape of the Trainer of transformers, whose functions are known by where they lie."""


def trainer(*arguments):
    name = "/x/site-packages/transformers/trainer.py"
    names = {"torch": torch}
    exec(compile(TRAINER, name, "exec"), names)
    return names["Trainer"](*arguments)


def evaluates(*arguments):
    def program():
        ours = trainer(nn.Linear(32, 4096), *arguments)

        def step(number):
            ours.evaluation_loop(torch.randn(16, 32) for _ in range(8)).sum().item()

        return step

    return program


fires = evaluates()


def largest(logits):
    return logits.argmax(-1)


looks_alike = evaluates(largest)


def test_the_line_is_the_users_and_what_to_type_is_the_frameworks(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    assert (found.rule, found.minor) == ("collected-predictions", False)
    assert "evaluation_loop" in found.site.code
    remedy = found.remedies[0]
    assert remedy.typed == "Trainer(…, preprocess_logits_for_metrics=…)"
    assert remedy.saves_bytes >= 8 * 16 * 4096 * 4
