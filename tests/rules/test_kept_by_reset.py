"""collecting-object: an argument has `reset` keep what grows, features that a module computes."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, images):
        return self.layer(images).relu()


def test_the_argument_that_has_reset_keep_it_is_named(tmp_path, library):
    def program():
        distance = library("scores").Distance(
            Features().requires_grad_(False), reset_real_features=False
        )

        def step(number):
            distance.reset()
            distance.update(torch.rand(WIDTH, WIDTH))

        return step

    (found,) = findings_of(program, tmp_path / "run.json")
    first = found.remedies[0]
    # the features were not returned by a function to the library alone: it asked a module for them
    assert (found.rule, first.fix) == ("collecting-object", "clear_container")
    assert first.code.startswith("distance = library(")
    assert "`reset_real_features=False` has `reset()` leave `real_features`" in first.why
    assert found.bytes_per_step == WIDTH * WIDTH * 4
