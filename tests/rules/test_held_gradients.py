"""held-gradients: gradients that are done with are there while a forward pass runs."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import memprof
from memprof.loading import load
from memprof.rules.ranked_findings import findings
from tests import forks
from tests.rules.recorded import findings_of


def job():
    """A model whose gradients and activations are of about the same size."""
    model = nn.Sequential(*(nn.Linear(192, 192) for _ in range(4)))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def fires():
    model, optimizer = job()

    def step(number):
        loss = model(torch.randn(128, 192)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def looks_alike():
    """Gradients of two batches are accumulated: those of the first must be there in the second."""
    model, optimizer = job()

    def step(number):
        model(torch.randn(128, 192)).square().mean().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()

    return step


def test_what_it_saves_are_the_gradients_of_the_model(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    assert found.bytes == 4 * (192 * 192 * 4 + 1024)  # a bias takes two blocks of 512 bytes
    assert "gradients of the step before" in found.title
    assert found.remedies[0].fix == "set_to_none"
    assert found.remedies[0].code == "optimizer.zero_grad()"
    assert not found.match.tentative


class Job:
    """A test after each step, and the gradients go as the next step begins."""

    def __init__(self, *, is_early=False):
        self.model, self.optimizer = job()
        self.is_early = is_early

    def train(self):
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(32, 192)).square().mean()
        loss.backward()
        self.optimizer.step()
        if self.is_early:
            self.optimizer.zero_grad()

    @torch.no_grad()
    def validate(self):
        self.model(torch.randn(1024, 192)).square().mean().item()


def counted_by_the_optimizer(path, *, is_early):
    """With the optimizer's step a step is over: the test counts to the next one."""
    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        one = Job(is_early=is_early)
        for _ in range(16):
            one.train()
            tracker.step()
            one.validate()
    return findings(load(path))


def test_gradients_that_a_test_between_two_steps_runs_beside_are_done_with(tmp_path):
    (found,) = [
        one
        for one in counted_by_the_optimizer(tmp_path / "run.json", is_early=False)
        if one.rule == "held-gradients"
    ]
    assert "gradients that the step is done with, there while another forward" in found.title
    assert found.bytes == 4 * (192 * 192 * 4 + 1024)
    assert found.remedies[0].saves_bytes == found.bytes
    assert (found.remedies[0].fix, found.remedies[0].code) == (
        "set_to_none",
        "self.optimizer.zero_grad()",
    )


def test_gradients_that_go_right_after_the_step_are_in_no_way_of_a_test(tmp_path):
    every = counted_by_the_optimizer(tmp_path / "run.json", is_early=True)
    assert "held-gradients" not in [one.rule for one in every]


JOB = """
import torch
from torch import nn


def descend(parameters):
    with torch.no_grad():
        for p in parameters:
            p.sub_(p.grad, alpha=0.1)
            BY_HAND


options = dict(set_to_none=False)
model = nn.Sequential(*(nn.Linear(192, 192) for _ in range(4)))
parameters = list(model.parameters())
for _ in range(16):
    model(torch.randn(128, 192)).square().mean().backward()
    descend(parameters)
    CLEAR
    TRACKER.step()
"""
"""A descent by hand, in a file of its own: what clears gradients is searched for in all of it."""


@pytest.mark.parametrize(
    ("clear", "typed"),
    [
        ("p.grad.zero_()", "p.grad = None"),
        ("p.grad.data.fill_(0)", "p.grad = None"),
        ("model.zero_grad(**options)", "optimizer.zero_grad(set_to_none=True)"),
        ("model.zero_grad(False)", "optimizer.zero_grad(set_to_none=True)"),
    ],
)
def test_the_line_that_fills_gradients_with_zeros_is_to_be_changed(clear, typed, tmp_path):
    script, path = tmp_path / "job.py", tmp_path / "run.json"
    is_by_hand = not clear.startswith("model")
    text = JOB.replace("BY_HAND", clear if is_by_hand else "pass")
    script.write_text(text.replace("CLEAR", "pass" if is_by_hand else clear))
    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        runpy.run_path(str(script), {"TRACKER": tracker})
    (found,) = [one for one in findings(load(path)) if one.rule == "held-gradients"]
    (first,) = found.remedies
    assert (first.fix, first.code, first.typed) == ("set_to_none", clear, typed)
    assert "fills them with zeros instead of dropping them" in first.why


FITTED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import fitter
from tests.rules.fitted import fitted_by
from tests.rules.recorded import record
record(lambda: fitted_by(fitter), Path(sys.argv[1]))
"""


def test_in_the_order_of_a_librarys_trainer_they_are_a_note(tmp_path):
    libraries = shutil.copytree(Path(__file__).parent / "site-packages", tmp_path / "site-packages")
    done = forks.run(FITTED, tmp_path / "run.json", libraries)
    assert done.returncode == 0, done.stderr
    found = findings(load(tmp_path / "run.json"))
    (one,) = [one for one in found if one.rule == "held-gradients"]
    assert (one.bytes, one.match.tentative) == (4 * (192 * 192 * 4 + 1024), True)
