"""Whether a backward pass starts from a value, or from a sum that it is in."""

from __future__ import annotations

import ast

import pytest

from memprof.source_code.learned_sums import is_learned_from
from memprof.source_code.program import program_of
from memprof.source_code.scopes import nodes_around
from memprof.source_code.summed_comprehensions import goes_backward_from_sum


def answer(tmp_path, text):
    """What is known of the one call of ``loss_of`` in a program."""
    path = tmp_path / "train.py"
    path.write_text(text)
    program = program_of(str(path))
    (call,) = [
        node
        for node in program.nodes
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "loss_of"
    ]
    place = program.place(call)
    return is_learned_from(place, call, nodes_around(place.statement, call), [program])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss_of(x).backward()", True),
        ("(loss_of(x) / 4).backward()", True),
        ("(4 / loss_of(x)).backward()", False),
        ("loss = loss_of(x)\nloss.backward()\nprint(loss.item())", True),
        ("loss = loss_of(x)\nloss.backward()\nkept.append(loss)", False),
        ("loss = loss_of(x)\nprint(float(loss))", None),
        ("loss = loss_of(x)\n(loss * loss).backward()", False),
        ("scaler.scale(loss_of(x)).backward()", True),
        ("torch.autograd.backward(loss_of(x))", True),
        ("accelerator.backward(loss_of(x))", True),
        ("torch.autograd.grad(loss_of(x), weights)", True),
        ("loss = loss_of(x)\nif loss > 3: print('high')\nloss.backward()", True),
        ("def f():\n    return loss_of(x)\n\nf().backward()", True),
        ("def f():\n    return loss_of(x), 3\n\nloss, n = f()\nloss.backward()", True),
        ("def f():\n    return 3, loss_of(x)\n\nloss, n = f()\nloss.backward()", None),
        ("def f():\n    return loss_of(x)\n\nf().var().backward()", False),
        ("def f(loss):\n    loss.mean().backward()\n\nf(loss_of(x))", True),
        ("def f(loss):\n    loss.std().backward()\n\nf(loss=loss_of(x))", False),
        ("def f():\n    return loss_of(x)\n", False),
        ("class A(Base):\n    def training_step(self, x):\n        return loss_of(x)", True),
        ("class A:\n    def training_step(self, x):\n        return loss_of(x)", False),
        (
            (
                "class A:\n    def a(self):\n        self.total = loss_of(x)\n"
                "    def b(self):\n        self.total.backward()\n"
            ),
            True,
        ),
        (
            (
                "class A:\n    def a(self):\n        self.total = loss_of(x)\n"
                "    def b(self):\n        self.total.backward()\n"
                "class B:\n    def b(self):\n        self.total.std().backward()\n"
            ),
            True,
        ),
        (
            (
                "class A:\n    def a(self):\n        self.total = loss_of(x)\n"
                "class B(A):\n    def b(self):\n        self.total.std().backward()\n"
            ),
            False,
        ),
    ],
)
def test_a_value_is_followed_to_the_backward_pass(text, expected, tmp_path):
    assert answer(tmp_path, text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum(map(loss_of, xs)).backward()", True),
        ("loss = torch.stack(list(map(loss_of, xs))).mean()\nloss.backward()", True),
        ("total = sum(map(torch.sum, xs))\ntotal.backward()", False),
        ("parts = {k: loss_of(x) for k, x in xs}\nsum(parts.values()).backward()", True),
        (
            (
                "parts = {k: loss_of(x) for k, x in xs}\nsum(parts.values()).backward()\n"
                "log({k: v.item() for k, v in parts.items()})"
            ),
            True,
        ),
        ("parts = {k: loss_of(x) for k, x in xs}\ncompare(parts).backward()", False),
        ("torch.stack([loss_of(x).item() for x in xs]).mean().backward()", False),
    ],
)
def test_a_comprehension_or_a_map_may_compute_what_is_summed(text, expected, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(text)
    program = program_of(str(path))
    assert goes_backward_from_sum(program.at(1), [program]) is expected
