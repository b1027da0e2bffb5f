"""zeroed-gradients: gradients are computed, and the program sets them to 0 before each step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memprof.source_code.program import program_of
from memprof.source_code.zeroed_gradients import zeroed_gradients
from tests.rules.recorded import findings_of, names

WIDTH, BATCH = 256, 32
TABLE = WIDTH * WIDTH * 4
BY_NAME = "for n, p in net.named_parameters():"


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.table(x))


def fires():
    net = Probe()
    optimizer = torch.optim.Adam(net.parameters())

    def step(number):
        optimizer.zero_grad()
        net(torch.randn(BATCH, WIDTH)).square().mean().backward()
        net.table.weight.grad.zero_()
        optimizer.step()

    return step


def looks_alike():
    """A part of the table stays as it is."""
    net = Probe()
    optimizer = torch.optim.Adam(net.parameters())

    def step(number):
        optimizer.zero_grad()
        net(torch.randn(BATCH, WIDTH)).square().mean().backward()
        net.table.weight.grad[:4].zero_()
        optimizer.step()

    return step


def test_the_gradient_and_both_states_are_told_where_they_are_emptied(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "zeroed-gradients"]
    count = 512  # of steps, a number that takes a block of its own
    assert one.bytes == 3 * TABLE + count
    assert "`Probe.table`" in one.title
    first = one.remedies[0]
    assert (first.fix, first.code) == ("freeze_params", "net.table.weight.grad.zero_()")
    assert first.typed == "net.table.weight.requires_grad_(False)"
    assert first.saves_bytes >= 3 * TABLE
    assert "zeroed-gradients" not in names(looks_alike, tmp_path / "other.json")


@pytest.mark.parametrize(
    ("statement", "expression", "module", "with_parts"),
    [
        ("net.table.weight.grad.zero_()", "net.table.weight", ("table",), False),
        ("net.table.weight.grad.data.zero_()", "net.table.weight", ("table",), False),
        ("net.table.weight.grad *= 0", "net.table.weight", ("table",), False),
        ("net.table.weight.grad.mul_(0.0)", "net.table.weight", ("table",), False),
        ("net.table.weight.grad = None", "net.table.weight", ("table",), False),
        (
            "self.net.body.table.weight.grad.fill_(0)",
            "self.net.body.table.weight",
            ("body", "table"),
            False,
        ),
        ("for p in net.body.parameters(): p.grad = None", "net.body", ("body",), True),
        ("freeze(net.body)", "net.body", ("body",), True),
        (
            "for p in net.body.parameters():\n        if p.grad is not None: p.grad.data.fill_(0)",
            "net.body",
            ("body",),
            True,
        ),
        (
            f"{BY_NAME}\n        if n.startswith(frozen): p.grad = torch.zeros_like(p)",
            "net.encoder",
            ("encoder",),
            True,
        ),
        (
            f"{BY_NAME}\n        if 'body.table' in n: p.grad.zero_()",
            "net.body.table",
            ("body", "table"),
            True,
        ),
    ],
)
def test_whose_gradient_it_is(statement, expression, module, with_parts, written):
    (one,) = zeroed_gradients([written("loss.backward()", statement, "optimizer.step()")])
    assert (one.expression, one.module, one.with_parts) == (expression, module, with_parts)
    assert one.place.line == 3


@pytest.mark.parametrize(
    "lines",
    [
        ("net.table.weight.grad.zero_()", "loss.backward()", "optimizer.step()"),
        ("loss.backward()", "optimizer.step()", "net.table.weight.grad.zero_()"),
        ("loss.backward()", "if late: net.table.weight.grad.zero_()", "optimizer.step()"),
        ("loss.backward()", "net.table.weight.grad[0].zero_()", "optimizer.step()"),
        ("loss.backward()", "net.table.weight.grad.mul_(0.5)", "optimizer.step()"),
        ("loss.backward()", "for p in net.parameters(): p.grad = None", "optimizer.step()"),
        ("loss.backward()", "weight.grad = None", "optimizer.step()"),
        ("loss.backward()", "clip(net.body)", "optimizer.step()"),
        ("loss.backward()", "freeze(net)", "optimizer.step()"),
        (
            "loss.backward()",
            f"{BY_NAME}\n        if n.startswith(given): p.grad = None",
            "optimizer.step()",
        ),
        (
            "loss.backward()",
            f"{BY_NAME}\n        if not n.startswith('a'): p.grad = None",
            "optimizer.step()",
        ),
        # where it is no number
        (
            "loss.backward()",
            "for p in net.body.parameters():\n        if bad(p): p.grad.zero_()",
            "optimizer.step()",
        ),
    ],
)
def test_other_statements_freeze_nothing(lines, written):
    assert list(zeroed_gradients([written(*lines)])) == []


class Pieces(nn.Module):
    """Its parts are called, and it is not."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.head = nn.Linear(WIDTH, 4)


def chosen_by_name():
    net, frozen = Pieces(), ("encoder",)
    optimizer = torch.optim.Adam(net.parameters())

    def step(number):
        optimizer.zero_grad()
        net.head(net.encoder(torch.randn(BATCH, WIDTH))).square().mean().backward()
        for name, parameter in net.named_parameters():
            if name.startswith(frozen):
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()

    return step


def test_gradients_that_the_statement_makes_tell_whose_they_are(tmp_path):
    found = findings_of(chosen_by_name, tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "zeroed-gradients"]
    first = one.remedies[0]
    assert (first.fix, first.typed) == ("freeze_params", "net.encoder.requires_grad_(False)")
    assert first.code == "for name, parameter in net.named_parameters():"
    assert one.bytes >= 3 * TABLE


HELPERS = """

frozen = ("encoder",)


def freeze(module):
    for p in module.parameters():
        if p.grad is None:
            continue
        p.grad.data.fill_(0)


def clip(module):
    for p in module.parameters():
        p.grad.mul_(0.5)
"""


@pytest.fixture
def written(tmp_path):
    def program(*lines):
        path = tmp_path / "train.py"
        text = "\n".join(["for batch in data:", *(f"    {line}" for line in lines)])
        path.write_text(text + HELPERS)
        return program_of(str(path))

    return program
