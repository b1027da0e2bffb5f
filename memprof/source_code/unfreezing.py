"""Statements that have gradients made of parameters which had none."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.source_code.program import Place, Program, called_name

__all__ = ["unfreezing"]

_FLAG = "requires_grad"


def unfreezing(program: Program) -> Iterator[Place]:
    """Those of a file: ``model.requires_grad_(True)``, ``parameter.requires_grad = True``.

    And those that choose: ``parameter.requires_grad = "embed" in name``.
    """
    for node in program.nodes:
        if isinstance(node, (ast.Assign, ast.Expr)) and _unfreezes(node):
            place = program.place(node)
            if place is not None:
                yield place


def _unfreezes(statement: ast.Assign | ast.Expr) -> bool:
    value = statement.value
    if isinstance(statement, ast.Expr):
        if not isinstance(value, ast.Call) or called_name(value) != f"{_FLAG}_":
            return False
        given = [*value.args, *(one.value for one in value.keywords)]
        return all(map(_may_be_true, given))
    names = [one.attr for one in statement.targets if isinstance(one, ast.Attribute)]
    return _FLAG in names and _may_be_true(value)


def _may_be_true(value: ast.expr) -> bool:
    """Whether a value is written as true, or as what a comparison says."""
    if isinstance(value, ast.Constant):
        return value.value is True
    return isinstance(value, (ast.BoolOp, ast.Compare))
