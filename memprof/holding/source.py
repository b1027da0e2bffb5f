"""Which line of the user's source fills a holder; reads source text and a module's global flags."""

from __future__ import annotations

import ast
import linecache
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = [
    "assigned_in_class",
    "assigned_in_function",
    "creates_graph_at",
    "filled_at",
    "registered_at",
    "saved_at",
]

_GROWING = frozenset(
    [
        "append",
        "appendleft",
        "add",
        "extend",
        "extendleft",
        "update",
        "insert",
        "setdefault",
        "put",
        "put_nowait",
        "push",
    ]
)
_TO_NUMBER = frozenset(["item", "tolist", "numpy", "cpu"])
_MAX_CHARS = 2_000_000
_FILLED, _ASSIGNED, _IN_INIT, _EMPTIED = range(4)  # how telling a line is: the lowest wins
_NO_TENSOR, _SWITCHED_OFF = 4, 8  # added where the line stores a number, or a global flag skips it


@dataclass(frozen=True, order=True)
class _Fill:
    rank: int
    line: int
    value: str = field(default="", compare=False)
    """The variable that is stored, where it is one."""
    text: str = field(default="", compare=False)
    class_: str = field(default="", compare=False)


@dataclass
class _Index:
    """What the lines of one file do to the names in it; attributes are written ``.name``."""

    filled: dict[str, list[_Fill]] = field(default_factory=dict)
    bound: dict[str, list[int]] = field(default_factory=dict)
    """Variable -> lines that bind it."""
    functions: list[tuple[int, int]] = field(default_factory=list)
    """First (its decorators') and last line of every function."""
    in_class: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    """(class, attribute) -> (rank, line) in the class body."""
    registered: dict[str, int] = field(default_factory=dict)
    """Function or method -> line that passes it to a ``register…hook``."""
    saved: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Class of a custom Function -> (rank, line) of ``save_for_backward``."""
    creates_graph: list[tuple[int, int]] = field(default_factory=list)
    """(rank, line) of calls with ``create_graph=True``."""


def filled_at(
    filename: str,
    name: str,
    *,
    key: str = "",
    class_name: str = "",
    view: bool = False,
    after: int = 0,
) -> int:
    """The line that puts things into a variable, or an attribute ``.name``; 0: none.

    Of several lines one that names ``key`` (a quoted dict key further down the chain) or lies in
    the class ``class_name`` (or the Function of that node) is preferred.
    For a variable of a closure lines from ``after`` on, where its function begins, come first.
    With ``view`` it is the line that made the variable which is put there.
    """
    index = _index(filename)
    fills = index.filled.get(name, [])
    text, class_name = key.strip("'"), class_name.removesuffix("Backward")
    best = min(
        fills,
        key=lambda one: (
            one.line < after,
            text not in one.text,
            bool(class_name) and one.class_ != class_name,
            one,
        ),
        default=None,
    )
    if best is None:
        return 0
    made = assigned_in_function(filename, best.value, best.line) if view and best.value else 0
    return made or best.line


def assigned_in_function(filename: str, name: str, line: int) -> int:
    """The line that last bound ``name`` before ``line``, in the same function; 0: none."""
    index = _index(filename)
    around = [(first, last) for first, last in index.functions if first <= line <= last]
    first, last = max(around, default=(1, 1 << 30))
    lines = [one for one in index.bound.get(name, []) if first <= one <= last]
    before = [one for one in lines if one <= line]
    return max(before) if before else min(lines, default=0)


def assigned_in_class(filename: str, class_name: str, name: str) -> int:
    """The line of a class body that makes the attribute ``name``; 0: none."""
    return min(
        _index(filename).in_class.get((class_name.rsplit(".", maxsplit=1)[-1], name), []),
        default=(0, 0),
    )[1]


def registered_at(filename: str, function: str) -> int:
    """The line that registers ``function`` as a hook; 0 where none does."""
    return _index(filename).registered.get(function.rsplit(".", maxsplit=1)[-1], 0)


def saved_at(filename: str, node: str) -> int:
    """The line where the custom Function behind the node ``node`` saves tensors; 0: none."""
    return min(_index(filename).saved.get(node.removesuffix("Backward"), []), default=(0, 0))[1]


def creates_graph_at(filename: str) -> int:
    """The first line that makes gradients with a graph of their own; 0: none."""
    return min(_index(filename).creates_graph, default=(0, 0))[1]


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
    _Reader(index, text.splitlines(), _flags(filename)).read(tree)
    return index


def _flags(filename: str) -> dict[str, bool]:
    """The module's global switches: a branch that one of them turns off did not run."""
    for module in list(sys.modules.values()):
        if type(module) is not types.ModuleType:
            continue
        variables = types.ModuleType.__getattribute__(module, "__dict__")
        if variables.get("__file__") == filename:
            return {name: one for name, one in list(variables.items()) if type(one) is bool}
    return {}


@dataclass
class _Place:
    node: ast.AST
    function: str = ""
    class_: str = ""
    in_class_body: bool = False
    off: int = 0


@dataclass
class _Reader:
    index: _Index
    lines: list[str]
    flags: dict[str, bool]

    def read(self, tree: ast.AST) -> None:
        waiting = [_Place(tree)]
        while waiting:
            place = waiting.pop()
            self._note(place)
            waiting += self._inside(place)

    def _inside(self, place: _Place) -> Iterator[_Place]:
        node, function, class_, body = place.node, place.function, place.class_, place.in_class_body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            function, body = getattr(node, "name", function), False
        if isinstance(node, ast.ClassDef):
            class_, body = node.name, True
        dead = self._dead_branch(node)
        for child in ast.iter_child_nodes(node):
            off = _SWITCHED_OFF if any(child is one for one in dead) else place.off
            yield _Place(child, function, class_, body, off)

    def _dead_branch(self, node: ast.AST) -> list[ast.stmt]:
        if not isinstance(node, ast.If):
            return []
        test, wanted = node.test, True
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, wanted = test.operand, False
        value = self.flags.get(test.id) if isinstance(test, ast.Name) else None
        if value is None:
            return []
        return node.orelse if value is wanted else node.body

    def _note(self, place: _Place) -> None:
        node = place.node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            self.index.functions.append((first, node.end_lineno or node.lineno))
        if isinstance(node, ast.Call):
            self._note_call(node, place)
        if isinstance(node, ast.ExceptHandler) and node.name:
            self.index.bound.setdefault(node.name, []).append(node.lineno)
        for target, value in _bindings(node):
            self._note_binding(target, value, place)

    def _note_binding(self, target: ast.expr, value: ast.expr | None, place: _Place) -> None:
        line = getattr(place.node, "lineno", None) or target.lineno
        if isinstance(target, ast.Name):
            self.index.bound.setdefault(target.id, []).append(line)
            if place.in_class_body:
                known = self.index.in_class.setdefault((place.class_, target.id), [])
                known.append((place.off, line))
        if isinstance(target, ast.Subscript) or isinstance(place.node, ast.AugAssign):
            rank = _FILLED
        elif _is_empty(value):
            rank = _EMPTIED
        else:
            rank = _IN_INIT if place.function == "__init__" else _ASSIGNED
        self._fill(_name(target), rank, line, value, place)

    def _fill(self, name: str, rank: int, line: int, value: ast.expr | None, place: _Place) -> None:
        if not name:
            return
        rank += place.off + (_NO_TENSOR if value is not None and _is_number(value) else 0)
        stored = value.id if isinstance(value, ast.Name) else ""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        self.index.filled.setdefault(name, []).append(_Fill(rank, line, stored, text, place.class_))

    def _note_call(self, node: ast.Call, place: _Place) -> None:
        for keyword in node.keywords:
            value = keyword.value
            if (
                keyword.arg == "create_graph"
                and isinstance(value, ast.Constant)
                and value.value is True
            ):
                self.index.creates_graph.append((place.off, node.lineno))
        if not isinstance(node.func, ast.Attribute):
            return
        method, first = node.func.attr, node.args[-1] if node.args else None
        if method in _GROWING:
            self._fill(_name(node.func.value), _FILLED, node.lineno, first, place)
        if method in ("register_buffer", "register_parameter") and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                self._fill("." + name.value, _IN_INIT, node.lineno, None, place)
        if method == "save_for_backward":
            self.index.saved.setdefault(place.class_, []).append((place.off, node.lineno))
        if method.startswith("register_") and "hook" in method:
            for argument in node.args:
                for part in ast.walk(argument):
                    if isinstance(part, (ast.Name, ast.Attribute)):
                        self.index.registered.setdefault(_name(part).lstrip("."), node.lineno)


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
    values: list[ast.expr | None] = [None] * len(target.elts)
    if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
        values = list(value.elts)
    for one, its_value in zip(target.elts, values, strict=False):
        yield from _flat(one, its_value)


def _name(node: ast.AST) -> str:
    """The last name of ``a``, ``x.a`` (then ``.a``), ``x.a[i]``."""
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    if isinstance(node, ast.Attribute):
        return "." + node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_number(value: ast.expr) -> bool:
    """Whether an expression surely holds no device tensor: ``x.item()``, ``float(x)``, a string."""
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute):
            return value.func.attr in _TO_NUMBER
        return isinstance(value.func, ast.Name) and value.func.id in (
            "float",
            "int",
            "str",
            "len",
            "repr",
        )
    return isinstance(value, (ast.JoinedStr, ast.Constant))


def _is_empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.Call) and not value.args and not value.keywords
