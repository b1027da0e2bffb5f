"""The statement that sets the size of what another one makes."""

from __future__ import annotations

import ast

from memprof.source_code.program import Place, bound_names, loaded_names

__all__ = ["size_statement"]


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
