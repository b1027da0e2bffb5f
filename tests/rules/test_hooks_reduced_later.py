"""hooked-outputs: what a hook keeps of each layer until a pass is over is only reduced then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, peak_of

ROWS, WIDTH, LAYERS = 1024, 128, 8
RESULT = ROWS * WIDTH * 4


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Calibrator:
    """Ranges of what each layer returns."""

    def __init__(self, model):
        self.model, self.outputs, self.ranges = model, {}, {}
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(self._hook(name))

    def _hook(self, name):
        def hook(module, args, output):
            self.outputs[name] = output.detach()

        return hook

    @torch.inference_mode()
    def observe(self, x):
        self.model(x)
        for name, out in self.outputs.items():
            self.ranges[name] = out.min().item(), out.max().item()
        self.outputs.clear()


class RangesAtOnce:
    """The same numbers, as each layer returns."""

    def __init__(self, model):
        self.model, self.ranges = model, {}
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(self._note(name))

    def _note(self, name):
        def hook(module, args, output):
            self._widen(name, output.min().item(), output.max().item())

        return hook

    def _widen(self, name, low, high):
        self.ranges[name] = low, high

    @torch.inference_mode()
    def observe(self, x):
        self.model(x)


def calibrating(kind):
    def program():
        calibrator = kind(Stack())
        return lambda number: calibrator.observe(torch.randn(ROWS, WIDTH))

    return program


def test_the_saving_is_what_numbers_in_the_hook_take_off_the_peak(tmp_path):
    (found,) = [
        one
        for one in findings_of(calibrating(Calibrator), tmp_path / "run.json")
        if one.rule == "hooked-outputs"
    ]
    (first,) = found.remedies
    assert found.bytes == LAYERS * RESULT
    assert (first.fix, first.code) == ("reduce_predictions", "self.outputs[name] = output.detach()")
    assert "are what modules return, of which only `out.max()`, `out.min()` are read" in found.title
    other = findings_of(calibrating(RangesAtOnce), tmp_path / "other.json")
    assert "hooked-outputs" not in [one.rule for one in other]
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "other.json")
    assert first.saves_bytes == pytest.approx(saved, rel=0.1)
