"""Whether what a call is given may have a graph, where it is computed of other values."""

from __future__ import annotations

import pytest

from memprof.source_code.given_data import calls_given_data, is_given_data
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


X = "x = torch.rand(SIZE)"


@pytest.mark.parametrize(
    ("statement", "given"),
    [
        ("F.mse_loss(net(other), net(x))", [False, True]),
        ("net(x) - net(other)", [True, False]),
        ("net(x)", []),
        ("F.relu(net(x)) + F.relu(other)", []),  # torch's function is no model
        ("net(net(x))", []),  # the inner one runs first
        ("net(x) if other else net(other)", []),
        ("[net(x) for _ in other] + [net(other)]", []),
        ("net(x) + net(other) + head(x) + head(other)", []),  # of two things
    ],
)
def test_several_calls_of_one_thing_in_the_order_in_which_they_run(statement, given, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(f"{HEAD}    {X}\n    y = {statement}\n")
    line = len(path.read_text().splitlines())
    calls = calls_given_data([source_of(str(path))], (Frame("run", str(path), line),))
    assert [is_given for _, is_given in calls] == given
