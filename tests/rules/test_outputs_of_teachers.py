"""unread-outputs: a text in JSON has a teacher return all layers, beside a student's graph."""

from __future__ import annotations

import json

import torch
from torch import nn

from tests.rules.layered_models import DEPTH, ROWS, WIDTH, stack_of_layers
from tests.rules.recorded import findings_of

SETTINGS = json.loads("""
{
  "width": 8,
  "output_hidden_states": true
}
""")


def distilled():
    teacher = stack_of_layers()
    student = nn.Linear(WIDTH, WIDTH)

    def step(number):
        x = torch.ones(ROWS, WIDTH)
        with torch.no_grad():
            target = teacher(x, **asked())
        student.zero_grad()
        (student(x) - target.last).square().mean().backward()

    return step


def asked():
    return {name: value for name, value in SETTINGS.items() if name != "width"}


def test_the_line_of_the_text_is_told(tmp_path):
    found, *_ = findings_of(distilled, tmp_path / "run.json")
    (remedy,) = found.remedies
    assert (found.rule, remedy.fix) == ("unread-outputs", "drop_outputs")
    assert found.title.endswith(
        "are hidden states of all layers, which a call asks for and nothing reads"
    )
    assert remedy.code == '"output_hidden_states": true'
    assert found.bytes >= (DEPTH - 1) * ROWS * WIDTH * 4
