"""Operators that have no schema: `torch.cond` and the like."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from memprof.loading import load  # noqa: E402
from memprof.sources.operator_schema import is_mutable, schema_name  # noqa: E402
from tests import forks  # noqa: E402

aten = torch.ops.aten

OF_A_HIGHER_ORDER = """
import sys
import torch
import memprof
from torch import nn

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(512, 512)

    def forward(self, x):
        return torch.cond(
            x.sum() > 0, lambda x: self.layer(x).relu(), lambda x: self.layer(x).tanh(), (x,)
        )

model = Gated()
with memprof.track(sys.argv[1], sources=("cpu",)) as tracker:
    for _ in range(3):
        model(torch.rand(2048, 512)).sum().backward()
        tracker.step()
"""


def test_names_and_writing():
    assert (schema_name(aten.add_.Tensor), is_mutable(aten.add_.Tensor)) == ("aten::add_", True)
    assert (schema_name(aten.add.Tensor), is_mutable(aten.add.Tensor)) == ("aten::add", False)
    cond = torch.ops.higher_order.cond
    assert (schema_name(cond), is_mutable(cond)) == ("cond", False)


@pytest.mark.slow
def test_what_an_operator_of_a_higher_order_makes_is_no_gap(tmp_path):
    # In a process of its own: dynamo patches Module for good.
    done = forks.run(OF_A_HIGHER_ORDER, tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    notes = load(tmp_path / "run.json").notes
    assert not [note.message for note in notes if note.source == "cpu"]
