"""widened-weights: a layer keeps its narrow weights, and a wider copy of them."""

from __future__ import annotations

from functools import cached_property

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


class AsProperty(Narrow):
    """A property that functools keeps is an attribute from its first read on."""

    @cached_property
    def wider(self):
        return self.narrow.to(torch.float32)

    def forward(self, x):
        return F.linear(x, self.wider)


class ByType(Narrow):
    """The wider weights are in a dict of the layer's, by their type."""

    def __init__(self):
        super().__init__()
        self.by_type = {}

    def forward(self, x):
        if x.dtype not in self.by_type:
            self.by_type[x.dtype] = self.narrow.to(x.dtype)
        return F.linear(x, self.by_type[x.dtype])


class Packed(nn.Module):
    """Two numbers in each byte, and a base class that takes them apart when they are wanted."""

    def __init__(self):
        super().__init__()
        packed = torch.randint(0, 255, (WIDTH, WIDTH // 2), dtype=torch.uint8)
        self.register_buffer("packed", packed)
        self.register_buffer("scale", torch.full((WIDTH, 1), 1e-3))

    def whole(self):
        if not hasattr(self, "dense"):
            codes = torch.stack((self.packed & 15, self.packed >> 4), dim=-1).flatten(-2)
            self.dense = (codes.to(torch.float32) - 8) * self.scale
        return self.dense


class OfPacked(Packed):
    def forward(self, x):
        return F.linear(x, self.whole())


class PlainProperty(Narrow):
    """A property computes its value at each read."""

    @property
    def wider(self):
        return self.narrow.to(torch.float32)

    def forward(self, x):
        return F.linear(x, self.wider)


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


def as_property():
    return inference(AsProperty)


def by_type():
    return inference(ByType)


def of_packed():
    return inference(OfPacked)


@pytest.mark.parametrize(
    ("program", "code", "instead"),
    [
        (as_property, "return self.narrow.to(torch.float32)", "a plain `property`"),
        (by_type, "self.by_type[x.dtype] = self.narrow.to(x.dtype)", "a variable of the call"),
        (
            of_packed,
            "self.dense = (codes.to(torch.float32) - 8) * self.scale",
            "a variable of the call",
        ),
    ],
)
def test_a_property_an_entry_and_a_base_class_may_keep_it(program, code, instead, tmp_path):
    found, *_ = findings_of(program, tmp_path / "run.json")
    (remedy,) = found.remedies
    assert (found.rule, found.bytes) == ("widened-weights", LAYERS * WIDTH * WIDTH * 4)
    assert (remedy.fix, remedy.code) == ("del_ref", code)
    assert instead in remedy.why


def plain_property():
    return inference(PlainProperty)


def with_table():
    return inference(WithTable)


@pytest.mark.parametrize("program", [masked, with_table, plain_property])
def test_what_is_no_copy_of_the_weights_is_none(program, tmp_path):
    assert "widened-weights" not in names(program, tmp_path / "run.json")
