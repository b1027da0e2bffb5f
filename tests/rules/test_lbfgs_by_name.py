"""lbfgs-history where the optimizer is made by a call that does not name its class."""

from __future__ import annotations

import runpy

import memprof
from memprof.loading import load
from memprof.rules.ranked_findings import findings

MADE_BY_NAME = """
import torch
from torch import nn
import memprof

OPTIMIZERS = {"lbfgs": torch.optim.LBFGS, "sgd": torch.optim.SGD}

def train(name):
    model = nn.Linear(64, 64)
    x, y = torch.randn(32, 64), torch.randn(32, 64)
    optimizer = OPTIMIZERS[name](model.parameters(), lr=0.5, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    for _ in range(16):
        optimizer.step(closure)
        memprof.step()

train("lbfgs")
"""


def test_the_size_goes_where_the_optimizer_is_made_by_a_name(tmp_path):
    program = tmp_path / "named.py"
    program.write_text(MADE_BY_NAME)
    with memprof.track(tmp_path / "r.json", sources=["cpu"], allowance_s=60):
        runpy.run_path(str(program), run_name="__main__")
    (found,) = [one for one in findings(load(tmp_path / "r.json")) if one.rule == "lbfgs-history"]
    made = "optimizer = OPTIMIZERS[name](model.parameters(), lr=0.5, max_iter=4)"
    assert (found.remedies[0].fix, found.remedies[0].code) == ("history_size", made)
