"""collected-predictions: a framework's evaluation keeps what the model returned for every batch."""

from __future__ import annotations

import torch
from torch import nn

import memprof
from memprof.loading import load
from memprof.rules.ranked_findings import findings
from memprof.rules.unexplained_growth import unexplained_growth
from memprof.views.examination import examine
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


class Trainer:
    """Stands for the class that a program imports; what it runs is the library's."""

    def __init__(self, model):
        self.run = trainer(model).evaluation_loop


class Ours(Trainer):
    """A class of the program's own."""


def built(kind):
    def program():
        ours = kind(nn.Linear(32, 4096))

        def step(number):
            ours.run(torch.randn(16, 32) for _ in range(8)).sum().item()

        return step

    return program


def called():
    return Trainer(nn.Linear(32, 4096))


def test_what_is_typed_goes_where_the_trainer_is_made(tmp_path):
    found = findings_of(built(Ours), tmp_path / "run.json")[0]
    (remedy, *_) = found.remedies
    assert remedy.typed == "Trainer(…, preprocess_logits_for_metrics=…)"
    assert remedy.code == "return Trainer(nn.Linear(32, 4096))"


def test_an_evaluation_that_is_not_over_is_no_growth_that_nothing_explains(tmp_path):
    """Every step of the recording is a batch of it."""
    path = tmp_path / "run.json"
    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:

        def batches():
            for _ in range(40):
                yield torch.randn(16, 32)
                tracker.step()

        results = trainer(nn.Linear(32, 4096)).evaluation_loop(batches())
        assert results.shape == (40 * 16, 4096)
    run = load(path)
    (first, *_) = found = findings(run)
    assert (first.rule, first.minor) == ("collected-predictions", False)
    assert unexplained_growth(examine(run), found) is None
    others = [one for one in found if one.rule != "collected-predictions"]
    assert unexplained_growth(examine(run), others).bytes == 36 * 16 * 4096 * 4
