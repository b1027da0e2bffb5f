"""no-backward: graphs are built and kept where nothing ever runs a backward pass."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


def job():
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


def fires():
    model, scores = job(), []

    def step(number):
        scores.append(model(torch.randn(64, 64)).square().mean())

    return step


def looks_alike():
    """The same in a job that trains: the graph may be wanted."""
    model, scores = job(), []

    def step(number):
        model(torch.randn(64, 64)).square().mean().backward()
        model.zero_grad()
        scores.append(model(torch.randn(64, 64)).square().mean())

    return step


def samples_after_training():
    """A few steps of training, and then samples that are drawn one from the other."""
    model, images = job(), [torch.randn(64, 64)]

    def step(number):
        if number < 4:
            model(torch.randn(64, 64)).square().mean().backward()
            model.zero_grad()
        else:
            images.append(model(images[-1]))

    return step


def test_a_backward_pass_that_was_over_before_is_none_of_the_samples(tmp_path):
    (first, *_) = findings_of(samples_after_training, tmp_path / "run.json", 24)
    (remedy,) = (one for one in first.remedies if one.rule == "no-backward")
    assert (remedy.fix, remedy.code) == ("no_grad", "images.append(model(images[-1]))")
