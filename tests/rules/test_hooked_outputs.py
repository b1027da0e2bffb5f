"""hooked-outputs: forward hooks keep what modules return, and little of it is read."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of

ROWS, WIDTH, LAYERS = 512, 128, 8
RESULT = ROWS * WIDTH * 4


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Tap:
    """Hands out what some modules of a frozen model return; its hook is on all of them."""

    def __init__(self, model, wanted=("blocks.2", "blocks.5")):
        self.model, self.wanted, self.features = model, wanted, {}
        for name, module in dict(model.named_modules()).items():
            if name:
                module.register_forward_hook(partial(self._save, name))

    def _save(self, name, module, inputs, output):
        self.features[name] = output

    @torch.no_grad()
    def __call__(self, x):
        self.features.clear()
        self.model(x)
        return [self.features[name] for name in self.wanted]


class ChosenTap:
    """The hook is on what is read alone."""

    def __init__(self, model, wanted=("blocks.2", "blocks.5")):
        self.model, self.wanted, self.chosen = model, wanted, {}
        for name, module in model.named_modules():
            if name in wanted:
                module.register_forward_hook(partial(self._keep, name))

    def _keep(self, name, module, inputs, output):
        self.chosen[name] = output

    @torch.no_grad()
    def __call__(self, x):
        self.chosen.clear()
        self.model(x)
        return [self.chosen[name] for name in self.wanted]


def learning_from(tap_of):
    tap, student = tap_of(Stack()), nn.Linear(WIDTH, WIDTH)

    def step(number):
        x = torch.randn(ROWS, WIDTH)
        made = student(x)
        sum((made - one).square().mean() for one in tap(x)).backward()
        student.zero_grad()

    return step


def fires():
    return learning_from(Tap)


def looks_alike():
    return learning_from(ChosenTap)


class Statistics:
    """Keeps a copy of what each layer returns, for two numbers that are printed now and then."""

    def __init__(self, model):
        self.copies = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(self._hook(name))

    def _hook(self, name):
        def keep(module, inputs, output):
            self.copies[name] = output.detach().clone()

        return keep

    def summary(self):
        return {
            name: (copy.mean().item(), (copy <= 0).float().mean().item())
            for name, copy in self.copies.items()
        }


class Numbers:
    """The same numbers, computed in the hook."""

    def __init__(self, model):
        self.numbers = {}
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(partial(self._count, name))

    def _count(self, name, module, inputs, output):
        values = output.detach()
        self.numbers[name] = values.mean().item(), (values <= 0).float().mean().item()

    def summary(self):
        return dict(self.numbers)


def measured(kind):
    def program():
        model = Stack()
        statistics = kind(model)

        def step(number):
            model(torch.randn(ROWS, WIDTH)).square().mean().backward()
            model.zero_grad()
            if number % 5 == 0:
                statistics.summary()

        return step

    return program


def hooked(program, path):
    return [one for one in findings_of(program, path) if one.rule == "hooked-outputs"]


def test_outputs_that_no_key_names_are_told_at_the_registration(tmp_path):
    (found,) = hooked(fires, tmp_path / "run.json")
    (first,) = found.remedies
    assert not found.minor
    assert found.bytes == (LAYERS - 2) * RESULT
    assert first.fix == "drop_outputs"
    assert first.code == "module.register_forward_hook(partial(self._save, name))"
    assert "register it on the modules that are read (`blocks.2`, `blocks.5`) alone" in first.why
    findings_of(looks_alike, tmp_path / "chosen.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "chosen.json")
    assert first.saves_bytes == pytest.approx(saved, rel=0.1)


def test_a_hook_on_what_is_read_is_left_alone(tmp_path):
    assert "hooked-outputs" not in names(looks_alike, tmp_path / "run.json")


def test_copies_of_which_numbers_are_computed_are_to_be_reduced_in_the_hook(tmp_path):
    (found,) = hooked(measured(Statistics), tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.minor, found.bytes) == (False, LAYERS * RESULT)
    assert (first.fix, first.saves_bytes) == ("reduce_predictions", found.bytes)
    assert first.code == "self.copies[name] = output.detach().clone()"
    assert "compute that in the hook, and keep the numbers" in first.why


def test_numbers_of_a_hook_are_left_alone(tmp_path):
    assert "hooked-outputs" not in names(measured(Numbers), tmp_path / "run.json")
