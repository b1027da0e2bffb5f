"""frozen-graph: the statement that asks for the gradient of an input, in the ways it is written.

Each program is a file of its own: the statement is looked for in every file that stands in the
stacks, and so are those that read a gradient.
"""

from __future__ import annotations

import runpy

import pytest

from tests.rules.recorded import findings_of

BATCH, WIDTH, LAYERS = 512, 64, 6
PROGRAM = """
import torch
from torch.autograd import Variable
from torch import nn

BATCH, WIDTH, LAYERS = 512, 64, 6


{functions}


def program():
    layers = [m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    backbone = nn.Sequential(*layers).requires_grad_(False)
    head = nn.Linear(WIDTH, 4)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)

    def step(number):
        {batch}
        head({features}).square().mean().backward()
        {last}
        optimizer.step()
        optimizer.zero_grad()

    return step
"""
PREPARE = """def prepare(batch):
    return {k: v.to("cpu").requires_grad_(v.is_floating_point()) for k, v in batch.items()}"""
IMAGES = """def images():
    for _ in range(1):
        yield torch.randn(BATCH, WIDTH, requires_grad=True), 1"""
TWO = "x, y = Variable(torch.randn(BATCH, WIDTH), requires_grad=True), Variable(torch.ones(1))"
ONE = "x = torch.randn(BATCH, WIDTH)"
DICT = "batch = {'x': torch.randn(BATCH, WIDTH)}"


def rules_and_codes(tmp_path, functions="", batch=ONE, features="backbone(x)", last="pass"):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.format(functions=functions, batch=batch, features=features, last=last))
    program = runpy.run_path(str(path))["program"]
    every = findings_of(program, tmp_path / "run.json")
    return [
        (one.bytes, one.remedies[0].fix, one.remedies[0].code)
        for one in every
        if one.rule == "frozen-graph"
    ]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (
            {"features": "backbone(x.requires_grad_())"},
            "head(backbone(x.requires_grad_())).square().mean().backward()",
        ),
        (
            {"features": "backbone(Variable(x, requires_grad=True))"},
            "head(backbone(Variable(x, requires_grad=True))).square().mean().backward()",
        ),
        (
            {
                "batch": f"{DICT}; batch['x'].requires_grad = True",
                "features": "backbone(batch['x'])",
            },
            f"{DICT}; batch['x'].requires_grad = True",
        ),
        (
            {"batch": f"{DICT}; batch['x'].requires_grad_()", "features": "backbone(batch['x'])"},
            f"{DICT}; batch['x'].requires_grad_()",
        ),
        ({"batch": TWO}, TWO),
        (
            {"batch": f"{ONE}; x = x.requires_grad_().to('cpu')"},
            f"{ONE}; x = x.requires_grad_().to('cpu')",
        ),
        (
            {"functions": IMAGES, "batch": "x, y = next(images())"},
            "yield torch.randn(BATCH, WIDTH, requires_grad=True), 1",
        ),
        (
            {
                "functions": PREPARE,
                "batch": f"{DICT}; batch = prepare(batch)",
                "features": "backbone(batch['x'])",
            },
            PREPARE.splitlines()[1].strip(),
        ),
    ],
)
def test_the_statement_is_named_however_it_asks(given, code, tmp_path):
    kept = LAYERS * BATCH * WIDTH * 4
    assert rules_and_codes(tmp_path, **given) == [(kept, "detach", code)]


@pytest.mark.parametrize(
    "given",
    [
        # the gradient is read
        {"features": "backbone(x.requires_grad_())", "last": "x.grad.sum().item()"},
        {
            "batch": f"{DICT}; batch['x'].requires_grad = True",
            "features": "backbone(batch['x'])",
            "last": "[one.grad.sum().item() for one in batch.values()]",
        },
        # a hook reads it
        {"batch": f"{ONE}.requires_grad_().clone(); x.register_hook(lambda g: g * 2)"},
        # an optimizer is given the tensor
        {
            "functions": "shift = torch.zeros(1, WIDTH).requires_grad_()\n"
            "own = torch.optim.SGD([shift], 0.1)",
            "features": "backbone(x + shift)",
        },
    ],
)
def test_a_gradient_that_is_read_or_learned_from_is_asked_for_on_purpose(given, tmp_path):
    assert rules_and_codes(tmp_path, **given) == []
