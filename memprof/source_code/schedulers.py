"""Schedulers of learning rates, each of which holds its optimizer."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.source_code.program import Place, Program, arguments, bound_names, called_name
from memprof.source_code.scopes import qualified_name
from memprof.source_code.values import values_of

__all__ = ["schedulers_of"]

_SCHEDULERS = "torch.optim.lr_scheduler."
"""How the qualified names of torch's own begin."""


def schedulers_of(place: Place, optimizer: str) -> Iterator[str]:
    """The variables of a function with schedulers that hold the optimizer of another variable.

    ``scheduler = StepLR(optimizer, 10)``; and where a function of the file returns both,
    ``model, optimizer, scheduler = made()``.
    """
    for node in ast.walk(place.scope):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        names = [one.id if isinstance(one, ast.Name) else "" for one in bound_names(node)]
        if len(names) == 1 and _is_of(place, node.value, optimizer):
            yield from (one for one in names if one)
        elif len(names) > 1 and optimizer in names:
            returned = _returned_beside(place.program, node.value, names.index(optimizer))
            yield from (names[at] for at in returned if at < len(names) and names[at])


def _returned_beside(program: Program, call: ast.Call, at: int) -> Iterator[int]:
    """Which of the values that a function of the file returns are schedulers of the one at a place.

    None where several functions have its name.
    """
    functions = program.functions(called_name(call))
    for node in ast.walk(functions[0]) if len(functions) == 1 else ():
        value = node.value if isinstance(node, ast.Return) else None
        place = program.place(node) if value is not None else None
        values = value.elts if isinstance(value, ast.Tuple) else []
        names = [one.id if isinstance(one, ast.Name) else "" for one in values]
        if place is None or at >= len(names) or not names[at]:
            continue
        for number, one in enumerate(values):
            made = values_of(place, names[number]) if names[number] else [one]
            if any(_is_of(place, value, names[at]) for value in made):
                yield number


def _is_of(place: Place, value: ast.expr | None, optimizer: str) -> bool:
    """Whether a value is a scheduler of the optimizer that a variable has."""
    if not isinstance(value, ast.Call):
        return False
    is_given = any(isinstance(one, ast.Name) and one.id == optimizer for one in arguments(value))
    return is_given and qualified_name(place, value.func).startswith(_SCHEDULERS)
