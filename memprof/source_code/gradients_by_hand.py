"""What a program does by itself with the gradients of parameters: `p.grad` read, or set to None."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.source_code.program import Program, calls_in

__all__ = ["gradients_filled", "reads_gradients", "sets_gradient_none"]

_GRADIENT = "grad"


def reads_gradients(program: Program) -> bool:
    """Whether a file has the gradient of something in an expression: ``p.grad``."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == _GRADIENT
        and isinstance(node.ctx, ast.Load)
        and not (isinstance(node.value, ast.Name) and node.value.id == "autograd")
        for node in program.nodes
    )


def gradients_filled(program: Program) -> Iterator[tuple[ast.Call, ast.Attribute]]:
    """Calls that fill gradients with zeros, each with the gradient: ``p.grad.zero_()``."""
    for call in calls_in(program.tree, "zero_", "fill_"):
        is_zero = all(isinstance(one, ast.Constant) and one.value == 0 for one in call.args)
        value = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(value, ast.Attribute) and value.attr == "data":
            value = value.value
        if isinstance(value, ast.Attribute) and value.attr == _GRADIENT and is_zero:
            yield call, value


def sets_gradient_none(program: Program) -> bool:
    """Whether a file lets go of gradients without an optimizer: ``p.grad = None``."""
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and node.value.value is None
        and any(isinstance(one, ast.Attribute) and one.attr == _GRADIENT for one in node.targets)
        for node in program.nodes
    )
