"""Index of one of the user's files: which lines bind, fill and empty the names in it."""

from __future__ import annotations

import ast
import linecache
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from memprof.source_code.parse import syntax_tree
from memprof.source_code.verbs import (
    CONTAINERS,
    FACTORIES,
    FILLING,
    FILLING_FUNCTIONS,
    NUMBER_FUNCTIONS,
    TAKING,
    TEXT_FUNCTIONS,
    TO_NUMBER,
    VIEWING,
)

__all__ = [
    "EMPTIED",
    "FILLED",
    "NO_TENSOR",
    "Bound",
    "Fill",
    "Index",
    "is_empty_container",
    "read_index",
]

_OFF_DEVICE = TO_NUMBER | {"numpy"}
"""Methods whose result is no tensor of the device."""
_PLAIN = NUMBER_FUNCTIONS | TEXT_FUNCTIONS
_FIRST = ("func", "value", "left", "elts", "body")
"""Fields of expressions that come first in the text."""
_MAX_CHARS = 400_000
"""Longer files are not read: a million characters take some three seconds."""
FILLED, _ASSIGNED, _IN_INIT, EMPTIED = range(4)  # how telling a line is: the lowest wins
NO_TENSOR, _SWITCHED_OFF = 4, 8  # added where the line stores a number, or a global flag skips it


@dataclass(frozen=True, order=True)
class Fill:
    """A line that puts something into a name; the more telling one is the lesser."""

    rank: int
    line: int
    value: str = field(default="", compare=False)
    """The variable that is stored, where it is one."""
    keys: frozenset[str] = field(default=frozenset(), compare=False)
    """Texts that it writes as keys: ``h["train"].append(x)``, ``rows.append({"loss": x})``."""
    of_itself: bool = field(default=False, compare=False)
    """True if it makes a new value of the old one: ``net = Wrapped(net)``."""
    attribute: bool = field(default=False, compare=False)
    class_: str = field(default="", compare=False)
    function: str = field(default="", compare=False)
    scope: int = field(default=0, compare=False)
    """First line of the function it stands in."""
    passed: bool = field(default=False, compare=False)
    """True if the variable is a parameter of that function."""
    by_method: bool = field(default=False, compare=False)
    """True if a container's method puts it there: ``kept.append(x)``."""
    on_host: bool = field(default=False, compare=False)
    """True if it is moved to the host first: ``kept.append(x.cpu())``."""
    of_self: bool = field(default=False, compare=False)
    """True if it is an attribute of the object whose method it stands in: ``self.kept``.

    Not one that is another object's as well: ``self.kept = options.kept``.
    """


@dataclass(frozen=True)
class Bound:
    """A line that binds a variable."""

    line: int
    off: int
    part: bool
    """True if it takes a part of something larger."""
    own: bool = False
    """True if it reads the variable itself: ``total += loss``."""


@dataclass
class Index:
    """Lines of one file by the names that they bind or fill.

    Attributes are written ``.name``, and what is filled below a key of a record ``[key]``.
    """

    filled: dict[str, list[Fill]] = field(default_factory=dict)
    bound: dict[str, list[Bound]] = field(default_factory=dict)
    """Variable -> where it is bound."""
    functions: list[tuple[int, int]] = field(default_factory=list)
    """First (its decorators') and last line of every function."""
    classes: set[str] = field(default_factory=set)
    """Names of the classes that it defines."""
    loops: list[tuple[int, int]] = field(default_factory=list)
    """First and last line of every loop."""
    contexts: list[tuple[int, int]] = field(default_factory=list)
    """The same of every ``with``."""
    in_class: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)
    """(class, attribute) -> (rank, line) in the class body."""
    registered: dict[str, int] = field(default_factory=dict)
    """Function or method -> line that passes it to a ``register…hook``."""
    saved: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Class of a custom Function -> (rank, line) of ``save_for_backward``."""
    calls: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Last name of what is called -> (rank, line)."""
    kept_small: set[tuple[str, str]] = field(default_factory=set)
    """(class, name) of which entries are taken, counted, or asked for before one is added."""
    creates_graph: list[tuple[int, int]] = field(default_factory=list)
    """(rank, line) of calls with ``create_graph=True``."""


def read_index(filename: str) -> Index:
    """The index of a file; an empty one where it is not here, is too long or does not parse."""
    text = "".join(linecache.getlines(filename)) if filename else ""
    index = Index()
    if not text or len(text) > _MAX_CHARS:
        return index
    tree = syntax_tree(text)
    if tree is None:
        return index
    _Reader(index, _flags(filename)).read(tree)
    return index


def _flags(filename: str) -> dict[str, bool]:
    """The module's global switches: a branch that one of them turns off did not run."""
    for module in list(sys.modules.values()):
        if type(module) is not types.ModuleType:
            continue
        variables = types.ModuleType.__getattribute__(module, "__dict__")
        file = variables.get("__file__")
        if type(file) is str and file == filename:
            return {name: one for name, one in list(variables.items()) if type(one) is bool}
    return {}


@dataclass
class _Place:
    node: ast.AST
    function: str = ""
    class_: str = ""
    in_class_body: bool = False
    off: int = 0
    scope: int = 0
    parameters: frozenset[str] = frozenset()


@dataclass
class _Reader:
    index: Index
    flags: dict[str, bool]
    aliases: list[tuple[int, str, str]] = field(default_factory=list)
    """Scope and name of variables that stand for an attribute: ``seen = self.seen``."""
    item_aliases: list[tuple[int, str, str]] = field(default_factory=list)
    """The same of variables that stand for an item: ``group = self.groups[key]``."""

    def read(self, tree: ast.AST) -> None:
        """Note every filling of a file in the index."""
        waiting = [_Place(tree)]
        while waiting:
            place = waiting.pop()
            self._note(place)
            waiting += self._inside(place)
        for scope, name, attribute in self.aliases:
            for one in self.index.filled.get(name, []):
                if one.scope == scope and one.rank % NO_TENSOR == FILLED:
                    self.index.filled.setdefault(attribute, []).append(one)
        for scope, name, container in self.item_aliases:
            # An item may be a tensor, and what is written into that adds nothing to the container.
            for one in self.index.filled.get(name, []):
                if one.scope == scope and one.by_method and one.rank % NO_TENSOR == FILLED:
                    self.index.filled.setdefault(container, []).append(one)

    def _inside(self, place: _Place) -> Iterator[_Place]:
        node, function, class_, body = place.node, place.function, place.class_, place.in_class_body
        scope, parameters = place.scope, place.parameters
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            function, body, scope = getattr(node, "name", function), False, node.lineno
            parameters = _parameters(node.args)
        if isinstance(node, ast.ClassDef):
            class_, body = node.name, True
        dead = self._dead_branch(node)
        for child in ast.iter_child_nodes(node):
            off = _SWITCHED_OFF if any(child is one for one in dead) else place.off
            yield _Place(child, function, class_, body, off, scope, parameters)

    def _dead_branch(self, node: ast.AST) -> Sequence[ast.AST]:
        if not isinstance(node, (ast.If, ast.IfExp)):
            return []
        truth = self._truth(node.test)
        if truth is None:
            return []
        dead = node.orelse if truth else node.body
        return dead if isinstance(dead, list) else [dead]

    def _truth(self, test: ast.expr) -> bool | None:
        """The truth of a condition on the module's switches; None where it has other parts."""
        if isinstance(test, ast.Name):
            return self.flags.get(test.id)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._truth(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            decisive = isinstance(test.op, ast.Or)
            parts = [self._truth(part) for part in test.values]
            if decisive in parts:
                return decisive
            return None if None in parts else not decisive
        return None

    def _live(self, value: ast.expr | None) -> ast.expr | None:
        """``x`` of ``x.item() if SWITCH else x``, where the switch is off."""
        if isinstance(value, ast.IfExp) and (truth := self._truth(value.test)) is not None:
            return value.body if truth else value.orelse
        return value

    def _note(self, place: _Place) -> None:
        node = place.node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            self.index.functions.append((first, node.end_lineno or node.lineno))
        if isinstance(node, ast.ClassDef):
            self.index.classes.add(node.name)
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self.index.loops.append((node.lineno, node.end_lineno or node.lineno))
        if isinstance(node, (ast.With, ast.AsyncWith)):
            self.index.contexts.append((node.lineno, node.end_lineno or node.lineno))
        if isinstance(node, ast.Call):
            self._note_call(node, place)
        if isinstance(node, ast.ExceptHandler) and node.name:
            self._bind(node.name, Bound(node.lineno, place.off, False))
        for target, value in _bindings(node):
            self._note_binding(target, value, place)
        for container in _looked_after(node) if not place.off else ():
            own = isinstance(container, ast.Attribute) and _name(container.value) == "self"
            self.index.kept_small.add((place.class_ if own else "", _name(container)))

    def _note_binding(self, target: ast.expr, value: ast.expr | None, place: _Place) -> None:
        line = getattr(place.node, "lineno", None) or target.lineno
        if isinstance(target, ast.Name):
            part = _is_part(value) or _is_part(getattr(place.node, "value", None))
            own = isinstance(place.node, ast.AugAssign) or _reads(value, target.id)
            self._bind(target.id, Bound(line, place.off, part, own))
            if isinstance(value, ast.Attribute):
                self.aliases.append((place.scope, target.id, "." + value.attr))
            container = _name(_container_of_item(value)) if value is not None else ""
            if container and container != target.id:
                self.item_aliases.append((place.scope, target.id, container))
            if place.in_class_body:
                lines = self.index.in_class.setdefault((place.class_, target.id), [])
                lines.append((place.off, line))
        if isinstance(target, ast.Subscript) and is_empty_container(value):
            rank = EMPTIED  # what is put into it later grows
        elif isinstance(target, ast.Subscript) or isinstance(place.node, ast.AugAssign):
            rank = FILLED
        elif _is_empty(value):
            rank = EMPTIED
        else:
            is_start = place.function == "__init__" or _is_fresh(value)
            rank = _IN_INIT if is_start else _ASSIGNED
        again = isinstance(place.node, (ast.Assign, ast.AnnAssign))
        of_itself = again and _is_of_itself(target, value)
        key = _innermost_key(target.value) if isinstance(target, ast.Subscript) else ""
        self._fill(target, rank, line, value, place, of_itself, key)

    def _bind(self, name: str, binding: Bound) -> None:
        self.index.bound.setdefault(name, []).append(binding)

    def _fill(
        self,
        target: ast.expr | str,
        rank: int,
        line: int,
        value: ast.expr | None,
        place: _Place,
        of_itself: bool = False,
        key: str = "",
        by_method: bool = False,
    ) -> None:
        name = target if isinstance(target, str) else _name(target)
        if not name:
            return
        value = self._live(value)
        rank += place.off + (NO_TENSOR if value is not None and _is_number(value) else 0)
        value_name = value.id if isinstance(value, ast.Name) else ""
        fill = Fill(
            rank,
            line,
            value=value_name,
            keys=frozenset(_keys(target, value)),
            of_itself=of_itself,
            attribute=name.startswith("."),
            class_=place.class_,
            function=place.function,
            scope=place.scope,
            passed=value_name in place.parameters,
            by_method=by_method,
            on_host=_is_moved_to_host(value),
            of_self=bool(place.class_) and _is_of_self(target) and not _takes_same(name, value),
        )
        self.index.filled.setdefault(name, []).append(fill)
        if key and rank % NO_TENSOR == FILLED:
            self.index.filled.setdefault(f"[{key}]", []).append(fill)

    def _note_call(self, node: ast.Call, place: _Place) -> None:
        self._note_graph(node, place)
        name_called = _name(node.func).lstrip(".")
        self.index.calls.setdefault(name_called, []).append((place.off, node.lineno))
        name, value = _attribute_set(node, name_called)
        if name:
            rank = _ASSIGNED if value is not None else _IN_INIT
            self._fill("." + name, rank, node.lineno, value, place)
        if name_called in FILLING_FUNCTIONS and len(node.args) > 1:
            self._fill(node.args[0], FILLED, node.lineno, node.args[1], place, by_method=True)
        if not isinstance(node.func, ast.Attribute):
            return
        if name_called in FILLING:
            first = node.args[-1] if node.args else None
            key = _innermost_key(node.func.value)
            rank = EMPTIED if name_called == "setdefault" and is_empty_container(first) else FILLED
            self._fill(node.func.value, rank, node.lineno, first, place, key=key, by_method=True)
        if name_called == "save_for_backward":
            self.index.saved.setdefault(place.class_, []).append((place.off, node.lineno))
        if name_called.startswith("register_") and "hook" in name_called:
            self._note_hook(node, place)

    def _note_graph(self, node: ast.Call, place: _Place) -> None:
        for keyword in node.keywords:
            value = keyword.value
            if (
                keyword.arg == "create_graph"
                and isinstance(value, ast.Constant)
                and value.value is True
            ):
                self.index.creates_graph.append((place.off, node.lineno))

    def _note_hook(self, node: ast.Call, place: _Place) -> None:
        for argument in node.args:
            for part in ast.walk(argument):
                if not isinstance(part, (ast.Name, ast.Attribute)):
                    continue
                name = _name(part).lstrip(".")
                self.index.registered.setdefault(name, node.lineno)
                if isinstance(part, ast.Name) and place.function:
                    own = f"{place.function}.{name}"  # one that this function may define
                    self.index.registered.setdefault(own, node.lineno)


def _attribute_set(node: ast.Call, name_called: str) -> tuple[str, ast.expr | None]:
    """The attribute that a call sets by its name, and the value where it is a plain assignment."""
    if name_called in ("setattr", "__setattr__") and len(node.args) == 3:
        return _text(node.args[1]), node.args[2]
    if name_called in ("register_buffer", "register_parameter") and node.args:
        return _text(node.args[0]), None
    return "", None


def _looked_after(node: ast.AST) -> Iterator[ast.AST]:
    """Containers that a node takes from, counts, shortens or searches for a key."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in TAKING:
            yield node.func.value
    elif isinstance(node, ast.Delete):
        yield from (t.value for t in node.targets if isinstance(t, ast.Subscript))
    elif isinstance(node, ast.Compare):
        for side in (node.left, *node.comparators):
            if isinstance(side, ast.Call) and ast.unparse(side.func) == "len" and side.args:
                yield side.args[0]
        if isinstance(node.ops[0], (ast.In, ast.NotIn)):
            yield node.comparators[0]
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
        yield from (t for t in node.targets if _name(t) == _name(node.value))


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


def _container_of_item(value: ast.expr) -> ast.AST:
    """``self.groups`` of ``self.groups[key]`` and of ``self.groups.setdefault(key, [])``."""
    if isinstance(value, ast.Subscript) and not isinstance(value.slice, ast.Slice):
        return value.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.value if value.func.attr in ("get", "setdefault") else ast.Pass()
    return ast.Pass()


def _innermost_key(target: ast.expr) -> str:
    """``rows`` of ``state["rows"][3]``, by which a record is asked for a container; else empty."""
    while isinstance(target, ast.Subscript):
        key = _text(target.slice)
        if key:
            return key
        target = target.value
    return ""


def _keys(target: ast.expr | str, value: ast.expr | None) -> Iterator[str]:
    """The keys that are written where something is put: subscripts, dicts, keyword arguments."""
    while isinstance(target, ast.Subscript):
        yield _text(target.slice)
        target = target.value
    if isinstance(value, ast.Dict):
        for key, item in zip(value.keys, value.values, strict=True):
            yield _text(key) if key is not None else ""
            yield from _keys("", item)
    elif isinstance(value, ast.Call):
        yield from (keyword.arg for keyword in value.keywords if keyword.arg)


def _is_of_itself(target: ast.expr, value: ast.expr | None) -> bool:
    """True if a value is made of what its target holds, by more than a method of that."""
    name = _name(target)
    parts = (n for n in ast.walk(value or ast.Pass()) if isinstance(n, (ast.Name, ast.Attribute)))
    if not name or not any(_name(one) == name for one in parts):
        return False
    first: ast.AST | None = value
    while first is not None:
        if isinstance(first, ast.Attribute) and _name(first.value) == name:
            return False
        first = next((getattr(first, part) for part in _FIRST if hasattr(first, part)), None)
        first = first[0] if isinstance(first, list) and first else first
    return True


def _text(node: ast.expr) -> str:
    """The text of a constant; empty for what is not one."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _parameters(arguments: ast.arguments) -> frozenset[str]:
    named_parameters = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return frozenset(one.arg for one in named_parameters)


def _reads(value: ast.expr | None, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value or ast.Pass()))


def _is_part(value: ast.expr | None) -> bool:
    """True if an expression is a part of a tensor: ``x[0]``, ``x.split(2)``."""
    function = value.func if isinstance(value, ast.Call) else None
    return isinstance(value, ast.Subscript) or (
        isinstance(function, ast.Attribute) and function.attr in VIEWING
    )


def _is_number(value: ast.expr) -> bool:
    """True if an expression surely holds no device tensor: ``x.item()``, ``float(x)``, a string."""
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute):
            return value.func.attr in _OFF_DEVICE
        return isinstance(value.func, ast.Name) and value.func.id in _PLAIN
    if isinstance(value, ast.IfExp):
        return _is_number(value.body) and _is_number(value.orelse)
    return isinstance(value, (ast.JoinedStr, ast.Constant))


def _is_of_self(target: ast.expr | str) -> bool:
    """Whether it is an attribute of ``self``, or an entry of one."""
    while isinstance(target, ast.Subscript):
        target = target.value
    owner = target.value if isinstance(target, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id == "self"


def _takes_same(name: str, value: ast.expr | None) -> bool:
    """Whether it is what another object has under the same name."""
    return isinstance(value, ast.Attribute) and name == f".{value.attr}"


def _is_moved_to_host(value: ast.expr | None) -> bool:
    """``x.cpu()``: on a CPU that is the tensor itself."""
    return isinstance(value, ast.Call) and _name(value.func) == ".cpu"


def _is_fresh(value: ast.expr | None) -> bool:
    """True if a function of torch makes it anew: ``torch.zeros_like(self.state)``, a reset."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    return _name(value.func.value) == "torch" and value.func.attr in FACTORIES


def is_empty_container(value: ast.expr | None) -> bool:
    """True if an expression makes one of Python's containers with nothing in it."""
    if isinstance(value, ast.Call):
        name = _name(value.func).lstrip(".")
        return name in CONTAINERS and (not value.args or name == "defaultdict")
    return isinstance(value, (ast.List, ast.Dict)) and _is_empty(value)


def _is_empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    return isinstance(value, ast.Call) and not value.args and not value.keywords
