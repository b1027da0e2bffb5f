"""create-graph: the program says by a setting that gradients are made with their graph.

Each program is a file of its own: the call is looked for in every file that stands in the stacks.
And it has a process of its own: nothing frees its cycles, and a search comes upon them later.
"""

from __future__ import annotations

import pytest

from memprof.loading import load
from memprof.rules.ranked_findings import findings
from tests import forks
from tests.rules.recorded import RECORD

PROGRAM = """
import functools
import warnings
from dataclasses import dataclass

import torch
from torch import nn

warnings.filterwarnings("ignore", message="Using backward")


@dataclass
class Settings:
    width: int = 64
    second_order: bool = {field}


class Solver:
    options = dict(create_graph=True)
    first_order = False

    def __init__(self, settings):
        self.settings = settings
        net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.net = net.requires_grad_(False)

    def slope(self, x{parameter}):
        value = self.net(x).sum()
        {call}
        return (x.grad * x.grad).mean()

    def step(self):
        x = torch.rand(64, 64, requires_grad=True)
        return self.slope(x).item()


def program():
    solver = Solver(Settings())

    def step(number):
        solver.step()

    return step
"""


def findings_in_own_process(program, tmp_path):
    path = tmp_path / "run.json"
    code = f"import runpy\nprogram = runpy.run_path({str(program)!r})['program']\n"
    done = forks.run(code + RECORD, path, 16)
    assert done.returncode == 0, done.stderr
    return findings(load(path))


@pytest.mark.parametrize(
    ("call", "parameter"),
    [
        ("value.backward(create_graph=self.settings.second_order)", ""),
        ("value.backward(**self.options)", ""),
        ("value.backward(create_graph=not self.first_order)", ""),
        ("value.backward(create_graph=again)", ", again=True"),
        ("value.backward(create_graph=bool(1))", ""),
        ("value.backward(create_graph=x.numel() > 1)", ""),
        ("functools.partial(torch.autograd.backward, create_graph=True)(value)", ""),
    ],
)
def test_a_call_that_asks_by_a_setting_is_named(call, parameter, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.format(field=True, call=call, parameter=parameter))
    found = findings_in_own_process(path, tmp_path)[0]
    assert [(one.rule, one.fix, one.code) for one in found.remedies[:2]] == [
        ("create-graph", "autograd_grad", call),
        ("create-graph", "set_to_none", call),
    ]


def test_a_call_that_is_told_not_to_makes_no_graph(tmp_path):
    path = tmp_path / "train.py"
    call = "value.backward(create_graph=self.settings.second_order); self.kept.append(value)"
    text = PROGRAM.format(field=False, call=call, parameter="")
    path.write_text(text.replace("first_order = False", "kept = []"))
    found = findings_in_own_process(path, tmp_path)
    assert not [one for each in found for one in each.remedies if one.rule == "create-graph"]
