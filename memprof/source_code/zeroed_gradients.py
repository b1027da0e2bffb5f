"""Statements that set a gradient to 0 between every backward pass and the step after it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.program import (
    LOOPS,
    Place,
    Program,
    bound_names,
    called_name,
    calls_in,
)
from memprof.source_code.scopes import parameters
from memprof.source_code.values import values_of

__all__ = ["ZeroedGradient", "zeroed_gradients"]

_ZEROING = frozenset(("fill_", "mul_"))
"""Methods that make a gradient 0 where they are given 0."""
_PAIR = 2

_Zeroed = tuple[str, tuple[str, ...], bool]
"""What has the gradient, the names that lead to the module, and whether its parts are meant too."""


@dataclass(frozen=True, slots=True, eq=False)
class ZeroedGradient:
    """Whose gradient, by the names that lead to it."""

    place: Place
    expression: str
    """What has it: ``model.items.weight``, or the module of which all have: ``model.body``."""
    module: tuple[str, ...]
    """Names from the model to the module: ``("items",)``."""
    with_parts: bool
    """All parameters of the module are meant, and of those within it."""
    lines: range
    """From the statement that goes backward to the one that steps."""


def zeroed_gradients(programs: Sequence[Program]) -> Iterator[ZeroedGradient]:
    """Each such statement, in the order of the files.

    It is a statement of its own in the body of a loop, or of a function, that goes backward before
    it and steps after it, or calls a function that does so with each parameter: what stands under a
    condition, or takes a part of the gradient, does something else. A loop may choose parameters by
    the beginning of their names.
    """
    for program in programs:
        for body in _bodies(program):
            for at, statement in enumerate(body):
                backward = next(
                    (one for one in reversed(body[:at]) if calls_in(one, "backward")), None
                )
                stepping = next((one for one in body[at + 1 :] if calls_in(one, "step")), None)
                if backward is None or stepping is None:
                    continue
                lines = range(backward.lineno, (stepping.end_lineno or stepping.lineno) + 1)
                place = program.place(statement)
                for expression, names, with_parts in _zeroed_by(program, statement):
                    if place is not None:
                        yield ZeroedGradient(place, expression, names, with_parts, lines)


def _bodies(program: Program) -> Iterator[list[ast.stmt]]:
    for node in program.nodes:
        if isinstance(node, (*LOOPS, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.body


def _zeroed_by(program: Program, statement: ast.stmt) -> list[_Zeroed]:
    """The parameter, or the modules, whose gradients a statement makes 0; empty for others."""
    if isinstance(statement, ast.For):
        return _zeroed_in_loop(program, statement)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        by_function = _zeroed_by_function(program, statement.value)
        if by_function is not None:
            return [by_function]
    owner = _owner(statement)
    names = _names(owner)
    if owner is None or len(names) < 3:  # a model, a module of it, and its parameter
        return []
    return [(ast.unparse(owner), names[1:-1], False)]


def _zeroed_in_loop(program: Program, loop: ast.For) -> list[_Zeroed]:
    """Those of a loop through parameters, or through those whose names begin with a text."""
    targets = list(map(ast.unparse, bound_names(loop)))
    iterated, body = loop.iter, loop.body
    receiver = iterated.func if isinstance(iterated, ast.Call) else None
    module = receiver.value if isinstance(receiver, ast.Attribute) else None
    prefixes: list[str] | None = None
    if called_name(iterated) == "named_parameters" and len(targets) == _PAIR:
        name = targets.pop(0)
        test = body[0].test if len(body) == 1 and isinstance(body[0], ast.If) else None
        prefixes = _prefixes(program, name, test)
        is_branch = isinstance(body[0], ast.If) and not body[0].orelse
        body = body[0].body if isinstance(body[0], ast.If) and is_branch else []
    elif called_name(iterated) != "parameters":
        return []
    owner = _owner_in(body)
    if module is None or len(targets) != 1 or owner is None or ast.unparse(owner) != targets[0]:
        return []
    names, text = _names(module), ast.unparse(module)
    if prefixes is None:
        return [(text, names[1:], True)] if len(names) > 1 else []
    return [
        (f"{text}.{one}", (*names[1:], *one.split(".")), True) for one in prefixes if names and one
    ]


def _zeroed_by_function(program: Program, call: ast.Call) -> _Zeroed | None:
    """The module that a function of the file is given, which only makes its gradients 0."""
    functions = program.functions(called_name(call)) if isinstance(call.func, ast.Name) else []
    given = call.args[0] if len(call.args) == 1 and not call.keywords else None
    if len(functions) != 1 or given is None:
        return None
    own = list(parameters(functions[0]))
    body = [one for one in functions[0].body if not _is_text(one)]
    loop = body[0] if len(body) == 1 else None
    if not isinstance(loop, ast.For) or called_name(loop.iter) != "parameters" or len(own) != 1:
        return None
    receiver = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    of_own = isinstance(receiver, ast.Attribute) and ast.unparse(receiver.value) == own[0]
    owner, names = _owner_in(loop.body), _names(given)
    is_each = owner is not None and ast.unparse(owner) == ast.unparse(loop.target)
    return (ast.unparse(given), names[1:], True) if of_own and is_each and len(names) > 1 else None


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _prefixes(program: Program, name: str, test: ast.expr | None) -> list[str]:
    """The texts that a parameter's name has to begin with, ``name.startswith(("encoder",))``.

    Or one that it has to have. Empty where they are not written out.
    """
    wanted: ast.expr | None = None
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute):
        is_own = test.func.attr == "startswith" and ast.unparse(test.func.value) == name
        wanted = test.args[0] if is_own and len(test.args) == 1 else None
    elif isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In):
        wanted = test.left if [*map(ast.unparse, test.comparators)] == [name] else None
    place = program.place(test) if test is not None else None
    if isinstance(wanted, ast.Name) and place is not None:
        values = list(values_of(place, wanted.id))
        wanted = values[0] if len(values) == 1 else None
    texts = wanted.elts if isinstance(wanted, (ast.Tuple, ast.List)) else [wanted]
    constants = [one.value for one in texts if isinstance(one, ast.Constant)]
    known = [one.strip(".") for one in constants if isinstance(one, str)]
    return known if len(known) == len(texts) else []


def _owner_in(body: list[ast.stmt]) -> ast.expr | None:
    """The same of a loop's body, which may ask first whether there is a gradient."""
    first = body[0] if body else None
    if isinstance(first, ast.If) and not first.orelse and _asks_for_gradient(first.test):
        is_left_out = len(first.body) == 1 and isinstance(first.body[0], ast.Continue)
        return _owner_in(body[1:] if is_left_out else first.body)
    return _owner(body[0]) if len(body) == 1 else None


def _asks_for_gradient(test: ast.expr) -> bool:
    """``p.grad is not None``, or ``p.grad is None``."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], (ast.Is, ast.IsNot))
        and isinstance(test.left, ast.Attribute)
        and test.left.attr == "grad"
    )


def _owner(statement: ast.stmt) -> ast.expr | None:
    """``p`` of ``p.grad.zero_()``, ``p.grad.mul_(0)``, ``p.grad *= 0`` or ``p.grad = None``.

    Also of ``p.grad = torch.zeros_like(p)``.
    """
    gradient: ast.expr | None = None
    if isinstance(statement, ast.AugAssign):
        is_zero = isinstance(statement.op, ast.Mult) and _is_zero(statement.value)
        gradient = statement.target if is_zero else None
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        is_none = isinstance(statement.value, ast.Constant) and statement.value.value is None
        is_empty = is_none or called_name(statement.value) == "zeros_like"
        gradient = statement.targets[0] if is_empty else None
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        by_zero = called_name(call) in _ZEROING and len(call.args) == 1 and _is_zero(call.args[0])
        if (called_name(call) == "zero_" or by_zero) and isinstance(call.func, ast.Attribute):
            gradient = call.func.value
    if isinstance(gradient, ast.Attribute) and gradient.attr == "data":
        gradient = gradient.value
    is_gradient = isinstance(gradient, ast.Attribute) and gradient.attr == "grad"
    return gradient.value if is_gradient and isinstance(gradient, ast.Attribute) else None


def _is_zero(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value == 0 and value.value is not False


def _names(value: ast.expr | None) -> tuple[str, ...]:
    """``("model", "items", "weight")`` of ``model.items.weight``; ``self`` is no name of a model.

    Empty where it is no chain of attributes.
    """
    names: list[str] = []
    while isinstance(value, ast.Attribute):
        names.append(value.attr)
        value = value.value
    if not isinstance(value, ast.Name):
        return ()
    return tuple(reversed(names if value.id == "self" else [*names, value.id]))
