"""The statement that sets the size of what another one makes."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from memprof.source_code.call_sites import handed_over
from memprof.source_code.program import Place, Program, bound_names, calls_in, loaded_names
from memprof.source_code.scopes import parameters
from memprof.source_code.values import values_of

__all__ = ["length_given_at", "size_statement"]

_MAKING = (
    *("empty", "full", "ones", "zeros"),
    *("new_empty", "new_full", "new_ones", "new_zeros"),
)


def size_statement(place: Place | None) -> Place | None:
    """The statement that sets the size: followed back through the names of the same function."""
    if place is None:
        return None
    names = loaded_names(place.statement)
    setting: Place | None = None
    statements = [
        n for n in ast.walk(place.scope) if isinstance(n, ast.Assign) and n.lineno <= place.line
    ]
    for statement in sorted(statements, key=lambda n: -n.lineno):
        targets = {t.id for t in bound_names(statement) if isinstance(t, ast.Name)}
        if not targets & names:
            continue
        names |= loaded_names(statement.value)
        if not any(isinstance(n, ast.Call) for n in ast.walk(statement.value)):
            setting = place.program.place(statement)
    return setting


def length_given_at(place: Place | None, dim: int, programs: Sequence[Program]) -> Place | None:
    """The call that hands over the length along a dimension of what a statement makes.

    ``KVCache(beams, max_len=4096)``, for ``torch.zeros(beams, heads, max_len)`` in it. None where
    the function sets it itself, or the shape is not written out.
    """
    if place is None or place.function is None:
        return None
    for call in calls_in(place.statement, *_MAKING):
        lengths = _lengths(place, call)
        if not 0 <= dim < len(lengths):
            continue
        length = lengths[dim]
        if isinstance(length, ast.Name) and length.id in parameters(place.function):
            handed = handed_over(place, length, programs)
            return handed[0] if handed is not None else None
    return None


def _lengths(place: Place, call: ast.Call) -> list[ast.expr]:
    """The lengths of the dimensions, as written: ``(n, m)``, ``n, m``, or a name of the former."""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Name) and len(call.args) == 1:
        values = list(values_of(place, first.id))
        first = values[0] if len(values) == 1 else None
    if isinstance(first, (ast.Tuple, ast.List)):
        return first.elts
    return call.args
