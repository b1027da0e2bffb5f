"""Whether what a call is given may have a graph, where it is computed of other values."""

from __future__ import annotations

import pytest

from memprof.source_code.given_data import is_given_data
from memprof.source_code.program import source_of
from memprof.trace import Frame

HEAD = """import torch
import torch.nn.functional as F
SIZE = 4
TWICE = 2 * SIZE

def noise(count, scale):
    values = torch.rand(count, TWICE) * scale
    return F.relu(values)

def shown(values):
    return net(values)

def run(other):
"""
DOUBLED = "\n".join(
    ["    a0 = noise(SIZE, 1)", *(f"    a{n + 1} = a{n} * a{n} + a{n}" for n in range(40))]
)


@pytest.mark.parametrize(
    ("body", "is_data"),
    [
        ("    x = torch.zeros(SIZE)\n    net(x)", True),
        ("    x = noise(SIZE, 0.1).clamp(0, 1)[:2]\n    net(x)", True),
        ("    x = shown(noise(SIZE, 1))\n    net(x)", False),
        ("    x = noise(SIZE, other)\n    net(x)", False),
        ("    x = torch.rand(3) + weights\n    net(x)", False),
        ("    x = torch.rand(3)\n    x = x + 1\n    net(x)", False),  # of itself: not followed
        ("    x = torch.nn.Linear(3, 3)\n    net(x)", False),
        (f"{DOUBLED}\n    net(a40)", True),
    ],
)
def test_data_is_what_comes_of_new_tensors_alone(body, is_data, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(HEAD + body + "\n")
    program = source_of(str(path))
    line = len((HEAD + body).splitlines())
    assert is_given_data([program], (Frame("run", str(path), line),)) is is_data
