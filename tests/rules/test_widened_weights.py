"""widened-weights: a layer keeps its narrow weights, and a wider copy of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.recorded import findings_of, names

WIDTH, LAYERS, BATCH = 256, 6, 8


class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        weight = torch.randint(-127, 127, (WIDTH, WIDTH), dtype=torch.int8)
        self.register_buffer("narrow", weight)
        self.register_buffer("scale", torch.full((WIDTH, 1), 1e-3))
        self.weight = None

    def widened(self):
        return self.narrow.to(torch.float32).mul_(self.scale)


class Keeping(Narrow):
    def widened(self):
        return self.narrow.to(torch.float32).mul_(self.scale)

    def forward(self, x):
        if self.weight is None:
            self.weight = self.widened()
        return F.linear(x, self.weight)


class Directly(Narrow):
    def forward(self, x):
        if self.weight is None:
            self.weight = self.narrow.float() * self.scale
        return F.linear(x, self.weight)


class Anew(Narrow):
    """The weights are widened in each call, and gone when it is over."""

    def forward(self, x):
        return F.linear(x, self.widened())


class Masked(Narrow):
    """What stays is no copy of the weights: it is as large as half of them."""

    def forward(self, x):
        if self.weight is None:
            self.weight = self.narrow[: WIDTH // 8].to(torch.float32)
        return F.linear(x, self.weight.repeat(8, 1))


class WithTable(nn.Module):
    """A table that is moved and kept, and by chance four times as large as a weight."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH, bias=False)
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.ones(2 * WIDTH, 2 * WIDTH).tril().to(torch.float32, copy=True)
        return self.map(x) * self.table[0, 0]


def inference(layer):
    model = nn.Sequential(*[layer() for _ in range(LAYERS)])

    def step(_number):
        with torch.no_grad():
            model(torch.randn(BATCH, WIDTH)).sum().item()

    return step


def fires():
    return inference(Keeping)


def directly():
    return inference(Directly)


def looks_alike():
    return inference(Anew)


def masked():
    return inference(Masked)


def test_the_copy_is_to_be_a_variable_of_the_call(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json")
    (remedy,) = found.remedies
    assert found.rule == "widened-weights"
    assert found.bytes == LAYERS * WIDTH * WIDTH * 4
    assert (remedy.fix, remedy.code) == ("del_ref", "self.weight = self.widened()")


def test_the_statement_that_keeps_it_may_convert_it(tmp_path):
    found, *_ = findings_of(directly, tmp_path / "run.json")
    assert found.rule == "widened-weights"
    assert found.remedies[0].code == "self.weight = self.narrow.float() * self.scale"


def with_table():
    return inference(WithTable)


@pytest.mark.parametrize("program", [masked, with_table])
def test_what_is_no_copy_of_the_weights_is_none(program, tmp_path):
    assert "widened-weights" not in names(program, tmp_path / "run.json")
