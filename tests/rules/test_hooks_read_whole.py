"""hooked-outputs: what a hook keeps of every module is needed where all of it is compared."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from tests.rules.recorded import names

ROWS, WIDTH, LAYERS = 512, 128, 8


class WholeTap:
    def __init__(self, model):
        self.model, self.every = model, {}
        for name, module in model.named_modules():
            if name:
                module.register_forward_hook(partial(self._put, name))

    def _put(self, name, module, inputs, output):
        self.every[name] = output

    @torch.no_grad()
    def __call__(self, x):
        self.every.clear()
        self.model(x)
        return list(self.every.values())


def learning():
    tap = WholeTap(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))))
    student = nn.Linear(WIDTH, WIDTH)

    def step(number):
        x = torch.randn(ROWS, WIDTH)
        made = student(x)
        sum((made - one).square().mean() for one in tap(x)).backward()
        student.zero_grad()

    return step


def test_a_hook_whose_outputs_are_all_compared_is_left_alone(tmp_path):
    assert "hooked-outputs" not in names(learning, tmp_path / "run.json")
