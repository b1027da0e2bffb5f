"""returned-predictions: a framework's loop keeps what each batch returns, to return all of it."""

from __future__ import annotations

import pytest
import torch

from memprof.source_code.joined_parts import are_results_joined
from memprof.source_code.program import program_of
from tests.rules.recorded import findings_of

ROWS, CLASSES = 64, 32


class _PredictionLoop:
    """Collects as Lightning's loop of this name does."""

    def __init__(self):
        self._predictions = [[]]

    def run(self, model, batch):
        self._predictions[0].append(model.predict_step(batch))


class Whole:
    def predict_step(self, batch):
        return batch.repeat(1, CLASSES)


class Counted:
    def predict_step(self, batch):
        return int(batch.repeat(1, CLASSES).argmax())


def predicted_by(model):
    loop = _PredictionLoop()

    def step(number):
        loop.run(model, torch.ones(ROWS, 1))

    return step


def fires():
    return predicted_by(Whole())


def looks_alike():
    """What is needed of each batch is a number."""
    return predicted_by(Counted())


def test_the_step_is_to_return_less(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "returned-predictions"
    assert found.bytes_per_step == ROWS * CLASSES * 4
    assert (first.fix, first.code) == ("reduce_predictions", "return batch.repeat(1, CLASSES)")


JOINED = """
import torch

def nearest(embeddings):
    return (embeddings @ embeddings.T).topk(2).indices

def main(trainer, model, data):
    return nearest(torch.cat(trainer.predict(model, data)))
"""


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        (JOINED, True),
        (
            JOINED.replace("return nearest(", "return ").replace("data)))", "data)).argmax(1)"),
            False,
        ),
        (JOINED.replace("nearest(torch.cat(", "len(").replace("data)))", "data))"), False),
    ],
)
def test_results_that_are_joined_and_not_only_reduced_are_needed(text, joined, tmp_path):
    path = tmp_path / "job.py"
    path.write_text(text)
    assert are_results_joined(program_of(str(path)), "predict") is joined
