"""What is read of one entry of dicts that a list holds: all of its values, or what reduces them.

A buffer of rollouts has logits of which only the chosen are read again. The list is followed
through the program with the dicts in it; where these are read as a whole, nothing is known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.dataflow import Flow
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    assigned,
    called_name,
    calls_in,
    root_name,
)
from memprof.source_code.reductions import computed_by_value, picking
from memprof.source_code.scopes import (
    BINDING,
    COMPREHENSIONS,
    Scopes,
    nodes_around,
    parameters,
    reads_of,
    syntax_of,
)
from memprof.source_code.values import values_of
from memprof.source_code.verbs import EMPTYING, FILLING, SAME_VALUES

__all__ = ["EntryRead", "entry_read", "is_entry_unread"]

_OF_SHAPE = frozenset(("device", "dtype", "ndim", "shape", "size"))
_OF_PARTS = frozenset(("index_select", "narrow", "select"))
"""What takes whole rows, as a batch does, is no reduction of them."""
_OF_LISTS = (FILLING | EMPTYING | {"count", "index", "reverse", "get", "setdefault"}) - {"update"}
_OF_MAPPINGS = frozenset(("items", "keys", "values"))
_WRITTEN_OUT = (ast.Constant, ast.Slice)
_PASSING = frozenset(
    (
        *("choice", "choices", "enumerate", "iter", "list", "next", "reversed", "sample"),
        *("shuffle", "sorted", "tuple", "zip"),
    )
)
"""Functions that give items of a list that they are given."""
_GETTING = frozenset(("get", "pop"))
_ASKING = frozenset(("bool", "len", "print"))
_DEEPEST = 3
"""Functions of the program that hand a value on, until it is given up."""


@dataclass(frozen=True, slots=True, eq=False)
class EntryRead:
    """How an entry is reduced wherever it is read."""

    texts: tuple[str, ...]
    """The reductions, as written: ``torch.gather(logits.log_softmax(-1), 2, i)``."""
    place: Place
    """The statement that puts a value into the entry."""
    line: int
    """The line of it where the value is written."""


def entry_read(place: Place, key: str, programs: Sequence[Program]) -> EntryRead | None:
    """How ``item[key]`` is reduced, of items that the statement at a place puts into a list.

    None where it is read in another way as well, or where that cannot be told.
    """
    call = next((one for one in calls_in(place.statement, *FILLING) if one.args), None)
    receiver = (
        call.func.value if call is not None and isinstance(call.func, ast.Attribute) else None
    )
    if call is None or receiver is None:
        return None
    files = sorted({place.program, *programs}, key=lambda program: program.filename)
    flow = _Held(syntax_of(tuple(files)), through=False)
    scopes = tuple(node for node in place.around if isinstance(node, FUNCTIONS))
    flow.give(receiver, scopes)
    if isinstance(receiver, ast.Name) and place.function is not None:
        for node, around in flow.source.nodes:  # a list that the function is handed
            if isinstance(node, ast.Call) and called_name(node) == place.function.name:
                given = _arguments_by_parameter(place.function, node).get(receiver.id)
                if given is not None:
                    flow.give(given, around)
    if flow.follow().is_lost or not flow.is_read_by_keys:
        return None
    texts: list[str] = []
    for node in flow.reads_of_entry(key):
        reader = _place_of(files, node)
        reductions = (
            list(_reductions(reader, node, files, root_name(node)))
            if reader is not None
            else [None]
        )
        for one in reductions:
            if one is None or not _is_of_item(one, root_name(node)):
                return None
            texts.append(ast.unparse(one.call))
    put = _put(place, call, key, files)
    if not texts or put is None:
        return None
    return EntryRead(tuple(dict.fromkeys(texts)), *put)


def is_entry_unread(
    place: Place, container: ast.expr, key: str, programs: Sequence[Program]
) -> bool:
    """Whether nothing reads the entry of a key, of dicts that a container has at a place.

    Neither by the key, wherever it stands, nor the dicts as a whole.
    """
    files = sorted({place.program, *programs}, key=lambda program: program.filename)
    for program in files:
        written = [node for node in program.nodes if _writes_keywords(program, node)]
        if any(_names_key(one, key) for one in program.nodes if one not in written):
            return False
    flow = _HeldByName(syntax_of(tuple(files)), through=False, container=ast.unparse(container))
    flow.give(container, tuple(node for node in place.around if isinstance(node, FUNCTIONS)))
    is_followed = not flow.follow().is_lost and flow.returning <= flow.source.called_names
    return is_followed and flow.is_read_by_keys


def _names_key(node: ast.AST, key: str) -> bool:
    """Whether a node has a key as a text, other than to write an entry; or unpacks a dict."""
    if isinstance(node, ast.Call):
        unpacks = any(one.arg is None for one in node.keywords)
        return unpacks or _is_among(key, (*node.args, *(one.value for one in node.keywords)))
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return False
    if isinstance(node, ast.Dict):
        return None in node.keys or _is_among(key, node.values)
    return _is_among(key, ast.iter_child_nodes(node))


def _writes_keywords(program: Program, node: ast.AST) -> bool:
    """Whether a node is a dict with what a function takes by name: ``{"step": step, **values}``."""
    if not isinstance(node, ast.Dict) or None not in node.keys:
        return False
    place = program.place(node)
    taken = place.function.args.kwarg if place is not None and place.function is not None else None
    given = [value for key, value in zip(node.keys, node.values, strict=True) if key is None]
    return taken is not None and [ast.unparse(one) for one in given] == [taken.arg]


def _is_among(key: str, nodes: Iterable[ast.AST]) -> bool:
    return any(isinstance(one, ast.Constant) and one.value == key for one in nodes)


@dataclass(frozen=True, slots=True, eq=False)
class _Reduction:
    """A call that reduces a value, and by what names its other operands come."""

    call: ast.Call
    names: frozenset[str]
    """Of the function that reads the entry."""
    place: Place
    """A statement of it."""


@dataclass(eq=False)
class _Held(Flow):
    """A list and the dicts in it, without what these have by their keys."""

    def carries(self, node: ast.expr | None, scopes: Scopes) -> bool:
        """Whether an expression is the list, or items of it."""
        if isinstance(node, ast.Subscript) and _is_key(node.slice):
            return False
        return super().carries(node, scopes)

    def _returns(self, call: ast.Call, scopes: Scopes) -> bool:
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        if receiver is not None and self.carries(receiver, scopes):
            keyed = bool(call.args) and _is_key(call.args[0])
            return call.func.attr in _OF_LISTS and not keyed  # type: ignore[attr-defined]
        if called_name(call) in _PASSING:
            return any(self.carries(one, scopes) for one in call.args)
        return super()._returns(call, scopes)

    @property
    def is_read_by_keys(self) -> bool:
        """Whether nothing reads a dict as a whole, as far as is known."""
        return all(self._is_known(node, scopes) for node, scopes in self.source.nodes)

    def _is_known(self, node: ast.AST, scopes: Scopes) -> bool:
        if isinstance(node, ast.keyword):
            return True  # of a call
        inner = (*scopes, node) if isinstance(node, COMPREHENSIONS) else scopes
        if isinstance(node, ast.Call):
            values: list[ast.AST] = [*node.args, *(one.value for one in node.keywords)]
        else:
            values = [] if isinstance(node, FUNCTIONS) else list(ast.iter_child_nodes(node))
        carried = [one for one in values if isinstance(one, ast.expr) and self.carries(one, inner)]
        return not carried or self._hands_on(node, scopes)

    def _hands_on(self, node: ast.AST, scopes: Scopes) -> bool:
        if isinstance(node, ast.Call):
            is_container = isinstance(node.func, ast.Attribute) and node.func.attr in FILLING
            is_function = bool(self.source.functions.get(called_name(node)))
            unpacked = any(one.arg is None for one in node.keywords)
            return not unpacked and (
                is_container or is_function or called_name(node) in _PASSING | _ASKING
            )
        if isinstance(node, ast.Attribute):
            return node.attr in _OF_LISTS or self.carries(node, scopes)
        if isinstance(node, ast.expr) and self.carries(node, scopes):
            return True
        passing = (*BINDING, ast.Return, ast.Yield, ast.Expr, ast.Delete, ast.Subscript)
        loops = (ast.For, ast.comprehension, ast.If, ast.IfExp, ast.While, ast.UnaryOp)
        return isinstance(node, (*passing, *loops))

    def reads_of_entry(self, key: str) -> Iterator[ast.expr]:
        """Where ``item[key]`` is read, also by ``get``."""
        for node, scopes in self.source.nodes:
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                is_entry = isinstance(node.slice, ast.Constant) and node.slice.value == key
                if is_entry and self.carries(node.value, scopes):
                    yield node
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                given = node.args[0] if node.args else None
                is_entry = isinstance(given, ast.Constant) and given.value == key
                if is_entry and self.carries(node.func.value, scopes):
                    yield node


@dataclass(eq=False)
class _HeldByName(_Held):
    """The same of a mapping of dicts: what goes through its values reads none of them whole."""

    container: str = ""
    """As written."""

    def _returns(self, call: ast.Call, scopes: Scopes) -> bool:
        return self._is_of_container(call.func) or super()._returns(call, scopes)

    def _hands_on(self, node: ast.AST, scopes: Scopes) -> bool:
        if called_name(node) == "print":
            return False
        return self._is_of_container(node) or super()._hands_on(node, scopes)

    def _is_known(self, node: ast.AST, scopes: Scopes) -> bool:
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, _WRITTEN_OUT):
            is_own = ast.unparse(node.value) == self.container
            if not is_own and self.carries(node.value, scopes):
                return False  # ``for key in answer: show(answer[key])``
        return super()._is_known(node, scopes)

    def _is_of_container(self, node: ast.AST) -> bool:
        """``answers.values``, or ``answers.items``."""
        is_whole = isinstance(node, ast.Attribute) and node.attr in _OF_MAPPINGS
        return is_whole and ast.unparse(node.value) == self.container  # type: ignore[attr-defined]


def _reductions(
    place: Place, value: ast.expr, programs: Sequence[Program], item: str, depth: int = 0
) -> Iterator[_Reduction | None]:
    """What reduces a value in its statement, under a name, or in a function it is handed to.

    None for each read of another kind.
    """
    if depth > _DEEPEST:
        yield None
        return
    node, waiting = value, nodes_around(place.statement, value)
    while waiting:
        if isinstance(waiting[-1], ast.Attribute) and waiting[-1].attr in _OF_SHAPE:
            return
        call = picking(node, waiting)
        if call is not None and called_name(call) not in _OF_PARTS:
            others = [one for one in call.args if one is not node]
            names = frozenset(name for one in others for name in _roots(place, one, item))
            yield _Reduction(call, names, place)
            return
        rest = [*waiting]
        computed = _computed(node, rest)
        if computed is None:
            break
        node, waiting = computed, rest
    yield from _handed_on(place, node, waiting, programs, item, depth)


def _computed(node: ast.expr, waiting: list[ast.AST]) -> ast.expr | None:
    """What the innermost node around a value computes of it alone, value by value, or shows."""
    parent = waiting[-1] if waiting else None
    if isinstance(parent, ast.Subscript) and parent.value is node:
        waiting.pop()
        return parent
    if isinstance(parent, ast.BinOp):
        other = parent.right if parent.left is node else parent.left
        if not isinstance(other, ast.Constant):
            return None  # of two entries value by value: both are needed whole
    return computed_by_value(node, waiting)


def _handed_on(
    place: Place,
    node: ast.expr,
    around: list[ast.AST],
    programs: Sequence[Program],
    item: str,
    depth: int,
) -> Iterator[_Reduction | None]:
    """The reductions of a variable that is bound to a value, or of a function's parameter."""
    parent = around[-1] if around else None
    if isinstance(parent, BINDING):
        targets = [target for target, one in assigned(parent) if one is node]
        if len(targets) != 1 or not isinstance(targets[0], ast.Name):
            yield None
            return
        for load, _ in reads_of(place.scope, targets[0].id):
            reader = place.program.place(load)
            if reader is None:
                yield None
            elif reader.statement is not place.statement:
                yield from _reductions(reader, load, programs, item, depth + 1)
        return
    functions = [
        (program, one)
        for program in programs
        for one in program.functions(called_name(parent) if parent is not None else "")
    ]
    if not isinstance(parent, ast.Call) or len(functions) != 1 or not _is_argument(node, parent):
        yield None
        return
    program, function = functions[0]
    arguments = _arguments_by_parameter(function, parent)
    name = next((name for name, one in arguments.items() if one is node), "")
    for load, _ in reads_of(function, name) if name else ():
        reader = program.place(load)
        for one in (
            _reductions(reader, load, programs, item, depth + 1) if reader is not None else [None]
        ):
            yield _in_caller(one, arguments, place, item) if one is not None else None
    if not name:
        yield None


def _in_caller(
    reduction: _Reduction, arguments: dict[str, ast.expr], place: Place, item: str
) -> _Reduction:
    """The same, with the names of the function that hands the value on."""
    names = {
        name
        for parameter in reduction.names & arguments.keys()
        for name in _roots(place, arguments[parameter], item)
    }
    own = reduction.names - arguments.keys()
    return _Reduction(reduction.call, frozenset(names | own), place)


def _arguments_by_parameter(
    function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call
) -> dict[str, ast.expr]:
    names = [one for one in parameters(function) if one not in ("self", "cls")]
    by_name = dict(zip(names, call.args, strict=False))
    return by_name | {one.arg: one.value for one in call.keywords if one.arg in names and one.arg}


def _is_argument(node: ast.expr, call: ast.Call) -> bool:
    return any(one is node for one in (*call.args, *(word.value for word in call.keywords)))


def _roots(place: Place, value: ast.expr, item: str, depth: int = 0) -> Iterator[str]:
    """The variables that a value comes of, through names that its function binds once.

    Also what is called for it, but for what leaves the values as they are.
    """
    waiting: list[ast.AST] = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Slice):
            continue  # from where to where
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Call) and called_name(node) not in SAME_VALUES | _GETTING:
            yield f"{ast.unparse(node.func)}()"
        if isinstance(node, ast.Name):
            bound = list(values_of(place, node.id)) if node.id != item else []
            if len(bound) == 1 and bound[0] is not None and depth < _DEEPEST:
                yield from _roots(place, bound[0], item, depth + 1)
            else:
                yield node.id


def _is_of_item(reduction: _Reduction, item: str) -> bool:
    """Whether what is picked is told by the same item: it was known when that was put together."""
    if called_name(reduction.call) != "gather":
        return True
    return item in reduction.names and reduction.names <= {item, "self"}


def _put(
    place: Place, call: ast.Call, key: str, programs: Sequence[Program]
) -> tuple[Place, int] | None:
    """Where the entry of an item is written: the statement and the line."""
    item = call.args[0]
    dicts = [item]
    if isinstance(item, ast.Name):
        function = place.function
        words = function.args.kwarg if function is not None else None
        if function is not None and words is not None and words.arg == item.id:
            return _given(function.name, key, programs)  # ``def add(self, **fields)``
        dicts = [one for one in values_of(place, item.id) if one is not None]
    for one in dicts:
        value = _value_of(one, key)
        at = place.program.place(value) if value is not None else None
        if value is not None and at is not None:
            return at, value.lineno
    return place, place.line


def _given(name: str, key: str, programs: Sequence[Program]) -> tuple[Place, int] | None:
    for program in programs:
        for call in calls_in(program.tree, name):
            value = _value_of(call, key)
            at = program.place(value) if value is not None else None
            if value is not None and at is not None:
                return at, value.lineno
    return None


def _value_of(node: ast.expr, key: str) -> ast.expr | None:
    """The value of a key in ``{"logits": x}``, or of ``dict(logits=x)``."""
    if isinstance(node, ast.Dict):
        for one, value in zip(node.keys, node.values, strict=True):
            if isinstance(one, ast.Constant) and one.value == key:
                return value
    if isinstance(node, ast.Call):
        return next((one.value for one in node.keywords if one.arg == key), None)
    return None


def _place_of(programs: Sequence[Program], node: ast.AST) -> Place | None:
    for program in programs:
        place = program.place(node)
        if place is not None and any(one is node for one in ast.walk(place.statement)):
            return place
    return None


def _is_key(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
