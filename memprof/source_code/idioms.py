"""Idioms that a statement may be: a container filled, a sum, a cache, a custom Function, a copy.

Only syntax is looked at; names that mean something are torch's and Python's, never the user's.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    arguments,
    assigned,
    bound_names,
    called_name,
    calls_in,
    own_calls,
    root_name,
)
from memprof.source_code.scopes import COMPREHENSIONS, qualified_name
from memprof.source_code.verbs import (
    ALSO_OF_TENSORS,
    CONVERTING,
    COPYING,
    CUTTING,
    FILLING,
    FILLING_BY_KEY,
    FILLING_FUNCTIONS,
    JOINING,
    NUMBER_FUNCTIONS,
    SAME_MODULE,
    TEXT_FUNCTIONS,
    adds_in_place,
)

__all__ = [
    "CASTING",
    "Accumulation",
    "Filling",
    "accumulation",
    "added_by",
    "alias_of",
    "arguments_named",
    "attribute_set",
    "checks_for_key",
    "copies_collection",
    "emptied_by",
    "enlarged_copy",
    "filling",
    "growing",
    "grown_by_concatenation",
    "grown_into_new",
    "is_autograd_function",
    "is_cut_off",
    "is_moving_average",
    "is_partly_cut",
    "joins_tensors",
    "keyword",
    "last_name",
    "memoizer",
    "merged_entries",
    "module_itself",
    "moving_average",
    "optimizers_made",
    "read_by_itself",
    "reads_name",
    "without_casts",
    "written_entries",
]

CASTING = frozenset((*CONVERTING, "bfloat16", "half", "type_as"))
"""Methods that give a tensor another type."""

_OF_A_SHAPE = frozenset(
    (
        *("empty", "full", "new_empty", "new_full", "new_ones", "new_zeros", "ones", "zeros"),
        "empty_strided",
    )
)
"""Functions of torch, and methods of its tensors, that make one of a shape that they are told."""
_FROM_JSON = "json.loads"
_OPTIMIZERS = frozenset(
    (
        "ASGD",
        "Adadelta",
        "Adafactor",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
    )
)
"""Optimizers of `torch.optim` that have a multi-tensor implementation."""


_ATTRIBUTES_BY_KEY = frozenset(("__dict__", "_buffers", "_parameters"))
"""Mappings of an object with its attributes by their names."""


@dataclass(frozen=True, slots=True, eq=False)
class Filling:
    """A statement that puts values into a container."""

    container: str
    """As written: ``self.outputs``."""
    values: tuple[ast.expr, ...]
    keyed: bool
    """By a key (``cache[n] = …``), not at the end."""


@dataclass(frozen=True, slots=True, eq=False)
class Accumulation:
    """A statement that adds a value to what it adds to again in the next round."""

    total: ast.expr
    value: ast.expr
    others: tuple[ast.expr, ...] = ()
    """More that the same statement adds: ``b`` of ``total = total + a + b``."""


def optimizers_made(
    programs: Iterable[Program], kinds: Collection[str] = ()
) -> Iterator[tuple[ast.Call, Place]]:
    """Calls that make one of torch's optimizers, whatever a file calls it, with their statements.

    ``kinds`` are the names of their classes; without any, those that work on several tensors at
    once.

    A class of the user's own that is called ``Adam`` is none: what counts is where the name comes
    from.
    """
    for program in programs:
        for call in calls_in(program.tree):
            place = program.place(call)
            name = qualified_name(place, call.func) if place is not None else ""
            if place is not None and _is_optimizer(name, kinds or _OPTIMIZERS):
                yield call, place


def _is_optimizer(name: str, kinds: Collection[str]) -> bool:
    """Whether a qualified name, ``torch.optim.adam.Adam``, is one of those optimizers'."""
    return name.startswith("torch.optim.") and name.rpartition(".")[2] in kinds


def growing(place: Place | None) -> Filling | None:
    """The container that a statement grows; None where it grows none."""
    return filling(place.statement) if place is not None else None


def filling(statement: ast.stmt) -> Filling | None:
    """The container that a statement puts something into, and what; None for other statements."""
    for call in own_calls(statement):
        growth = _filled_by(call, statement)
        if growth is not None:
            return growth
    for target in bound_names(statement):
        if isinstance(target, ast.Subscript) and isinstance(statement, ast.Assign):
            if attribute_set(target):
                continue
            inside = isinstance(target.slice, ast.Slice)
            items = _items(statement.value) if inside else ()
            return Filling(ast.unparse(target.value), items or (statement.value,), keyed=not inside)
    return _rebuilt(statement)


def attribute_set(target: ast.expr) -> str:
    """The attribute that a target is, as it is read; else empty.

    ``self.u`` of ``self.u`` itself, and of ``self._buffers["u"]``, which modules read as that.
    """
    if isinstance(target, ast.Attribute):
        return ast.unparse(target)
    mapping = target.value if isinstance(target, ast.Subscript) else None
    key = target.slice if isinstance(target, ast.Subscript) else None
    if not isinstance(mapping, ast.Attribute) or mapping.attr not in _ATTRIBUTES_BY_KEY:
        return ""
    is_name = isinstance(key, ast.Constant) and isinstance(key.value, str)
    return f"{ast.unparse(mapping.value)}.{key.value}" if is_name else ""  # type: ignore[union-attr]


def _filled_by(call: ast.Call, statement: ast.stmt) -> Filling | None:
    """The filling that a call of a container's method is: ``kept.push(x)``; None for others."""
    name = called_name(call)
    if name in FILLING_FUNCTIONS and len(call.args) > 1:
        return Filling(ast.unparse(call.args[0]), (call.args[1],), keyed=False)
    if name not in FILLING or not isinstance(call.func, ast.Attribute) or not call.args:
        return None
    if name in ALSO_OF_TENSORS and _result_of(statement) is not call:
        return None  # ``y = x.add(z)`` computes
    container = ast.unparse(_container(call.func.value))
    if name == "update":  # else a method of the program's own: ``meter.update(x)``
        values = tuple(value for argument in call.args for value in _entries(argument))
    elif name == "setdefault":
        values = tuple(value for value in call.args[1:2] if not _is_empty(value))
    else:
        values = tuple(call.args[-1:] if name == "insert" else call.args)
    return Filling(container, values, keyed=name in FILLING_BY_KEY) if values else None


def _result_of(statement: ast.stmt) -> ast.expr | None:
    """The expression of a statement that drops its result, ``await`` taken off."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value if isinstance(value, ast.Await) else value


def _container(receiver: ast.expr) -> ast.expr:
    """``groups`` of ``groups.setdefault(key, [])``: the mapping that an entry of is filled."""
    if isinstance(receiver, ast.Call) and called_name(receiver) == "setdefault":
        return receiver.func.value if isinstance(receiver.func, ast.Attribute) else receiver
    return receiver


def _rebuilt(statement: ast.stmt) -> Filling | None:
    """``kept += [x]``, ``kept = kept + [x]`` and ``kept = [*kept, x]``; a dict merged with more.

    A set's are ``kept |= {x}`` and ``kept = kept | {x}``.
    """
    container, entries = merged_entries(statement)
    if entries:
        return Filling(container, tuple(value for _, value in entries), keyed=True)
    if isinstance(statement, ast.AugAssign) and (items := _added(statement)):
        return Filling(ast.unparse(statement.target), items, keyed=False)
    if not isinstance(statement, ast.Assign):
        return None
    texts = {ast.unparse(target) for target in bound_names(statement)}
    value, items = statement.value, ()
    if isinstance(value, ast.BinOp) and ast.unparse(value.left) in texts:
        items = _added(value)
        container = ast.unparse(value.left)
    elif isinstance(value, (ast.List, ast.Tuple)):
        starred = [one.value for one in value.elts if isinstance(one, ast.Starred)]
        own = [ast.unparse(one) for one in starred if ast.unparse(one) in texts]
        items = tuple(one for one in value.elts if not isinstance(one, ast.Starred)) if own else ()
        container = own[0] if own else ""
    return Filling(container, items, keyed=False) if items else None


def _added(operation: ast.AugAssign | ast.BinOp) -> tuple[ast.expr, ...]:
    """The items that a list is written with which an operation adds, or a set's that it unites."""
    added = operation.value if isinstance(operation, ast.AugAssign) else operation.right
    if not isinstance(added, (ast.Set, ast.SetComp)):
        return _items(added)
    if not isinstance(operation.op, ast.BitOr):
        return ()
    return tuple(added.elts) if isinstance(added, ast.Set) else (added.elt,)


def merged_entries(statement: ast.stmt) -> tuple[str, list[tuple[ast.expr, ast.expr]]]:
    """The dict that a statement makes anew with more in it, and what that is: keys with values.

    ``kept = {**kept, name: x}``, ``kept = dict(kept, name=x)``, ``kept = kept | {name: x}`` and
    ``kept |= {name: x}``; no name and nothing for other statements. The keys and values of a
    comprehension are those of one round.
    """
    if isinstance(statement, ast.AugAssign):
        is_merge = isinstance(statement.op, ast.BitOr)
        entries = list(written_entries(statement.value)) if is_merge else []
        return (ast.unparse(statement.target), entries) if entries else ("", [])
    if not isinstance(statement, ast.Assign):
        return "", []
    value, parts = statement.value, list[ast.expr]()
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        parts = [value.left, value.right]
    elif isinstance(value, ast.Dict):
        parts = [one for key, one in zip(value.keys, value.values, strict=True) if key is None]
    elif isinstance(value, ast.Call) and called_name(value) == "dict":
        parts = value.args[:1]
    texts = {ast.unparse(target) for target in bound_names(statement)}
    container = next((text for part in parts if (text := ast.unparse(part)) in texts), "")
    entries = [*written_entries(value)] if container else []
    if isinstance(value, ast.BinOp):
        entries = [entry for part in parts for entry in written_entries(part)]
    return (container, entries) if container and entries else ("", [])


def written_entries(value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The keys and values that a dict is written with, those of the dicts that it unpacks, too."""
    if isinstance(value, ast.DictComp):
        yield value.key, value.value
    elif isinstance(value, ast.Dict):
        for key, one in zip(value.keys, value.values, strict=True):
            yield from written_entries(one) if key is None else ((key, one),)
    elif isinstance(value, ast.Call) and called_name(value) == "dict":
        for keyword in value.keywords:
            name = ast.Constant(keyword.arg)
            given = written_entries(keyword.value)
            yield from given if keyword.arg is None else ((name, keyword.value),)


def _items(value: ast.expr) -> tuple[ast.expr, ...]:
    """Items that a list or a tuple is written with; the element of a comprehension."""
    if isinstance(value, (ast.List, ast.Tuple)):
        return tuple(value.elts)
    return (value.elt,) if isinstance(value, ast.ListComp) else ()


def _entries(argument: ast.expr) -> tuple[ast.expr, ...]:
    """The values that a dict is written with: ``{…}``, ``dict(zip(names, values))``."""
    if isinstance(argument, ast.Dict):
        return tuple(argument.values)
    if isinstance(argument, ast.DictComp):
        return (argument.value,)
    builds = called_name(argument) in ("dict", "zip") and isinstance(argument, ast.Call)
    return (argument,) if builds else ()


def accumulation(place: Place | None) -> Accumulation | None:
    """The sum that a statement adds to, and what it adds; None for other statements.

    ``total += loss``, ``total -= loss``, ``total = total + loss`` from either side, with a weight
    too where it is a variable (``mean = 0.9 * mean + 0.1 * loss``; an attribute is a state of its
    own), ``sums[key] = sums.get(key, 0) + loss``, ``total.add_(loss)``,
    ``total = torch.add(total, loss)``; a list that is added to
    (``kept += [x]``) is a container, no sum.
    Where the statement begins the sum as well (``total = loss if total is None else total +
    loss``), what it begins with is added, too.
    """
    return added_by(place.statement) if place is not None else None


def added_by(statement: ast.stmt) -> Accumulation | None:
    """The sum that a statement adds to, as `accumulation` returns it."""
    if _rebuilt(statement) is not None:
        return None
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, (ast.Add, ast.Sub)):
        return Accumulation(statement.target, statement.value)
    if isinstance(statement, ast.Assign):
        return _added_to_target(statement, statement.value)
    call = _result_of(statement)
    if isinstance(call, ast.Call) and adds_in_place(called_name(call)) and call.args:
        assert isinstance(call.func, (ast.Attribute, ast.Name))
        if isinstance(call.func, ast.Attribute):
            return Accumulation(call.func.value, call.args[0])
    return None


def _added_to_target(statement: ast.Assign, value: ast.expr) -> Accumulation | None:
    """The sum that a value is, or one of two: ``total = x if total is None else total + x``."""
    if isinstance(value, ast.BinOp):
        return _added_to_itself(statement, value)
    if isinstance(value, ast.Call):
        sum_called = _called_addition(value)
        return _added_to_itself(statement, sum_called) if sum_called is not None else None
    if not isinstance(value, ast.IfExp):
        return None
    for side, other in ((value.orelse, value.body), (value.body, value.orelse)):
        if _rebuilt(ast.Assign(targets=statement.targets, value=side)) is not None:
            return None
        sum_there = _added_to_target(statement, side)
        if sum_there is not None:
            is_new = not isinstance(other, ast.Constant)
            is_new = is_new and ast.unparse(other) != ast.unparse(sum_there.total)
            others = (*sum_there.others, *((other,) if is_new else ()))
            return Accumulation(sum_there.total, sum_there.value, others)
    return None


def _called_addition(call: ast.Call) -> ast.BinOp | None:
    """``a + b`` of ``torch.add(a, b)``, ``operator.add(a, b)`` and ``a.add(b)``; so of ``sub``."""
    operation = {"add": ast.Add, "sub": ast.Sub}.get(called_name(call))
    operands = list(call.args)
    if isinstance(call.func, ast.Attribute) and len(operands) == 1:
        operands.insert(0, call.func.value)
    if operation is None or len(operands) != 2:
        return None
    return ast.BinOp(left=operands[0], op=operation(), right=operands[1])


def _entry_asked_for(value: ast.expr) -> str:
    """An expression as written, or ``sums[key]`` of ``sums.get(key, 0)``."""
    function = value.func if isinstance(value, ast.Call) else None
    if isinstance(value, ast.Call) and value.args and isinstance(function, ast.Attribute):
        entry = f"{ast.unparse(function.value)}[{ast.unparse(value.args[0])}]"
        return entry if function.attr == "get" else ast.unparse(value)
    return ast.unparse(value)


def _added_to_itself(statement: ast.Assign, value: ast.BinOp) -> Accumulation | None:
    if not isinstance(value.op, (ast.Add, ast.Sub)):
        return None
    targets = {ast.unparse(target): target for target in bound_names(statement)}
    for side, other in ((value.left, value.right), (value.right, value.left)):
        weighted = [one for one in _factors(side) if isinstance(one, ast.Name)]
        for own in (side, *weighted):
            entry = _entry_asked_for(own)
            if entry in targets:
                return Accumulation(targets[entry], other)
    if isinstance(value.left, ast.BinOp):  # ``total + a + b``
        inner = _added_to_itself(statement, value.left)
        if inner is not None:
            return Accumulation(inner.total, inner.value, (*inner.others, value.right))
    return None


def is_moving_average(place: Place) -> bool:
    """Whether a statement weighs what a name had before, and adds to it."""
    return moving_average(place) is not None


def moving_average(place: Place) -> Accumulation | None:
    """The average that a statement moves, and what it adds to it; None for other statements.

    ``mean = 0.9 * mean + 0.1 * x``, also of an attribute or an entry.
    """
    statement = place.statement
    value = statement.value if isinstance(statement, ast.Assign) else None
    targets = {ast.unparse(target): target for target in bound_names(statement)}
    for one in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
        if not isinstance(one, ast.BinOp) or not isinstance(one.op, (ast.Add, ast.Sub)):
            continue
        for side, other in ((one.left, one.right), (one.right, one.left)):
            for part in _factors(side):
                if ast.unparse(part) in targets:
                    return Accumulation(targets[ast.unparse(part)], other)
    return None


def _factors(value: ast.expr) -> tuple[ast.expr, ...]:
    """What is weighted in a moving average: both sides of a product, and what is divided."""
    if not isinstance(value, ast.BinOp):
        return ()
    if isinstance(value.op, ast.Mult):
        return value.left, value.right
    return (value.left,) if isinstance(value.op, ast.Div) else ()


def grown_by_concatenation(place: Place | None) -> str:
    """``x`` of ``x = torch.cat((x, new))``; empty for other statements.

    Also by way of a name: ``longer = torch.cat((self.x, new))``, then ``self.x = longer``.
    """
    if place is None:
        return ""
    return enlarged_copy(place.statement) or _enlarged_through_name(place)


def grown_into_new(place: Place) -> str:
    """``x`` where a statement makes a tensor that ``x`` is copied into, and that is ``x`` then.

    ``longer = x.new_empty(…)``, then ``longer[:n] = x`` and ``x = longer``; else empty.
    """
    names = {target.id for target in bound_names(place.statement) if isinstance(target, ast.Name)}
    if not names or not own_calls(place.statement, *_OF_A_SHAPE):
        return ""
    copied = {
        ast.unparse(value)
        for node in ast.walk(place.scope)
        for target, value in _copies(node)
        if isinstance(target, ast.Subscript) and root_name(target) in names
    }
    for node in ast.walk(place.scope) if copied else ():
        for target, value in assigned(node):
            if isinstance(value, ast.Name) and value.id in names and ast.unparse(target) in copied:
                return ast.unparse(target)
    return ""


def _copies(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a node copies values into, and the values: ``y[:n] = x`` and ``y[:n].copy_(x)``."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in bound_names(node))
    is_copy = isinstance(node, ast.Call) and called_name(node) == "copy_"
    if is_copy and isinstance(node.func, ast.Attribute):  # type: ignore[attr-defined]
        yield from ((node.func.value, one) for one in node.args[:1])  # type: ignore[attr-defined]


def _enlarged_through_name(place: Place) -> str:
    """What a statement joins with more, where its function assigns the result to that very thing.

    A part of the result is none: that may be so much and no more.
    """
    names = {target.id for target in bound_names(place.statement) if isinstance(target, ast.Name)}
    joined = {
        ast.unparse(node)
        for call in calls_in(place.statement, *JOINING)
        for argument in arguments(call)
        for node in ast.walk(argument)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))
    }
    bound = [pair for node in ast.walk(place.scope) for pair in assigned(node)] if names else []
    # ``past = self.state.get("past")``, and then ``torch.cat((past, new))``
    joined |= {_stored_at(value) for target, value in bound if ast.unparse(target) in joined}
    for target, value in bound:
        if isinstance(value, ast.Name) and value.id in names and ast.unparse(target) in joined:
            return ast.unparse(target)
    return ""


def _stored_at(value: ast.expr | None) -> str:
    """An attribute or an entry, as it is written where it is read; empty for other values."""
    if isinstance(value, (ast.Attribute, ast.Subscript)):
        return ast.unparse(value)
    is_entry = isinstance(value, ast.Call) and called_name(value) == "get" and value.args
    if not is_entry or not isinstance(value.func, ast.Attribute):  # type: ignore[union-attr]
        return ""
    return f"{ast.unparse(value.func.value)}[{ast.unparse(value.args[0])}]"  # type: ignore[union-attr]


def enlarged_copy(statement: ast.stmt) -> str:
    """``x`` of a statement that replaces it by a larger copy; empty for other statements.

    Joined with others (``x = torch.stack((x, new))``), padded, or ``x = np.append(x, new)``. Not
    ``parts = torch.cat(parts)``, where the name was a list's.
    """
    texts = {ast.unparse(target) for target in bound_names(statement)}
    texts |= set(_entries_set(statement))
    for call in own_calls(statement, *JOINING, "append", "pad"):
        if called_name(call) == "append" and len(call.args) < 2:
            continue  # a list's
        joins_list = called_name(call) in JOINING
        for argument in arguments(call):
            for node in ast.walk(argument):
                is_nameable = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))
                is_list = joins_list and node is argument
                if is_nameable and not is_list and ast.unparse(node) in texts:
                    return ast.unparse(node)
    return ""


def _entries_set(statement: ast.stmt) -> Iterator[str]:
    """``state['keys']`` of ``state.update(keys=…)``, and of the same with a dictionary."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if called_name(call or statement) != "update" or not isinstance(call, ast.Call):
        return
    mapping = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    keys: list[ast.expr | None] = [
        ast.Constant(one.arg) for one in call.keywords if one.arg is not None
    ]
    for given in call.args:
        keys += given.keys if isinstance(given, ast.Dict) else []
    yield from (f"{mapping}[{ast.unparse(one)}]" for one in keys if mapping and one is not None)


def joins_tensors(statement: ast.stmt) -> bool:
    """True if a statement's own calls make a larger tensor of several, or of one by padding."""
    for call in own_calls(statement):
        if called_name(call) in JOINING | {"pad"}:
            return True
        if called_name(call) == "append" and len(call.args) > 1:  # numpy's
            return True
    return False


def copies_collection(place: Place) -> bool:
    """True if a statement copies all of a collection: ``[x.clone() for x in xs]``, ``deepcopy``.

    One ``x.clone()`` in a loop copies what the loop makes, as often as it runs.
    """
    for call in own_calls(place.statement, *COPYING):
        name = qualified_name(place, call.func)
        if called_name(call) == "deepcopy" or name.startswith("copy."):
            return True
        within = [n for n in ast.walk(place.statement) if isinstance(n, COMPREHENSIONS)]
        if any(call in calls_in(comprehension) for comprehension in within):
            return True
    return False


def is_cut_off(place: Place, value: ast.expr) -> bool:
    """True if an expression has no graph by its own words: ``x.mean().detach()``, ``x.item()``.

    A name is what every assignment to it in the same function says.
    """
    if isinstance(value, ast.Name):
        values = [
            node.value
            for node in ast.walk(place.scope)
            if isinstance(node, ast.Assign) and value.id in map(ast.unparse, bound_names(node))
        ]
        return bool(values) and all(_ends_graph(one) for one in values)
    return _ends_graph(value)


def _ends_graph(value: ast.expr) -> bool:
    """True if the last calls of a chain cut the graph off; ``f(x.detach())`` may build a new one.

    What is called on a detached tensor (``x.detach().clone()``) has no graph either, as long as no
    other tensor takes part.
    """
    while isinstance(value, (ast.Call, ast.Attribute, ast.Subscript)):
        if isinstance(value, ast.Call):
            if isinstance(value.func, ast.Name):
                return value.func.id in NUMBER_FUNCTIONS | TEXT_FUNCTIONS
            if not isinstance(value.func, ast.Attribute):
                return False
            if value.func.attr in CUTTING:
                return True
            if value.args and not all(isinstance(a, ast.Constant) for a in value.args):
                return False
            value = value.func.value
        elif isinstance(value, ast.Attribute) and value.attr == "data":
            return True
        else:
            value = value.value
    return False


def is_partly_cut(value: ast.AST) -> bool:
    """True if some part of a value is cut off its graph: ``loss.item() * n``.

    A length is no such part: ``loss / len(batch)`` has the graph of the loss.
    """
    to_number = NUMBER_FUNCTIONS - {"len"}
    return any(
        called_name(call) in (CUTTING if isinstance(call.func, ast.Attribute) else to_number)
        for call in calls_in(value)
    )


def last_name(expression: str) -> str:
    """``outputs`` of ``self.outputs``."""
    return expression.split("[", maxsplit=1)[0].rsplit(".", maxsplit=1)[-1]


def emptied_by(place: Place, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The method of the class around a place that only empties things, ``name`` among them.

    One that must be given something is for whoever has it to call, as callbacks of a library are.
    """
    class_ = place.class_
    for node in class_.body if class_ is not None else ():
        if isinstance(node, FUNCTIONS) and node.name != "__init__" and not _needs_more(node):
            emptied = [_emptied_names(statement) for statement in node.body if not _idle(statement)]
            if emptied and all(emptied) and any(name in names for names in emptied):
                return node
    return None


def _needs_more(method: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> bool:
    """Whether a method cannot be called without arguments."""
    spec = method.args
    needed = len(spec.posonlyargs) + len(spec.args) - len(spec.defaults)
    return needed > 1 or any(default is None for default in spec.kw_defaults)


def _idle(statement: ast.stmt) -> bool:
    """A docstring, ``pass``, or the same done by the parent class."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant) or "super()" in ast.unparse(statement)
    return isinstance(statement, ast.Pass)


def _emptied_names(statement: ast.stmt) -> set[str]:
    """``preds`` and ``target`` of ``self.preds, self.target = [], []``."""
    if isinstance(statement, ast.Expr) and called_name(statement.value) == "clear":
        call = statement.value
        assert isinstance(call, ast.Call)
        return {last_name(ast.unparse(call.func).rsplit(".", 1)[0])}
    if isinstance(statement, ast.Assign) and _all_empty(statement.value):
        return {last_name(ast.unparse(target)) for target in bound_names(statement)}
    return set()


def _all_empty(value: ast.expr) -> bool:
    if isinstance(value, ast.Tuple) and value.elts:
        return all(_all_empty(item) for item in value.elts)
    return _is_empty(value)


def _is_empty(value: ast.expr) -> bool:
    """True if an expression is an empty list, tuple or dict as it is written."""
    if isinstance(value, (ast.List, ast.Tuple)):
        return not value.elts
    return isinstance(value, ast.Dict) and not value.keys


def checks_for_key(place: Place, container: str) -> bool:
    """True if the function asks ``key in container`` first: then the container is a cache.

    Also where it reads the entry and is ready for a ``KeyError``. Python asks for a mapping's own
    ``__missing__``.
    """
    if place.function is not None and place.function.name == "__missing__" and container == "self":
        return True
    for node in ast.walk(place.scope):
        container_read: ast.expr | None = None
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            container_read = node.comparators[0]
        elif called_name(node) in ("get", "setdefault"):
            function = node.func if isinstance(node, ast.Call) else None
            container_read = function.value if isinstance(function, ast.Attribute) else None
        if container_read is not None and ast.unparse(container_read) == container:
            return True
        if any(_reads_entry(one, container) for one in _nodes_on_trial(node)):
            return True
    return False


def _reads_entry(node: ast.AST, container: str) -> bool:
    is_read = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    return is_read and ast.unparse(node.value) == container  # type: ignore[attr-defined]


def _nodes_on_trial(node: ast.AST) -> Iterator[ast.AST]:
    """What is done where a missing key is expected: ``try: … except KeyError: …``."""
    body: Sequence[ast.stmt] = ()
    if isinstance(node, ast.Try):
        expected = [one.type for one in node.handlers if one.type is not None]
        body = node.body if any(map(_is_of_key, expected)) else ()
    elif isinstance(node, ast.With):
        calls = [one.context_expr for one in node.items if called_name(one.context_expr)]
        expected = [
            argument
            for call in calls
            if called_name(call) == "suppress" and isinstance(call, ast.Call)
            for argument in call.args
        ]
        body = node.body if any(map(_is_of_key, expected)) else ()
    for statement in body:
        yield from ast.walk(statement)


def _is_of_key(kind: ast.expr) -> bool:
    """Whether an exception's type, or one of several, is that of a key that is not there."""
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(ast.unparse(one) in ("KeyError", "LookupError") for one in kinds)


def memoizer(place: Place | None) -> ast.expr | None:
    """The ``lru_cache`` or ``cache`` decorator of the function that a line belongs to.

    Also one by another name: ``memoize = lru_cache(maxsize=None)``.
    """
    if place is None:
        return None
    nodes = [place.statement, *reversed(place.around)]
    for node in [n for n in nodes if isinstance(n, FUNCTIONS)]:
        for decorator in node.decorator_list:
            bare = decorator.func if isinstance(decorator, ast.Call) else decorator
            if _memoizes(bare) or any(map(_memoizes, _named_in_file(place, bare))):
                return decorator
    return None


def _memoizes(function: ast.expr) -> bool:
    called = function.func if isinstance(function, ast.Call) else function
    return last_name(ast.unparse(called)) in ("lru_cache", "cache")


def _named_in_file(place: Place, name: ast.expr) -> Iterator[ast.expr]:
    """What the file itself, and none of its functions, assigns to a name."""
    for node in place.program.tree.body if isinstance(name, ast.Name) else ():
        for target, value in assigned(node):
            if value is not None and ast.unparse(target) == ast.unparse(name):
                yield value


def is_autograd_function(place: Place | None) -> bool:
    """True if a place is in a class derived from ``torch.autograd.Function``.

    Also by way of other classes of the file.
    """
    classes = [place.class_] if place is not None and place.class_ is not None else []
    for class_ in classes:
        bases = {last_name(ast.unparse(base)) for base in class_.bases}
        if "Function" in bases:
            return True
        named = place.program.classes() if place is not None and bases else []
        classes += [one for one in named if one.name in bases and one not in classes]
    return False


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def arguments_named(programs: Iterable[Program], name: str) -> Iterator[tuple[Place, ast.expr]]:
    """Values that calls are given under a name, each with the statement of its call.

    And those that entries of a dictionary have, which a call may be given, or a text in JSON.
    """
    for program in programs:
        for node in program.nodes:
            for value in _values_named(node, name):
                place = program.place(node if isinstance(node, ast.Call) else value)
                if place is not None:
                    yield place, value


def _values_named(node: ast.AST, name: str) -> Iterator[ast.expr]:
    if isinstance(node, ast.keyword) and node.arg == name:
        yield node.value
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == name:
                yield value
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == _FROM_JSON and node.args:
        text = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
        if isinstance(text, str) and name in text:
            yield from _values_in_json(text, name, node.args[0].lineno)


def _values_in_json(text: str, name: str, first_line: int) -> Iterator[ast.expr]:
    """Values of a name in a text, as constants at its line; none of a text that is no JSON."""
    named: list[object] = []

    def note(pairs: list[tuple[str, object]]) -> None:
        named.extend(value for key, value in pairs if key == name)

    try:
        json.loads(text, object_pairs_hook=note)
    except ValueError:
        return
    lines = (at for at, line in enumerate(text.splitlines()) if f'"{name}"' in line)
    for value, at in zip(named, lines, strict=False):
        if value is None or isinstance(value, (bool, int, float, str)):
            yield ast.Constant(value, lineno=first_line + at, col_offset=0)


def alias_of(place: Place, target: str) -> Place | None:
    """The earlier statement of the same function that gives ``target`` another local name."""
    for node in ast.walk(place.scope):
        if isinstance(node, ast.Assign) and node.lineno < place.line:
            plain = any(isinstance(t, ast.Name) for t in bound_names(node))
            if plain and ast.unparse(node.value) == target:
                return place.program.place(node)
    return None


def read_by_itself(place: Place) -> Iterator[tuple[str, list[ast.expr]]]:
    """Names and attributes that a statement binds to a call that reads them, and where it does."""
    statement = place.statement
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
        return
    inside = [n for call in calls_in(statement.value) for n in ast.walk(call)]
    nodes = {id(node): node for node in inside if isinstance(node, ast.expr)}
    for target in bound_names(statement):
        name = ast.unparse(target)
        reads = [node for node in nodes.values() if reads_name(node, name)]
        if reads:
            yield name, reads


def reads_name(node: ast.AST, name: str) -> bool:
    """True if a node is a name or an attribute of that text, and read."""
    if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
        return False
    return ast.unparse(node) == name


def without_casts(value: ast.expr | None) -> ast.expr | None:
    """A value without the calls that give it another type: ``table`` of ``table.float()``."""
    while (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in CASTING
    ):
        value = value.func.value
    return value


def module_itself(value: ast.expr) -> ast.expr:
    """A module without calls that return it: ``VAE()`` of ``VAE().to(device).eval()``."""
    while (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in SAME_MODULE
    ):
        value = value.func.value
    return value
