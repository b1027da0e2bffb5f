"""Calls that set an attribute by its name: ``setattr(module, f"avg_{key}", value)``."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from memprof.source_code.program import Place, Program, calls_in

__all__ = ["attributes_by_name"]

_SETTING = ("setattr", "object.__setattr__")
"""Functions that set an attribute of an object by its name."""


def attributes_by_name(programs: Sequence[Program], name: str) -> list[tuple[ast.Call, Place]]:
    """Calls that may set an attribute of that name, with their statements.

    Those that write most of the name out: all of it, or a part; else those that have it in a
    variable.
    """
    fitting = []
    for program in programs:
        for call in calls_in(program.tree, "setattr", "__setattr__"):
            if ast.unparse(call.func) not in _SETTING or len(call.args) != 3:
                continue
            pattern, written = _pattern(call.args[1])
            place = program.place(call)
            if place is not None and re.fullmatch(pattern, name, re.DOTALL):
                fitting.append((written, (call, place)))
    most = max((written for written, _ in fitting), default=0)
    return [one for written, one in fitting if written == most]


def _pattern(key: ast.expr) -> tuple[str, int]:
    """A pattern for the texts that an expression may be, and how many characters it writes out."""
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        return re.escape(key.value), len(key.value)
    parts: list[ast.expr] = []
    if isinstance(key, ast.JoinedStr):
        parts = key.values
    elif isinstance(key, ast.BinOp) and isinstance(key.op, ast.Add):
        parts = [key.left, key.right]
    if not parts:
        return ".*", 0
    patterns = [_pattern(part) for part in parts]
    return "".join(one for one, _ in patterns), sum(written for _, written in patterns)
