"""Fields that the source of a program never reads: of its own classes, and of entries of dicts."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache

from memprof.source_code.program import MOST_PROGRAMS, Place, Program, called_name, calls_in
from memprof.source_code.scopes import parameters

__all__ = [
    "attributes_of_entry",
    "entry_given_at",
    "field_given_at",
    "is_field_read",
    "is_own_class",
    "keys_of_attribute",
]

_READING_ALL = frozenset(
    (
        *("asdict", "astuple", "copy", "deepcopy", "dump", "dumps", "fields", "getattr"),
        *("replace", "save", "to_dict", "vars"),
    )
)
"""Functions that read what an object has without naming it."""
_BY_NAME = frozenset(("asdict", "getattr", "vars"))
"""Functions that read attributes without naming them in the source."""
_DICTS = frozenset(("dict", "update"))
"""What makes entries of its keywords."""
_TAKING_ENTRIES = frozenset(("get", "items", "pop", "values"))
"""Methods of a dict that read entries without a key that is written out, or by another way."""
_PLAIN_BASES = frozenset(("ABC", "Generic", "Protocol", "object"))
"""Bases with which no library knows the fields of a class."""


def is_field_read(programs: Sequence[Program], name: str) -> bool:
    """Whether a file reads an attribute of that name, or may do so without naming it.

    So may one that was not looked at, where there are too many.
    """
    return len(programs) >= MOST_PROGRAMS or any(_may_read(program, name) for program in programs)


def _may_read(program: Program, name: str) -> bool:
    for node in program.nodes:
        if isinstance(node, ast.Call) and called_name(node) in _READING_ALL:
            return True
        if isinstance(node, ast.Call) and _gets_attribute(node, name):
            return True
        # Patterns without a name are those of ``__match_args__``: for a dataclass, its fields.
        if isinstance(node, ast.MatchClass) and (node.patterns or name in node.kwd_attrs):
            return True
        is_read = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        if is_read and node.attr in (name, "__dict__"):  # type: ignore[attr-defined]
            return True
    return False


def _gets_attribute(call: ast.Call, name: str) -> bool:
    """Whether a call is of `operator.attrgetter` with a path by an attribute, or one unknown."""
    if called_name(call) != "attrgetter":
        return False
    texts = [one.value if isinstance(one, ast.Constant) else None for one in call.args]
    return any(not isinstance(text, str) or name in text.split(".") for text in texts)


def is_own_class(programs: Sequence[Program], name: str) -> bool:
    """Whether a class is the program's alone: no base of a library's reads what it has."""
    classes = {
        node.name: node
        for program in programs
        for node in program.nodes
        if isinstance(node, ast.ClassDef)
    }
    waiting, visited = [name], {name}
    while waiting:
        class_ = classes.get(waiting.pop())
        if class_ is None:
            return False
        for base in class_.bases:
            base_name = called_name(base) if isinstance(base, ast.Call) else _last_name(base)
            if base_name not in _PLAIN_BASES and base_name not in visited:
                visited.add(base_name)
                waiting.append(base_name)
    return True


def _last_name(base: ast.expr) -> str:
    if isinstance(base, ast.Subscript):  # Generic[T]
        base = base.value
    return ast.unparse(base).rpartition(".")[2]


def field_given_at(
    programs: Sequence[Program], name: str, class_name: str
) -> tuple[Place, int] | None:
    """The call of the class that is handed it under its name, else what assigns the attribute.

    And the line on which it is.
    """
    calls = [
        (call, program.place(call))
        for program in programs
        for call in calls_in(program.tree, class_name)
    ]
    for call, place in calls:
        for keyword in call.keywords if place is not None else ():
            if keyword.arg == name:
                return place, keyword.lineno  # type: ignore[return-value]
    for program in programs:
        for node in program.nodes:
            is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if is_set and node.attr == name:  # type: ignore[attr-defined]
                place = program.place(node)
                return (place, node.lineno) if place is not None else None  # type: ignore[attr-defined]
    given = ((place, call.lineno) for call, place in calls if call.args and place is not None)
    return next(given, None)


@lru_cache(maxsize=32)  # each tensor that a state has is asked about, by the same attribute
def keys_of_attribute(programs: tuple[Program, ...], name: str) -> frozenset[str]:
    """What is read of dicts in attributes of a name: ``model`` of ``self.best["model"]``.

    Empty where more may be read: where such an attribute is asked for anything else than whether it
    is there, or where a file may read attributes without naming them.
    """
    keys: set[str] = set()
    if len(programs) >= MOST_PROGRAMS:
        return frozenset()
    for program in programs:
        parents = {child: node for node in program.nodes for child in ast.iter_child_nodes(node)}
        for node in program.nodes:
            if isinstance(node, ast.Call) and _gets_attribute(node, name):
                return frozenset()
            if isinstance(node, ast.Call) and called_name(node) in _BY_NAME:
                return frozenset()
            if isinstance(node, ast.Attribute) and node.attr == "__dict__":
                return frozenset()
            is_read = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
            if not is_read or node.attr != name:  # type: ignore[attr-defined]
                continue
            above = parents[node]
            if isinstance(above, ast.Compare) and all(map(_is_none, above.comparators)):
                continue
            if _asks_whether(above, node):
                continue
            key = above.slice if isinstance(above, ast.Subscript) else None
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                return frozenset()
            keys.add(key.value)
    return frozenset(keys)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _asks_whether(above: ast.AST, node: ast.AST) -> bool:
    """Whether a value is only asked for whether there is anything: ``if x``, ``not x``."""
    if isinstance(above, (ast.If, ast.IfExp, ast.While)):
        return above.test is node
    return isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.Not)


def attributes_of_entry(programs: Sequence[Program], key: str) -> frozenset[str]:
    """What is read of entries under a key: ``sequences`` of ``row["output"].sequences``.

    Empty where more may be read: what is done with an entry as a whole may read any of it; so may
    a method of it.
    """
    attributes: set[str] = set()
    for program in programs:
        parents = {child: node for node in program.nodes for child in ast.iter_child_nodes(node)}
        for node in program.nodes:
            if isinstance(node, ast.Call) and called_name(node) in _TAKING_ENTRIES:
                return frozenset()
            if isinstance(node, ast.keyword) and node.arg is None:  # ``f(**row)``
                return frozenset()
            if not (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)):
                continue
            if not _is_constant(node.slice, key):
                continue
            above = parents[node]
            further = parents.get(above)
            is_called = isinstance(further, ast.Call) and further.func is above
            if not isinstance(above, ast.Attribute) or is_called:
                return frozenset()
            attributes.add(above.attr)
    return frozenset(attributes)


def entry_given_at(programs: Sequence[Program], key: str) -> tuple[Place, int] | None:
    """The one statement that writes a key, in a dict's display or as ``row[key] = …``; its line.

    Or as a keyword of ``dict(…)``, or of what takes its keywords as a dict: ``def log(**row)``.
    """
    places = {}
    for program in programs:
        for node in program.nodes:
            keys: list[ast.expr | None] = []
            if isinstance(node, ast.Dict):
                keys = node.keys
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                keys = [node.slice]
            elif isinstance(node, ast.Call):
                words = [one for one in node.keywords if one.arg == key]
                keys = [one.value for one in words if _makes_entries(programs, node, key)]
            for one in keys:
                is_key = isinstance(node, ast.Call) or _is_constant(one, key)
                place = program.place(node) if is_key else None
                if place is not None and one is not None:
                    places[program.filename, one.lineno] = place, one.lineno
    return next(iter(places.values())) if len(places) == 1 else None


def _makes_entries(programs: Sequence[Program], call: ast.Call, key: str) -> bool:
    """Whether a keyword of a call becomes the entry of a dict, and no parameter takes it."""
    called = called_name(call)
    if called in _DICTS:
        return True
    functions = [one for program in programs for one in program.functions(called)]
    return bool(functions) and all(
        one.args.kwarg is not None and key not in parameters(one) for one in functions
    )


def _is_constant(node: ast.expr | None, value: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == value
