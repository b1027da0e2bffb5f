"""collecting-object: an object of a library collects what it is called with or given."""

from __future__ import annotations

import contextlib
import importlib.util
import sched
from pathlib import Path
from types import SimpleNamespace

import torch

from tests.rules.recorded import findings_of, findings_of_fork

WIDTH = 64
VARIATIONAL = Path(__file__).with_name("site-packages") / "variational/__init__.py"


def fires():
    """Work that is put off by an hour, in each step more of it."""
    later = sched.scheduler()

    def step(number):
        batch = torch.zeros(WIDTH, WIDTH)
        later.enter(3600, 1, print, (batch,))

    return step


def looks_alike():
    """Work that is put off until the end of the step, and a list of the program's own."""
    later, results = sched.scheduler(), []

    def step(number):
        batch = torch.zeros(WIDTH, WIDTH)
        later.enter(0, 1, results.append, (batch,))
        later.run(blocking=False)

    return step


def test_the_call_that_hands_it_over_is_named(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    (remedy,) = (one for one in found.remedies if one.rule == "collecting-object")
    assert remedy.fix == "clear_container"
    assert remedy.code == "later.enter(3600, 1, print, (batch,))"


def given_a_name():
    """What is handed over is made by the statement before."""
    later = sched.scheduler()
    job = SimpleNamespace(later=later)

    def step(number):
        batch, count = torch.zeros(WIDTH, WIDTH), 1
        job.later.enter(3600, count, print, batch)

    return step


def test_the_call_beside_the_line_that_makes_it_is_named(tmp_path):
    (found,) = findings_of(given_a_name, tmp_path / "run.json")
    (remedy, *_) = (one for one in found.remedies if one.rule == "collecting-object")
    assert remedy.code == "job.later.enter(3600, count, print, batch)"


def under_a_key():
    """A library's object keeps what it is given under a key, by the names of its parameters."""
    code = (
        "class Trial:\n"
        "    def __init__(self):\n        self._attrs = {}\n"
        "    def set_attr(self, key, value):\n        self._attrs[key] = value\n"
        "class Study:\n"
        "    def __init__(self):\n        self._trials = []\n"
        "    def ask(self):\n"
        "        self._trials.append(Trial())\n"
        "        return self._trials[-1]\n"
    )
    namespace: dict[str, object] = {}
    exec(compile(code, "/x/site-packages/library/study.py", "exec"), namespace)
    study = namespace["Study"]()

    def step(number):
        result = torch.zeros(WIDTH, WIDTH)
        trial = study.ask()
        trial.set_attr(key="result", value=result)

    return step


def test_what_is_kept_under_a_key_is_handed_over_by_position_or_by_name(tmp_path):
    (found,) = findings_of(under_a_key, tmp_path / "run.json")
    assert found.remedies[0].code == 'trial.set_attr(key="result", value=result)'


class Graph:
    """Fills an attribute of its own, which has the name of the metric's list."""

    def __init__(self, edges):
        self.target = torch.zeros(len(edges), len(edges))
        self.target[edges[:, 0], edges[:, 1]] = 1


class Tagger:
    """A program's own object with a library's metric, which is given what a loader made."""

    def __init__(self, metric):
        self.precision = metric

    def training_step(self, batch):
        probabilities = batch.float().mean()
        self.precision.update(batch)
        return float(probabilities) + self.precision.compute()


def test_what_hands_things_to_a_metric_is_the_line_that_should_empty_it(tmp_path, library):
    def program():
        tagger = Tagger(library("scores").AveragePrecision())

        def step(number):
            tagger.training_step(torch.zeros(WIDTH, WIDTH))

        return step

    (found,) = findings_of(program, tmp_path / "run.json")
    (remedy,) = (one for one in found.remedies if one.rule == "collecting-object")
    assert (remedy.fix, remedy.code) == ("clear_container", "self.precision.update(batch)")
    assert "`self.precision.reset()`" in remedy.why


def test_two_lists_of_one_metric_are_one_finding(tmp_path, library):
    def program():
        job = SimpleNamespace(correlation=library("scores").Correlation())

        def step(number):
            preds = torch.zeros(WIDTH, WIDTH)
            target = torch.zeros(WIDTH, 2 * WIDTH)
            job.correlation.update(preds, target)

        return step

    (found,) = findings_of(program, tmp_path / "run.json")
    assert found.bytes_per_step == 3 * WIDTH * WIDTH * 4
    (remedy,) = (one for one in found.remedies if one.rule == "collecting-object")
    assert remedy.code == "job.correlation.update(preds, target)"
    assert "`job.correlation.reset()`" in remedy.why


def a_guide_of_ever_new_parameters():
    """A library that gives each parameter an optimizer; a guide makes new ones in every step."""
    spec = importlib.util.spec_from_file_location("variational", VARIATIONAL)
    variational = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(variational)
    optimizers = variational.Optimizers()
    inference = variational.Inference(
        lambda number: [torch.nn.Parameter(torch.ones(WIDTH, WIDTH))], optimizers
    )

    def step(number):
        inference.step(number)

    return step


def test_a_container_that_looks_saw_grow_is_named_with_the_line_that_runs(tmp_path):
    found = findings_of_fork(a_guide_of_ever_new_parameters, tmp_path / "run.json")
    remedies = [remedy for one in found for remedy in one.remedies]
    remedy = next(one for one in remedies if "becomes longer as line" in one.why)
    assert (remedy.rule, remedy.fix) == ("collecting-object", "clear_container")
    assert remedy.code == "inference.step(number)"
    assert remedy.why.startswith("`optimizers.of_parameter` (")


def test_what_a_metric_keeps_with_its_graph_is_to_be_detached(tmp_path, library):
    def program():
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        job = SimpleNamespace(correlation=library("scores").Correlation())

        def step(number):
            preds = model(torch.zeros(WIDTH, WIDTH)).mean()
            job.correlation.update(preds, number)
            if number == 99:  # when the epoch is over
                job.correlation.reset()

        return step

    (found,) = findings_of(program, tmp_path / "run.json")
    first, second = (one for one in found.remedies if one.rule == "collecting-object")
    assert (first.fix, first.code) == ("detach", "job.correlation.update(preds, number)")
    assert second.fix == "clear_container"
    assert found.remedies[0].fix == "no_grad"  # nothing here learns
    assert first is found.remedies[1]


class Scratch:
    def __init__(self):
        self.stack = contextlib.ExitStack()

    def borrow(self, buffer):
        self.stack.callback(buffer.zero_)
        return buffer


def callbacks_of_a_stack():
    scratch = Scratch()

    return lambda number: scratch.borrow(torch.ones(WIDTH, WIDTH)).sum()


def test_what_a_wrapper_is_to_call_is_no_forgotten_call(tmp_path):
    found, *_ = findings_of(callbacks_of_a_stack, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "collecting-object"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == ("clear_container", "self.stack.callback(buffer.zero_)")
    assert "call `self.stack.close()` or `self.stack.pop_all()` now and then" in first.why


class Fit:
    def __init__(self, tracker):
        self.tracker = tracker

    def epoch(self):
        self.tracker.train()
        self.tracker.increment()
        for _ in range(4):
            self.tracker.update(torch.zeros(WIDTH, WIDTH))


def test_a_copy_for_each_epoch_is_told_by_the_call_that_makes_it(tmp_path, library):
    def program():
        scores = library("scores")
        fit = Fit(scores.Tracker(scores.Values()))

        def step(number):
            fit.epoch()

        return step

    (found,) = findings_of(program, tmp_path / "run.json")
    first = found.remedies[0]
    assert (first.rule, first.fix) == ("collecting-object", "clear_container")
    assert first.code == "self.tracker.increment()"
