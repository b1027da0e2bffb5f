"""What of a function does not run for a call, by what the call gives and what it leaves out."""

from __future__ import annotations

import ast

import pytest

from memprof.source_code.branches import never_run

FUNCTION = """
def f(self, x, targets=None, *, scale=1.0, whole=False):
    if targets is None:
        return "no targets"
    loss = "loss" if scale != 1.0 else "plain"
    if whole or scale is None:
        return "whole"
    else:
        return "part"
    return "never"
"""


def dead_texts(call: str, function: str = FUNCTION, *, is_method: bool = True) -> set[str]:
    """The texts of constants that are strings, in what does not run."""
    (definition,) = ast.parse(function).body
    value = ast.parse(call, mode="eval").body
    assert isinstance(value, ast.Call)
    dead = never_run(definition, value, is_method=is_method)
    nodes = {node for root in dead for node in ast.walk(root)}
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize(
    ("call", "texts"),
    [
        ("f(x)", {"loss", "plain", "whole", "part", "never"}),
        ("f(x, y)", {"loss", "whole", "never"}),
        ("f(x, targets=y)", {"loss", "whole", "never"}),
        ("f(x, targets=y, scale=s)", {"never"}),
        ("f(x, targets=y, whole=w)", {"loss", "never"}),
        ("f(*given)", set()),
        ("f(x, **given)", set()),
    ],
)
def test_a_parameter_that_is_left_out_decides_by_its_default(call: str, texts: set[str]) -> None:
    assert dead_texts(call) == texts


def test_without_self_the_first_parameter_is_the_first_argument() -> None:
    function = "def f(x, y=None):\n    return 'none' if y is None else 'some'\n"
    assert dead_texts("f(x)", function, is_method=False) == {"some"}
    assert dead_texts("f(x, z)", function, is_method=False) == set()


def test_identity_is_not_equality() -> None:
    function = (
        "def f(x, y=False):\n    a = 'is' if y is 0 else 'is not'\n"
        "    return 'equal' if y == 0 else 'unequal'\n"
    )
    assert dead_texts("f(x)", function, is_method=False) == {"is", "unequal"}


def test_what_is_assigned_decides_nothing() -> None:
    function = (
        "def f(x, y=None):\n    y = y or x\n    if y is None:\n        return 'none'\n"
        "    return 'some'\n"
    )
    assert dead_texts("f(x)", function, is_method=False) == set()


def test_blocks_are_looked_into_and_end_only_what_they_must() -> None:
    function = """
def f(x, y=None, z=True):
    for one in x:
        if y is not None:
            return "given"
        return "first"
        "after the first"
    with x:
        try:
            if not z:
                "without z"
        except ValueError:
            return "error"
        return "in with"
    "after with"
"""
    expected = {"given", "after the first", "without z", "after with"}
    assert dead_texts("f(x)", function, is_method=False) == expected


def test_what_is_no_function_has_no_parameters() -> None:
    call = ast.parse("f(x)", mode="eval").body
    assert isinstance(call, ast.Call)
    assert never_run(ast.parse("f = 1"), call, is_method=False) == set()
