"""Which line of the user's source fills a holder; reads source text, never objects."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = ["assigned_in_class", "assigned_in_function", "filled_at", "registered_at"]

_GROWING = frozenset(
    "append appendleft add extend extendleft update insert setdefault put put_nowait push".split()
)
_MAX_CHARS = 2_000_000
_FILLED, _ASSIGNED, _IN_INIT, _EMPTIED = range(4)  # how telling a line is: the lowest wins


@dataclass
class _Index:
    """What the lines of one file do to the names in it."""

    filled: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Attribute or variable -> (how telling, line)."""
    bound: dict[str, list[int]] = field(default_factory=dict)
    """Variable -> lines that bind it."""
    functions: list[tuple[int, int]] = field(default_factory=list)
    """First (its decorators') and last line of every function."""
    in_class: dict[tuple[str, str], int] = field(default_factory=dict)
    """(class, attribute) -> line in the class body."""
    registered: dict[str, int] = field(default_factory=dict)
    """Function or method -> line that passes it to a ``register…hook``."""


def filled_at(filename: str, name: str) -> int:
    """The line of ``filename`` that puts things into the attribute or variable ``name``; 0: none."""
    lines = _index(filename).filled.get(name.split(".")[-1])
    return min(lines)[1] if lines else 0


def assigned_in_function(filename: str, name: str, line: int) -> int:
    """The line that last bound the variable ``name`` before ``line``, in the same function; 0: none."""
    index = _index(filename)
    around = [(first, last) for first, last in index.functions if first <= line <= last]
    first, last = max(around, default=(1, 1 << 30))
    lines = [one for one in index.bound.get(name, []) if first <= one <= last]
    before = [one for one in lines if one <= line]
    return max(before) if before else min(lines, default=0)


def assigned_in_class(filename: str, class_name: str, name: str) -> int:
    """The line of a class body that makes the attribute ``name``; 0: none."""
    return _index(filename).in_class.get((class_name.split(".")[-1], name), 0)


def registered_at(filename: str, function: str) -> int:
    """The line that registers ``function`` as a hook; 0 where none does."""
    return _index(filename).registered.get(function.split(".")[-1], 0)


@lru_cache(maxsize=64)
def _index(filename: str) -> _Index:
    text = "".join(linecache.getlines(filename)) if filename else ""
    index = _Index()
    if not text or len(text) > _MAX_CHARS:
        return index
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return index
    _fill(index, tree, in_init=False)
    return index


def _fill(index: _Index, tree: ast.AST, *, in_init: bool) -> None:
    waiting = [(tree, in_init)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            index.functions.append((first, node.end_lineno or node.lineno))
            inside = node.name == "__init__"
        if isinstance(node, ast.ClassDef):
            _note_class(index, node)
        _note(index, node, inside)
        waiting += [(child, inside) for child in ast.iter_child_nodes(node)]


def _note(index: _Index, node: ast.AST, in_init: bool) -> None:
    if isinstance(node, ast.Call):
        _note_call(index, node)
    for target, value in _bindings(node):
        line = getattr(node, "lineno", None) or target.lineno
        if isinstance(target, ast.Name):
            index.bound.setdefault(target.id, []).append(line)
        name = _name(target)
        if not name:
            continue
        if isinstance(target, ast.Subscript) or isinstance(node, ast.AugAssign):
            rank = _FILLED
        else:
            rank = _EMPTIED if _is_empty(value) else _IN_INIT if in_init else _ASSIGNED
        index.filled.setdefault(name, []).append((rank, line))


def _note_class(index: _Index, node: ast.ClassDef) -> None:
    for statement in node.body:
        for target, _ in _bindings(statement):
            if isinstance(target, ast.Name):
                index.in_class.setdefault((node.name, target.id), statement.lineno)


def _note_call(index: _Index, node: ast.Call) -> None:
    if not isinstance(node.func, ast.Attribute):
        return
    method, name = node.func.attr, _name(node.func.value)
    if method in _GROWING and name:
        index.filled.setdefault(name, []).append((_FILLED, node.lineno))
    if method in ("register_buffer", "register_parameter") and node.args:
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            index.filled.setdefault(first.value, []).append((_IN_INIT, node.lineno))
    if method.startswith("register_") and "hook" in method:
        for argument in node.args:
            for part in ast.walk(argument):
                if isinstance(part, (ast.Name, ast.Attribute)):
                    index.registered.setdefault(_name(part), node.lineno)


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The targets that a statement binds, each with the value where that is known."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _flat(target, node.value)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        yield node.target, node.value
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield from _flat(node.target, None)
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        for item in node.items:
            if item.optional_vars is not None:
                yield from _flat(item.optional_vars, None)


def _flat(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if not isinstance(target, (ast.Tuple, ast.List)):
        yield target, value
        return
    pairs = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
    values = value.elts if pairs and isinstance(value, (ast.Tuple, ast.List)) else [None] * len(target.elts)
    for one, its_value in zip(target.elts, values):
        yield from _flat(one, its_value)


def _name(node: ast.AST) -> str:
    """The last name of ``a``, ``x.a``, ``x.a[i]``."""
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.Call) and not value.args and not value.keywords
