"""Loops that could do their work as items come."""

from __future__ import annotations

import textwrap

import pytest

from memprof.source_code.program import program_of
from memprof.source_code.single_pass import single_pass

LOOP = """\
import torch

def score(one):
    return torch.relu(one).mean()

def ask(one):
    return model(one).sum()

def run(model, scale):
    outs, targets = [], []
    for batch in loader:
        outs.append(model(batch))
        targets.append(batch)
{after}
"""
FILLED_AT = 12


def loop_in(tmp_path, after):
    path = tmp_path / "run.py"
    path.write_text(LOOP.format(after=textwrap.indent(textwrap.dedent(after), "    ")))
    file = program_of(str(path))
    where = single_pass(file.at(FILLED_AT), "outs", [file])
    return where.code.strip() if where is not None else None


@pytest.mark.parametrize(
    "after",
    [
        "total = torch.zeros(8, 8)\nfor one in outs:\n    total += one.T @ one",
        "best = outs[0]\nfor one in outs[1:]:\n    best = torch.maximum(best, one)",
        "mean = outs[0].clone()\nfor one in outs[1:]:\n    mean = 0.9 * mean + 0.1 * one",
        "right = 0\nfor one, y in zip(outs, targets):\n    right += (one.argmax(1) == y).sum().item()",
        "low = -float('inf')\nfor i, one in enumerate(outs):\n    low = max(low, score(one) * scale)",
        "for one in outs:\n    print(one.norm().item())",
        "if outs:\n    s = 0\n    for one in outs:\n        s += one.std()\n    print(s / len(outs))",
    ],
)
def test_a_loop_may_do_its_work_as_items_come(after, tmp_path):
    line = next(one for one in after.splitlines() if one.strip().startswith("for"))
    assert loop_in(tmp_path, after) == line.strip()


@pytest.mark.parametrize(
    "after",
    [
        # read elsewhere as well, or more than once
        "mean = torch.stack(outs).mean(0)\ns = 0\nfor one in outs:\n    s += (one - mean).norm()",
        "for epoch in range(3):\n    for one in outs:\n        print(one.norm())",
        "for one in outs:\n    print(one)\nfor one in outs:\n    print(one.norm())",
        # of what is only known when all are there
        "high = max(targets)\ns = 0\nfor one in outs:\n    s += (one / high).sum()",
        "s = len(outs)\nfor one in outs:\n    s += one.sum()",
        # a model may have been trained meanwhile
        "s = 0\nfor one in outs:\n    s += model(one).sum()",
        "s = 0\nfor one in outs:\n    s += model.head(one).sum()",
        "s = 0\nfor one in outs:\n    s += ask(one)",
        "low = torch.tensor(min(targets))\nfor one in outs:\n    low = torch.minimum(low, one)",
        "self.limit = max(targets)\nfor one in outs:\n    print((one > self.limit).sum())",
        # items are kept, or one is looked for
        "rows = []\nfor one in outs:\n    rows.append(one)",
        "for one in outs:\n    if one.norm() > 3:\n        break",
        "for one in outs:\n    yield one",
        "for one, other in zip(outs, others):\n    print(one - other)",
        "return outs",
    ],
)
def test_a_loop_may_need_all_items_to_be_there(after, tmp_path):
    assert loop_in(tmp_path, after) is None


def test_a_method_knows_what_its_object_has(tmp_path):
    text = """\
    class Meter:
        def update(self, one):
            self.outs.append(one)

        def compute(self{given}):
            total = 0.0
            for one in self.outs:
                total += (one * {factor}).sum()
            return total
    """
    for given, factor, is_known in (("", "self.scale", True), (", scale", "scale", False)):
        path = tmp_path / f"meter_{factor}.py"
        path.write_text(textwrap.dedent(text).format(given=given, factor=factor))
        file = program_of(str(path))
        where = single_pass(file.at(3), "self.outs", [file])
        assert (where is not None and where.line == 7) is is_known
