"""collecting-object: a curve of torchmetrics keeps all values, unless it has thresholds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from memprof.reference_chain import Link, LinkKind
from memprof.rules.growth.collecting_object import Collector, curve_of
from memprof.source_code.program import program_of
from tests.rules.recorded import findings_of

WIDTH = 64
SCORED = "self.score = torch.zeros(WIDTH, WIDTH) + self.precision.compute()"


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
        value = self.metric.compute()
        self.metric.reset()
        return value


class OfBatches:
    """Wants the value of each batch, and never that of all."""

    def __init__(self, curve):
        self.curve = curve

    def add(self, target):
        self.curve.update(target)


class OfAll:
    """Wants the value of all batches so far, every four of them."""

    def __init__(self, precision):
        self.precision, self.batches = precision, 0

    def add(self, target):
        self.precision.update(target)
        self.batches += 1
        if self.batches % 4 == 0:
            self.score = torch.zeros(WIDTH, WIDTH) + self.precision.compute()


@pytest.fixture
def remedies(tmp_path, library):
    """Of what a metric collects in its list ``target``, or in one of another name."""

    def of(name, kind=Evaluation):
        def program():
            scores = library("scores")
            metric = scores.AveragePrecision() if name == "target" else scores.History()
            metric.update = getattr(metric, "update", None) or (lambda one: metric.log({"v": one}))
            evaluation = kind(metric)

            def step(number):
                evaluation.add(torch.zeros(WIDTH, WIDTH))

            return step

        found, *_ = findings_of(program, tmp_path / "run.json")
        return found.remedies

    return of


def test_it_is_told_to_be_reset_where_it_was_computed_and_goes_on_collecting(remedies):
    first, second, *_ = remedies("target", OfAll)
    assert (first.fix, first.code) == ("clear_container", SCORED)
    assert "call `self.precision.reset()` once this line has computed it" in first.why
    assert second.fix == "thresholds"


def test_it_is_told_to_count_between_thresholds_where_it_is_made(remedies):
    first, second, *_ = remedies("target")
    assert (first.fix, first.code) == ("thresholds", '"precision": BinaryAveragePrecision(),')
    assert first.typed == "BinaryAveragePrecision(…, thresholds=200)"
    assert second.fix == "clear_container"


def test_what_is_never_computed_of_all_batches_is_to_be_reset_first(remedies):
    first, second, *_ = remedies("target", OfBatches)
    assert (first.fix, second.fix) == ("clear_container", "thresholds")


def test_what_other_lists_keep_is_no_curves(remedies):
    assert "thresholds" not in [one.fix for one in remedies("logged_values")]


MAKING = """
from torchmetrics.classification import BinaryAUROC
from torchmetrics.retrieval import RetrievalPrecisionRecallCurve, RetrievalRecallAtFixedPrecision
from torchmetrics.detection import MeanAveragePrecision
from torchmetrics.regression import SpearmanCorrCoef
class Task:
    def __init__(self, new):
        {made}
"""


@pytest.mark.parametrize(
    ("made", "class_name", "expected"),
    [
        ("self.rank = BinaryAUROC()", "", True),  # the only one
        ("self.area = BinaryAUROC(); self.rank = SpearmanCorrCoef()", "", False),
        ("self.rank = BinaryAUROC(); self.other = SpearmanCorrCoef()", "", True),
        ("new({'rank': BinaryAUROC(), 'other': SpearmanCorrCoef()})", "", True),
        ("new({'other': BinaryAUROC(), 'rank': SpearmanCorrCoef()})", "", False),
        ("self.one, self.two = BinaryAUROC(), SpearmanCorrCoef()", "BinaryAUROC", True),
        ("self.one = BinaryAUROC()", "SpearmanCorrCoef", False),
        ("self.rank = RetrievalPrecisionRecallCurve()", "", False),
        ("self.rank = RetrievalRecallAtFixedPrecision(0.8)", "", False),
        ("self.rank = MeanAveragePrecision()", "", False),
    ],
)
def test_it_is_the_metric_that_grows(made, class_name, expected, tmp_path):
    source = tmp_path / "task.py"
    source.write_text(MAKING.format(made=made))
    links = (
        Link(LinkKind.ATTRIBUTE, "rank", "Task"),
        Link(LinkKind.ATTRIBUTE, "preds", class_name),
        Link(LinkKind.ITEM, "9", "list", length=9),
    )
    if not class_name:
        links = (Link(LinkKind.MODULE_ATTRIBUTE, "rank.preds", "Task"), links[-1])
    holder = SimpleNamespace(links=links)
    case = SimpleNamespace(
        programs=[program_of(str(source))], finding=SimpleNamespace(holders=[holder])
    )
    cause = Collector(None, owner="rank", container="preds", length=9)
    assert (curve_of(cause, case) is not None) is expected
