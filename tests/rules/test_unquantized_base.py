"""unquantized-base: PEFT's preparation of quantized models has made weights float32."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import torch
from torch import nn

from tests.rules.recorded import findings_of, names

WIDTH, LAYERS = 128, 8
PREPARES = """\
import torch

def prepare_model_for_kbit_training(model):
    for param in model.parameters():
        param.requires_grad = False
    for param in model.parameters():
        if param.dtype == torch.bfloat16:
            param.data = param.data.to(torch.float32)
    return model
"""
FOLDER = tempfile.TemporaryDirectory()
NUMBERS = itertools.count()


def peft():
    """The function as PEFT has it, in a file of that place."""
    path = Path(FOLDER.name) / f"site-packages{next(NUMBERS)}" / "peft" / "utils" / "other.py"
    path.parent.mkdir(parents=True)
    path.write_text(PREPARES)
    namespace = {}
    exec(compile(PREPARES, str(path), "exec"), namespace)
    return namespace["prepare_model_for_kbit_training"]


class Model(nn.Module):
    """Layers of one type, and a norm of another."""

    def __init__(self, dtype, of_norm):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(WIDTH, WIDTH, bias=False, dtype=dtype) for _ in range(LAYERS))
        )
        self.norm = nn.LayerNorm(WIDTH, dtype=of_norm)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.norm(self.layers(x)).float())


def trained(dtype, of_norm):
    prepare_model_for_kbit_training = peft()
    model = Model(dtype, of_norm)
    model = prepare_model_for_kbit_training(model)
    model.head.requires_grad_(True)
    optimizer = torch.optim.SGD(model.head.parameters())

    def step(number):
        model(torch.rand(2, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    """The whole model was bfloat16."""
    return trained(torch.bfloat16, torch.bfloat16)


def looks_alike():
    """Only a norm was: the layers stand for what is quantized."""
    return trained(torch.float32, torch.bfloat16)


def test_the_preparation_is_to_be_left_out(tmp_path):
    found = findings_of(fires, tmp_path / "run.json", steps=16)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("unquantized-base", "keep_dtype")
    widened = (LAYERS * WIDTH * WIDTH + 2 * WIDTH) * 4
    assert found.bytes == widened
    # half of a norm's 512 bytes takes as large a block
    assert first.peak_before - first.peak_after == LAYERS * WIDTH * WIDTH * 4 // 2
    assert first.code == "model = prepare_model_for_kbit_training(model)"


def test_a_norm_beside_quantized_layers_is_meant(tmp_path):
    assert "unquantized-base" not in names(looks_alike, tmp_path / "run.json")
