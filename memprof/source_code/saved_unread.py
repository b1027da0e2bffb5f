"""What a function with a backward pass of its own saves for it, and that pass never reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.source_code.program import FUNCTIONS, Place, Program, assigned, calls_in, loaded_names
from memprof.source_code.scopes import parameters

__all__ = ["SavedUnread", "saved_unread"]

_SAVES, _SAVED = "save_for_backward", "saved_tensors"


@dataclass(frozen=True, slots=True, eq=False)
class SavedUnread:
    """A call of ``save_for_backward``, by what of it is not read."""

    place: Place
    """The statement."""
    made: dict[str, tuple[int, ...]]
    """Names of the forward pass that are not read, each with the lines that bind it."""
    given: tuple[str, ...]
    """Arguments of the forward pass that are not read."""
    typed: str
    """The call with what is read alone."""

    @property
    def names(self) -> tuple[str, ...]:
        """All that is not read."""
        return (*self.given, *self.made)


def saved_unread(program: Program) -> Iterator[SavedUnread]:
    """Those of a file, one for each function that saves more than it reads.

    ``ctx.save_for_backward(x, y)``, and in ``backward`` ``x, y = ctx.saved_tensors``, which goes on
    to read ``x`` alone.
    """
    for one in program.classes():
        methods = {node.name: node for node in one.body if isinstance(node, FUNCTIONS)}
        forward = methods.get("forward")
        backward = methods.get("backward")
        calls = calls_in(forward, _SAVES) if forward is not None else []
        if forward is None or backward is None or len(calls) != 1:
            continue
        place = program.place(calls[0])
        names = _names_read(backward)
        saved = [arg.id for arg in calls[0].args if isinstance(arg, ast.Name)]
        if place is None or not names or not len(names) == len(saved) == len(calls[0].args):
            continue
        unread = [name for name, is_read in zip(saved, names, strict=True) if not is_read]
        given = tuple(name for name in unread if name in parameters(forward))
        made = {name: _lines_of(forward, name) for name in unread if name not in given}
        if unread:
            rest = [name for name in saved if name not in unread]
            typed = f"{ast.unparse(calls[0].func)}({', '.join(rest)})" if rest else ""
            yield SavedUnread(place, made, given, typed)


def _names_read(
    backward: ast.FunctionDef | ast.AsyncFunctionDef,
) -> list[bool]:
    """Of each saved tensor, whether the backward pass reads the name it gives that.

    Empty where it does not give each of them one at once.
    """
    unpacked = [
        node.targets[0]
        for node in ast.walk(backward)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == _SAVED
        and len(node.targets) == 1
    ]
    reads = [
        node
        for node in ast.walk(backward)
        if isinstance(node, ast.Attribute) and node.attr == _SAVED
    ]
    target = unpacked[0] if len(unpacked) == len(reads) == 1 else None
    if not isinstance(target, ast.Tuple):
        return []
    if not all(isinstance(one, ast.Name) for one in target.elts):
        return []
    loaded = loaded_names(backward)
    return [isinstance(one, ast.Name) and one.id in loaded for one in target.elts]


def _lines_of(forward: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> tuple[int, ...]:
    """The lines of the forward pass that bind a name."""
    lines = {
        line
        for node in ast.walk(forward)
        if isinstance(node, ast.stmt)
        for target, _ in assigned(node)
        if isinstance(target, ast.Name) and target.id == name
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return tuple(sorted(lines))
