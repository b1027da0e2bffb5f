"""Containers that the program keeps to a length itself: what fills them also takes, by `len()`."""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Iterable, Iterator

from memprof.source_code.idioms import filling, growing, last_name
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    assigned,
    bound_names,
    called_name,
    calls_in,
)
from memprof.source_code.scopes import parameters
from memprof.source_code.values import values_of
from memprof.source_code.verbs import EMPTYING

__all__ = ["is_kept_to_length", "replaces_items"]

_MANY = ("extend", "update")
"""Put in more than one at a time: that one is taken is then not enough."""
_EXTRA = 4
"""Items, or a quarter, that there may be more than a guard allows when it is looked at."""
_LESS, _MORE = (ast.Lt, ast.LtE), (ast.Gt, ast.GtE)
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
}


def is_kept_to_length(place: Place, length: int = 0) -> bool:
    """Whether what a statement fills is asked for its length there, and loses items by it.

    ``while len(self.entries) > self.capacity: self.entries.popitem(last=False)``, in the same
    function, or in a method of the same class that it calls; or by a total that it is counted in,
    as its bytes; also a statement that runs only below
    a length, and ``rows = rows[-100:]``. False for a container in another one (``rows[key]``):
    of those there may be ever more. A container that was seen to have ``length`` items is not kept
    to fewer: what takes from it does not run then.
    """
    growth = growing(place)
    if growth is None or "[" in growth.container:
        return False
    limits = _limits(place, growth.container)
    return any(one is None or length <= one + max(_EXTRA, one // 4) for one in limits)


def replaces_items(place: Place, name: str, length: int = 0, *, grew: bool = False) -> bool:
    """Whether a statement puts something in the place of an item of a list of that last name.

    ``self.states[at] = state`` makes no list longer. Not where it puts a longer item in its place
    (``rows[at] = rows[at] + [x]``), nor where another statement lengthens a container of that
    name, but to a length: ``if len(self.rows) < self.capacity: self.rows.append(None)``. Where a
    list was seen to grow to ``length``, such a statement must be there.
    """
    statement = place.statement
    if not isinstance(statement, ast.Assign):
        return False
    items = [one for one in bound_names(statement) if _is_item_of(one, name)]
    containers = {ast.unparse(one.value) for one in items if isinstance(one, ast.Subscript)}
    names = {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
    values = [one for each in names for one in values_of(place, each) if one is not None]
    read = [node for one in (statement.value, *values) for node in ast.walk(one)]
    nameable = [node for node in read if isinstance(node, (ast.Name, ast.Attribute))]
    if not containers or any(ast.unparse(node) in containers for node in nameable):
        return False
    lengthening = [
        place.program.place(node)
        for node in ast.walk(_scope_of(place, containers))
        if isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign)) and _may_lengthen(node, name)
    ]
    if all("." in one for one in containers):
        lengthening = [at for at in lengthening if at is None or not _is_of_own_list(at, name)]
    if grew and not lengthening:
        return False
    return all(at is not None and is_kept_to_length(at, length) for at in lengthening)


def _is_of_own_list(place: Place, name: str) -> bool:
    """Whether a statement lengthens a variable's list that its function has made itself.

    No attribute of the same last name has that.
    """
    growth = growing(place)
    if growth is None or growth.container != name or place.function is None:
        return False
    values = list(values_of(place, name))
    return bool(values) and all(isinstance(one, (ast.List, ast.ListComp)) for one in values)


def _scope_of(place: Place, containers: set[str]) -> ast.AST:
    """The outermost function that binds all of these names itself, else the file."""
    functions = [one for one in place.around if isinstance(one, FUNCTIONS)]
    for node in functions[:1]:
        targets = (one for inner in ast.walk(node) for one, _ in assigned(inner))
        if containers <= {one.id for one in targets if isinstance(one, ast.Name)}:
            return node
    return place.program.tree


def _is_item_of(target: ast.expr, name: str) -> bool:
    """Whether a target is one item of a container, itself no item: ``self.name[at]``."""
    if not isinstance(target, ast.Subscript) or isinstance(target.slice, ast.Slice):
        return False
    container = ast.unparse(target.value)
    return "[" not in container and last_name(container) == name


def _may_lengthen(statement: ast.stmt, name: str) -> bool:
    """Whether a statement fills a container of that last name in another way than by an index."""
    growth = filling(statement)
    if growth is None or last_name(growth.container) != name:
        return False
    return not any(_is_item_of(target, name) for target in bound_names(statement))


def _limits(place: Place, name: str) -> Iterator[int | None]:
    """The length that each guard keeps a container to; None where the source does not say."""
    function = place.function
    inside = place.around[place.around.index(function) + 1 :] if function else place.around
    for node in inside:
        if _runs_below_length(node, place, name):
            yield _compared_with(_spelled_out(node.test, place), place, name)  # type: ignore[attr-defined]
    for scope in _scopes(place):
        for node in ast.walk(scope):
            if _trims_whole(node, place, name) or _trims_by_total(node, place, name):
                yield _limit_of(node, place, name)
    if any(called_name(call) in _MANY for call in ast.walk(place.statement)):
        return
    # one by one, and as often as it is filled
    for scope in [place.loop] if place.loop is not None else _scopes(place):
        for node in ast.walk(scope):
            if _trims_one(node, place, name):
                yield _limit_of(node, place, name)


def _limit_of(guard: ast.AST, place: Place, name: str) -> int | None:
    """The length that a guard keeps a container to, where it is written out.

    None also where more than a flag decides whether it runs: it may do so now and then.
    """
    where = place.program.place(guard)
    around = where.around if where is not None else ()
    own = {id(one) for one in place.around}  # then it runs as often as the container is filled
    tests = [one.test for one in around if isinstance(one, ast.If) and id(one) not in own]
    if where is None or not all(map(_is_flag, tests)):
        return None
    if isinstance(guard, (ast.If, ast.While)):
        return _compared_with(_spelled_out(guard.test, place), place, name)
    if isinstance(guard, ast.Assign) and isinstance(guard.value, ast.Subscript):
        return _items_left(guard.value.slice, place, deletes=False)
    targets = guard.targets if isinstance(guard, ast.Delete) else []
    parts = [one.slice for one in targets if isinstance(one, ast.Subscript)]
    return _items_left(parts[0], place, deletes=True) if len(parts) == 1 else None


def _is_flag(test: ast.expr) -> bool:
    """Whether a condition is a single name: what a program sets once."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_flag(test.operand)
    return isinstance(test, (ast.Name, ast.Attribute))


def _items_left(part: ast.expr, place: Place, *, deletes: bool) -> int | None:
    """How many items a slice takes of any container, or leaves of it where it ``deletes``."""
    if not isinstance(part, ast.Slice) or part.step is not None:
        return None
    first, last = (_number(one, place) for one in (part.lower, part.upper))
    if part.upper is None and first is not None:  # [-n:], or but for [n:]
        is_length = first >= 0 if deletes else first < 0
        return abs(first) if is_length else None
    if part.lower is None and last is not None:  # [:n], or but for [:-n]
        is_length = last < 0 if deletes else last >= 0
        return abs(last) if is_length else None
    return None


def _compared_with(test: ast.expr, place: Place, name: str) -> int | None:
    """The number that a condition compares a container's length with; None for anything else."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and len(node.comparators) == 1:
            sides = node.left, node.comparators[0]
            for side, other in (sides, sides[::-1]):
                if _is_length(side, name):
                    return _number(other, place)
    return None


def _number(node: ast.expr | None, place: Place) -> int | None:
    """A whole number that is written out, or what a name or own attribute is throughout."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _number(node.operand, place)
        return None if number is None else -number
    if isinstance(node, ast.Name):
        return _only_number(node.id, place.program.tree, place)
    if isinstance(node, ast.Attribute) and place.class_ and ast.unparse(node.value) == "self":
        return _only_number(ast.unparse(node), place.class_, place)
    return _written_number(node)


def _written_number(node: ast.expr | None) -> int | None:
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _only_number(name: str, scope: ast.AST, place: Place) -> int | None:
    """What a name or attribute is bound to, where that happens in one place of ``scope``."""
    functions = [one for one in ast.walk(scope) if isinstance(one, FUNCTIONS)]
    as_parameter = [one for one in functions if name in _parameters(one)]
    inner = {id(node): function for function in functions for node in ast.walk(function)}
    bound: list[tuple[ast.expr | None, ast.AST]] = []
    for node in ast.walk(scope):
        values = list(assigned(node))
        if isinstance(node, (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith)):
            values = [(target, None) for target in bound_names(node)]
        bound += [(value, node) for target, value in values if ast.unparse(target) == name]
    if len(as_parameter) == 1 and not bound:
        return _default(name, as_parameter[0], place)
    if len(bound) != 1 or as_parameter:
        return None
    value, node = bound[0]
    function = inner.get(id(node))
    if isinstance(value, ast.Name) and function is not None:  # self.size = size
        return _default(value.id, function, place)
    return _written_number(value)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The names of all parameters; those that may be given by position come first."""
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return [one.arg for one in every]


def _default(
    name: str, function: ast.FunctionDef | ast.AsyncFunctionDef, place: Place
) -> int | None:
    """A parameter's default, where no call of the file may give it another value."""
    arguments, names = function.args, _parameters(function)
    positional = names[: len(names) - len(arguments.kwonlyargs)]
    without = len(positional) - len(arguments.defaults)
    defaults = dict(
        zip(names, [None] * without + arguments.defaults + arguments.kw_defaults, strict=True)
    )
    at = positional.index(name) - (names[0] == "self") if name in positional else sys.maxsize
    called = {function.name}
    if function.name == "__init__":
        called = {one.name for one in place.program.classes() if function in one.body}
    for call in calls_in(place.program.tree, *called):
        is_open = any(isinstance(one, ast.Starred) for one in call.args)
        if is_open or len(call.args) > at or {name, None} & {one.arg for one in call.keywords}:
            return None
    return _written_number(defaults.get(name))


def _scopes(place: Place) -> Iterator[ast.AST]:
    """The function around a place, else the file; and methods of its class that it calls."""
    function, class_ = place.scope, place.class_
    yield function
    called = {
        called_name(node)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    }
    for node in class_.body if class_ is not None else ():
        if isinstance(node, FUNCTIONS) and node is not function and node.name in called:
            yield node


def _runs_below_length(node: ast.AST, place: Place, name: str) -> bool:
    """Whether a place is in the branch of an ``if`` for a container that is not full."""
    if not isinstance(node, ast.If):
        return False
    test = _spelled_out(node.test, place)
    if any(inner is place.statement for one in node.orelse for inner in ast.walk(one)):
        return _asks_length(test, name)
    return _asks_length(test, name, below=True)


def _trims_one(node: ast.AST, place: Place, name: str) -> bool:
    """Whether a statement takes something from a container for its length."""
    if not isinstance(node, ast.If) or not _asks_length(_spelled_out(node.test, place), name):
        return False
    return any(_takes(inner, name) for one in node.body for inner in ast.walk(one))


def _trims_whole(node: ast.AST, place: Place, name: str) -> bool:
    """Whether it takes all that is too much, or cuts the container to a length."""
    if isinstance(node, (ast.If, ast.While)):
        takes = _takes if isinstance(node, ast.While) else _empties
        asks = _asks_length(_spelled_out(node.test, place), name)
        return asks and any(takes(inner, name) for one in node.body for inner in ast.walk(one))
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
        is_same = ast.unparse(node.value.value) == name
        targets = [ast.unparse(target) for target in node.targets]
        is_cut = isinstance(node.value.slice, ast.Slice)
        return is_same and is_cut and bool({name, f"{name}[:]"} & set(targets))
    return isinstance(node, ast.Delete) and any(
        isinstance(one, ast.Subscript)
        and isinstance(one.slice, ast.Slice)
        and ast.unparse(one.value) == name
        for one in node.targets
    )


def _trims_by_total(node: ast.AST, place: Place, name: str) -> bool:
    """Whether a loop takes from it while a total is too high, of which what is taken goes off.

    ``while self.nbytes > self.limit: self.nbytes -= self.entries.popleft().nbytes``, where what
    fills the container adds to the same total.
    """
    if not isinstance(node, ast.While):
        return False
    inner = [one for statement in node.body for one in ast.walk(statement)]
    if not any(_takes(one, name) for one in inner):
        return False
    compared = [one for one in ast.walk(node.test) if isinstance(one, ast.Compare)]
    terms = {ast.unparse(term) for one in compared for term in ast.walk(one)}
    lowered = _totals(inner, ast.Sub) & terms
    return any(lowered & _totals(ast.walk(scope), ast.Add) for scope in _scopes(place))


def _totals(nodes: Iterable[ast.AST], operator: type[ast.operator]) -> set[str]:
    """What is added to, or taken from, in place."""
    changes = (node for node in nodes if isinstance(node, ast.AugAssign))
    return {ast.unparse(one.target) for one in changes if isinstance(one.op, operator)}


def _spelled_out(test: ast.expr, place: Place) -> ast.expr:
    """A condition with what methods and properties of the own class return in place of them.

    ``len(self)`` and ``not self.is_full`` of a class with ``return len(self.rows)`` and
    ``return len(self.rows) >= self.most``.
    """
    if place.class_ is None or not any(isinstance(one, ast.Name) for one in ast.walk(test)):
        return test
    spelled: ast.expr = _SpellingOut(place.class_).visit(copy.deepcopy(test))
    return spelled


class _SpellingOut(ast.NodeTransformer):
    """Puts what a class's methods of one statement return in place of their calls."""

    def __init__(self, class_: ast.ClassDef) -> None:
        functions = [one for one in class_.body if isinstance(one, FUNCTIONS)]
        self._values = {
            one.name: (one.body[-1].value, [*map(ast.unparse, one.decorator_list)] == ["property"])
            for one in functions
            if one.body and isinstance(one.body[-1], ast.Return)
            if len(list(parameters(one))) == 1 and len(_without_text(one.body)) == 1
            if [*map(ast.unparse, one.decorator_list)] in ([], ["property"])
        }

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = node.func
        is_own = isinstance(function, ast.Attribute) and ast.unparse(function.value) == "self"
        name = function.attr if is_own and not node.args else ""  # type: ignore[attr-defined]
        if ast.unparse(node) == "len(self)":
            name = "__len__"
        value, is_property = self._values.get(name, (None, False))
        return value if value is not None and not is_property else self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        value, is_property = self._values.get(node.attr, (None, False))
        is_own = ast.unparse(node.value) == "self"
        return value if value is not None and is_property and is_own else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        compared = node.operand
        if not isinstance(node.op, ast.Not) or not isinstance(compared, ast.Compare):
            return node
        operator = _OPPOSITE.get(type(compared.ops[0])) if len(compared.ops) == 1 else None
        return ast.Compare(compared.left, [operator()], compared.comparators) if operator else node


def _without_text(body: list[ast.stmt]) -> list[ast.stmt]:
    return [
        one
        for one in body
        if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
    ]


def _takes(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Delete):
        parts = [one.value for one in node.targets if isinstance(one, ast.Subscript)]
    elif isinstance(node, ast.Call) and called_name(node) in EMPTYING:
        parts = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    elif isinstance(node, ast.Assign):
        return name in {ast.unparse(target) for target in bound_names(node)}
    else:
        return False
    return any(ast.unparse(part) == name for part in parts)


def _empties(node: ast.AST, name: str) -> bool:
    is_call = isinstance(node, ast.Call) and called_name(node) == "clear"
    return (is_call or isinstance(node, ast.Assign)) and _takes(node, name)


def _asks_length(test: ast.expr, name: str, *, below: bool = False) -> bool:
    """Whether a condition compares a container's length with something other than nothing.

    With ``below``: whether it holds for a shorter container only.
    """
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare) or len(node.comparators) != 1:
            continue
        left, right = node.left, node.comparators[0]
        for side, other, shorter in ((left, right, _LESS), (right, left, _MORE)):
            is_nothing = isinstance(other, ast.Constant) and not other.value
            if _is_length(side, name) and not is_nothing:
                return not below or isinstance(node.ops[0], shorter)
    return False


def _is_length(node: ast.expr, name: str) -> bool:
    is_call = isinstance(node, ast.Call) and called_name(node) == "len" and len(node.args) == 1
    return is_call and ast.unparse(node.args[0]) == name  # type: ignore[attr-defined]
