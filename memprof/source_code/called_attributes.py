"""Attributes that the source of a program only calls: no weights are read of what they have."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from memprof.source_code.program import Program, called_name
from memprof.source_code.scopes import reads_of

__all__ = ["is_only_called"]

_GOING_THROUGH = frozenset(("enumerate", "items", "list", "reversed", "values", "zip"))
_WITHOUT_READING = frozenset(("append", "checkpoint", "len"))
"""What fills a list of modules, counts it, or calls a module that it is given."""
_BY_NAME = frozenset(("getattr", "get_submodule", "vars"))


def is_only_called(programs: Sequence[Program], attribute: str) -> bool:
    """Whether each read of an attribute calls it, or the entries that it has.

    As in ``self.decoder(z)``, ``self.heads[task](x)`` and ``for layer in self.layers[:4]`` with a
    ``layer(x)``. False where a file may read it by its name as a text.
    """
    for program in programs:
        parents = {child: node for node in program.nodes for child in ast.iter_child_nodes(node)}
        for node in program.nodes:
            if isinstance(node, ast.Call) and called_name(node) in _BY_NAME:
                return False
            is_read = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
            if is_read and node.attr == attribute and not _is_called(node, parents):  # type: ignore[attr-defined]
                return False
    return True


def _is_called(value: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether a module is called where it stands, or a loop goes through it and calls its parts."""
    node, parent = value, parents[value]
    while True:
        if isinstance(parent, ast.Call):
            name = called_name(parent)
            if name in _WITHOUT_READING or (parent.func is node and name not in _GOING_THROUGH):
                return True
            if name not in _GOING_THROUGH:
                return False
        elif isinstance(parent, ast.Attribute):
            if parent.attr not in _GOING_THROUGH | _WITHOUT_READING:
                return False
        elif not isinstance(parent, ast.Subscript) or parent.slice is node:
            break
        node, parent = parent, parents[parent]
    if isinstance(parent, ast.For) and parent.iter is node:
        return _calls_parts(parent, parent.target, parents)
    if isinstance(parent, ast.comprehension) and parent.iter is node:
        return _calls_parts(parents[parent], parent.target, parents)
    return False


def _calls_parts(loop: ast.AST, target: ast.expr, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether a loop calls a variable that it binds, and does no more with it."""
    names = [one.id for one in ast.walk(target) if isinstance(one, ast.Name)]
    reads = {name: [load for load, _ in reads_of(loop, name)] for name in names}
    of_part = [loads for loads in reads.values() if any(_calls(parents[one], one) for one in loads)]
    return bool(of_part) and all(_calls(parents[one], one) for loads in of_part for one in loads)


def _calls(parent: ast.AST, node: ast.AST) -> bool:
    is_call = isinstance(parent, ast.Call)
    return is_call and (parent.func is node or called_name(parent) == "checkpoint")  # type: ignore[attr-defined]
