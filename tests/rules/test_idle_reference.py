"""idle-model: an object keeps a model that was called before the training alone."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

import memprof
from tests.rules.recorded import findings_of, names

WIDTH = 256


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))

    def forward(self, x):
        return self.layers(x)


class Reference(Policy):
    """Another model, of a name of its own."""


class Preference:
    """Computes what the reference says of all data at first, where it is asked to."""

    def __init__(self, model, reference, *, precompute):
        self.model = model
        self.reference = reference
        self.x = torch.randn(32, WIDTH)
        self.known = None
        if precompute:
            self.precompute()

    @torch.no_grad()
    def precompute(self):
        self.known = self.reference(self.x)

    def reference_of(self, x):
        if self.known is not None:
            return self.known
        with torch.no_grad():
            return self.reference(x)

    def train(self, steps=16):
        optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        for _ in range(steps):
            (self.model(self.x) - self.reference_of(self.x)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            memprof.step()


def build(kind):
    return kind()


def run(*, precompute):
    def program():
        def job(number):
            if number == 0:
                reference = build(Reference)
                Preference(build(Policy), reference, precompute=precompute).train()

        return job

    return program


def test_whatever_the_source_says_it_was_called_no_more(tmp_path):
    (found,) = [
        one
        for one in findings_of(run(precompute=True), tmp_path / "run.json", is_over=True)
        if one.rule == "idle-model"
    ]
    (first,) = found.remedies
    assert found.bytes >= 6 * WIDTH * WIDTH * 4
    assert first.code == "self.reference = reference"
    assert first.typed == "self.reference = None"
    line = Preference.precompute.__wrapped__.__code__.co_firstlineno + 2
    assert f"since line {line} did last" in first.why


def test_a_reference_that_each_step_calls_is_needed(tmp_path):
    found = findings_of(run(precompute=False), tmp_path / "run.json", is_over=True)
    assert "idle-model" not in [one.rule for one in found]


def test_where_only_a_block_was_recorded_it_may_be_called_later(tmp_path):
    assert "idle-model" not in names(run(precompute=True), tmp_path / "run.json")


def test_a_program_that_failed_may_have_called_it_later(tmp_path, monkeypatch):
    end = memprof.Tracker.stop
    failed = partial(end, status="RuntimeError: no")
    monkeypatch.setattr(memprof.Tracker, "stop", lambda self, *_, **given: failed(self, **given))
    found = findings_of(run(precompute=True), tmp_path / "run.json", is_over=True)
    assert "idle-model" not in [one.rule for one in found]
