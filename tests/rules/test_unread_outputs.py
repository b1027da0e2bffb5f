"""unread-outputs: a model is asked for what it computes on the way, and nothing reads that."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from memprof.rules.waste.unread_outputs import unread_flag
from memprof.source_code.program import source_of
from tests.rules.recorded import findings_of, names

ROWS, WIDTH, DEPTH = 256, 64, 8
LAYERED = Path(__file__).with_name("site-packages") / "layered/__init__.py"


def stack_of_layers():
    spec = importlib.util.spec_from_file_location("layered", LAYERED)
    layered = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layered)
    return layered.Stack(WIDTH, DEPTH).eval()


def fires():
    model = stack_of_layers()

    @torch.no_grad()
    def step(number):
        output = model(torch.ones(ROWS, WIDTH), output_hidden_states=True)
        return output.last.sum().item()

    return step


def looks_alike():
    model = stack_of_layers()

    @torch.no_grad()
    def step(number):
        output = model(torch.ones(ROWS, WIDTH), output_hidden_states=False)
        return output.last.sum().item()

    return step


def learns():
    """Autograd saves the same results for its backward pass."""
    model = stack_of_layers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(number):
        output = model(torch.ones(ROWS, WIDTH), output_hidden_states=True)
        optimizer.zero_grad()
        output.last.mean().backward()
        optimizer.step()

    return step


def test_what_autograd_saves_is_there_without_being_asked_for(tmp_path):
    assert "unread-outputs" not in names(learns, tmp_path / "run.json")


def test_the_call_is_to_ask_for_none(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json")
    (remedy,) = found.remedies
    assert found.rule == "unread-outputs"
    assert found.bytes == DEPTH * ROWS * WIDTH * 4
    assert remedy.fix == "drop_outputs"
    assert remedy.code == ("output = model(torch.ones(ROWS, WIDTH), output_hidden_states=True)")
    assert remedy.saves_bytes > (DEPTH // 2) * ROWS * WIDTH * 4


@pytest.mark.parametrize(
    ("code", "flag"),
    [
        ("out = model(x, output_hidden_states=True)\ny = out.logits", "output_hidden_states"),
        ("out = model(x, output_attentions=True)\ny = out[0]", "output_attentions"),
        ("out = model(x, output_attentions=True)\ny = out.hidden_states", "output_attentions"),
        ("out = model(x, output_hidden_states=True)\ny = out.hidden_states[-1]", ""),
        ("out = model(x, output_hidden_states=True)\ny = out['hidden_states']", ""),
        ("out = model(x, output_hidden_states=True)\ny = out[2]", ""),
        ("out = model(x, output_hidden_states=True)\ny = out[-1]", ""),
        ("out = model(x, output_hidden_states=True)\ny = out[1:]", ""),
        ("gains = []\nout = model(x, output_attentions=True)\ny = gains[-1]", "output_attentions"),
        ("a, b = model(x, output_hidden_states=True)", ""),
        ("out = model(x, output_hidden_states=True)\ny = out.to_tuple()", ""),
        ("out = model(x, output_hidden_states=deep)\ny = out.logits", ""),
        ("out = model(x)\ny = out.logits", ""),
    ],
)
def test_what_the_program_may_read_is_asked_for(code, flag, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(code)
    program = source_of(str(path))
    line = next(n for n, text in enumerate(code.splitlines(), 1) if "model(" in text)
    assert unread_flag(program.at(line), [program]) == flag
