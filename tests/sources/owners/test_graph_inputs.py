"""Which calls of models were given what takes a gradient."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import memprof
from memprof.loading import load
from memprof.records import GraphInputs
from memprof.sources.autograd import may_take_gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, **others):
        return self.layer(x)


@dataclass
class Batch:
    x: torch.Tensor


PLAIN, LEAF = torch.ones(3, 4), torch.ones(3, 4, requires_grad=True)


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ((PLAIN, 3, None, "mean", np.ones(3)), False),
        ([LEAF], True),
        ({"x": [PLAIN, (PLAIN, LEAF * 2)]}, True),
        ({"x": [PLAIN, (PLAIN, PLAIN)]}, False),
        ([[[[PLAIN]]]], True),  # deeper than it is looked into
        ([1] * 1000, True),  # more than are looked at
        (Batch(PLAIN), True),  # an object, which may have any
        ((LEAF * 2).detach(), False),
        ((), False),
    ],
    ids=["plain", "leaf", "made", "data", "deep", "wide", "object", "cut", "nothing"],
)
def test_what_may_take_a_gradient(values, answer):
    assert may_take_gradient(values) is answer


def test_calls_are_counted_by_model_and_line(tmp_path):
    first, second = Model(), Model()
    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        for _ in range(3):
            made = first(PLAIN)
            second(made)
            second(made.detach(), noise=PLAIN)
        for one in (PLAIN, made):
            second(one)
        with torch.no_grad():
            first(PLAIN)
    line = test_calls_are_counted_by_model_and_line.__code__.co_firstlineno
    inputs = load(tmp_path / "run.json").graph_inputs
    assert inputs.modules == ["Model", "Model#2", "Model#2", "Model#2"]
    assert inputs.files == [__file__] * 4
    assert [at - line for at in inputs.lines] == [4, 5, 6, 8]
    assert (inputs.calls, inputs.given) == ([3, 3, 3, 2], [0, 3, 0, 1])


def test_a_record_that_says_more_than_there_were_is_left_out(tmp_path):
    path = tmp_path / "run.json"
    with memprof.track(path, sources=("cpu",)):
        Model()(PLAIN)
    wrong = GraphInputs(["Model"], ["train.py"], [1], calls=[1], given=[2])
    path.write_bytes(path.read_bytes() + msgspec.json.encode(wrong) + b"\n")
    run = load(path)
    assert run.graph_inputs.calls == [1]
    assert "more calls were given something than there were" in run.notes[-1].message
