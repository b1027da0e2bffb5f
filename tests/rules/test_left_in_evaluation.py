"""idle-checkpointing: a function puts the model in evaluation mode, and does not put it back."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.checkpointing_models import ROWS, WIDTH, Model
from tests.rules.recorded import findings_of


@torch.no_grad()
def measure(model):
    model.eval()
    return model(torch.randn(ROWS, WIDTH)).square().mean().item()


def checkpointed():
    model = Model()
    model.gradient_checkpointing_enable()
    return model.train()


def measured_first():
    model = checkpointed()

    def step(number):
        if number == 0:
            measure(model)
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


def test_the_line_that_switches_is_named(tmp_path):
    found = next(
        one
        for one in findings_of(measured_first, tmp_path / "run.json")
        if one.rule == "idle-checkpointing"
    )
    (first,) = found.remedies
    assert (first.code, first.typed) == ("model.eval()", "model.train()")
    assert "puts it in that, and its function does not put it back" in first.why


def measured_after_some_steps():
    """Until then blocks were computed again."""
    model = checkpointed()

    def step(number):
        if number == 4:
            measure(model)
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


def test_steps_that_came_before_the_switch_do_not_count(tmp_path):
    found = next(
        one
        for one in findings_of(measured_after_some_steps, tmp_path / "run.json")
        if one.rule == "idle-checkpointing"
    )
    assert found.remedies[0].code == "model.eval()"


def with_a_teacher():
    """Another model is in evaluation mode, as it should be."""
    model, teacher = checkpointed(), nn.Linear(WIDTH, WIDTH)
    model.training = False

    def step(number):
        if number == 0:
            prepare(teacher)
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


@torch.no_grad()
def prepare(teacher):
    teacher.eval()
    teacher(torch.ones(ROWS, WIDTH))


def test_another_model_that_is_evaluated_is_not_blamed(tmp_path):
    found = next(
        one
        for one in findings_of(with_a_teacher, tmp_path / "run.json")
        if one.rule == "idle-checkpointing"
    )
    assert found.remedies[0].code == "model.gradient_checkpointing_enable()"
