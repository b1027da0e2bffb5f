"""idle-checkpointing: activation checkpointing is turned on, and no block is computed again."""

from __future__ import annotations

import torch

from tests.rules.checkpointing_models import ROWS, WIDTH, Model
from tests.rules.recorded import findings_of


def learning(model):
    """What a step of a model is; ``model`` makes it."""

    def program():
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step(number):
            net(torch.randn(ROWS, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


def tuned(is_training):
    model = Model()
    model.gradient_checkpointing_enable()
    model.training = is_training
    return model


fires = learning(lambda: tuned(is_training=False))
looks_alike = learning(lambda: tuned(is_training=True))
"""Here blocks are computed again."""


def test_it_is_told_where_it_is_turned_on(tmp_path):
    found = next(
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "idle-checkpointing"
    )
    (first,) = found.remedies
    assert not found.minor
    assert "checkpointing is turned on, and recomputes none" in found.title
    assert (first.fix, first.code) == ("checkpoint", "model.gradient_checkpointing_enable()")
    assert first.why.endswith("Call `model.train()` before the loop.")
    assert 0 < first.saves_bytes < found.bytes


def adding_up():
    """Each step has two passes, with a backward pass each, before the optimizer's."""
    net = tuned(is_training=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(number):
        for _ in range(2):
            net(torch.randn(ROWS, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_each_of_several_passes_of_a_step_is_saved(tmp_path):
    one, two = (
        next(
            found
            for found in findings_of(program, tmp_path / f"{program.__name__}.json")
            if found.rule == "idle-checkpointing"
        )
        for program in (fires, adding_up)
    )
    saved, of_one = two.remedies[0].saves_bytes, one.remedies[0].saves_bytes
    assert not two.minor
    assert of_one * 0.9 < saved <= of_one


@torch.no_grad()
def measure(model):
    model.eval()
    return model(torch.randn(ROWS, WIDTH)).square().mean().item()


def measured_first():
    """Models are made in training mode, and the first measurement ends that for good."""
    model = tuned(is_training=True)

    def step(number):
        if number == 0:
            measure(model)
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


def test_a_line_that_switches_is_named_though_nothing_switches_back(tmp_path):
    every = findings_of(measured_first, tmp_path / "run.json")
    (first,) = next(one for one in every if one.rule == "idle-checkpointing").remedies
    assert (first.code, first.typed) == ("model.eval()", "model.train()")
    assert first.why.endswith("Call `model.train()` there, and before the loop.")
