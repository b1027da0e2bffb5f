"""collecting-object: a curve of torchmetrics keeps all values, unless it has thresholds."""

from __future__ import annotations

import pytest
import torch

from tests.rules.recorded import findings_of

WIDTH = 64


def exact():
    """What the program makes: it is only read here."""
    from torchmetrics.classification import BinaryAccuracy, BinaryAveragePrecision, BinaryROC

    return {
        "accuracy": BinaryAccuracy(),
        "roc": BinaryROC(thresholds=50),
        "precision": BinaryAveragePrecision(),
    }


class Evaluation:
    """Gives a metric the values of each batch."""

    def __init__(self, metric):
        self.metric = metric

    def add(self, target):
        self.metric.update(target)

    def end(self):
        self.metric.reset()


@pytest.fixture
def remedies(tmp_path, library):
    """Of what a metric collects in its list ``target``, or in one of another name."""

    def of(name):
        def program():
            scores = library("scores")
            metric = scores.AveragePrecision() if name == "target" else scores.History()
            metric.update = getattr(metric, "update", None) or (lambda one: metric.log({"v": one}))
            evaluation = Evaluation(metric)

            def step(number):
                evaluation.add(torch.zeros(WIDTH, WIDTH))

            return step

        (found,) = findings_of(program, tmp_path / "run.json")
        return found.remedies

    return of


def test_it_is_told_to_count_between_thresholds_where_it_is_made(remedies):
    first, second, *_ = remedies("target")
    assert (first.fix, first.code) == ("thresholds", '"precision": BinaryAveragePrecision(),')
    assert first.typed == "BinaryAveragePrecision(…, thresholds=200)"
    assert second.fix == "clear_container"


def test_what_other_lists_keep_is_no_curves(remedies):
    assert "thresholds" not in [one.fix for one in remedies("logged_values")]
