"""What a variable of the user's source may hold, and what is done with it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from memprof.source_code.dataflow import flow_into, flow_of
from memprof.source_code.idioms import is_cut_off, keyword, optimizers_made
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    assigned,
    bound_names,
    called_name,
    calls_in,
)
from memprof.source_code.verbs import (
    FACTORIES,
    NUMBER_FUNCTIONS,
    SAME_VALUES,
    TEXT_FUNCTIONS,
    TO_NUMBER,
)

__all__ = [
    "asks_for_gradients",
    "calls_by_name",
    "goes_backward",
    "has_no_graph",
    "is_fresh_tensor",
    "is_new_tensor",
    "is_object",
    "is_python_number",
    "is_raised",
    "is_reduction",
    "last_binding",
    "returned_by",
    "starts_backward",
    "survives_call",
    "takes_no_gradient",
    "trains_besides",
    "used_as_tensor",
    "values_of",
]

_LOADER = "DataLoader"
_PREPARING = ("prepare", "prepare_data_loader", "setup_dataloaders")
"""Methods of accelerate and Lightning Fabric that return the loaders that they are given."""
_GOING_THROUGH = ("enumerate", "islice", "tqdm", "track")
"""What is around a loader where a loop goes through it."""


def is_fresh_tensor(place: Place, name: str, but: ast.stmt) -> bool:
    """True if all that a name or attribute is bound to, by other statements than one, is fresh.

    So its value is a tensor, at the beginning at least. Attributes go by their last name.
    """
    values = list(values_of(place, name, but))
    return bool(values) and all(is_new_tensor(value) for value in values)


def takes_no_gradient(programs: Sequence[Program], place: Place, call: ast.Call) -> bool:
    """True if nothing that a call is given has a graph or takes a gradient, as far as is known."""
    if asks_for_gradients(programs):
        return False
    arguments = [*call.args, *(one.value for one in call.keywords)]
    return all(has_no_graph(place, value) for value in arguments)


def asks_for_gradients(programs: Sequence[Program]) -> bool:
    """True if a statement of the programs asks for the gradient of a tensor that it names."""
    return any(_asks_for_gradient(node) for program in programs for node in program.nodes)


def trains_besides(programs: Sequence[Program], place: Place, call: ast.Call) -> bool:
    """True if every backward pass of the function starts from what another, trained model made.

    That is one whose parameters an optimizer is given; so there is a graph without ``call``'s.
    """
    models = {
        ast.unparse(parameters_call.func.value).rpartition(".")[2]
        for optimizer_call, _ in optimizers_made(programs)
        for parameters_call in calls_in(optimizer_call, "parameters")
        if isinstance(parameters_call.func, ast.Attribute)
    }
    models.discard(called_name(call))
    starts = calls_in(place.scope, "backward")
    return bool(starts) and all(models & set(_names_called(place, start)) for start in starts)


def _names_called(place: Place, start: ast.expr) -> Iterator[str]:
    """The last names of all that is called for a value, through the names it is made of."""
    waiting: list[ast.AST] = [start]
    names_done: set[str] = set()
    while waiting:
        node = waiting.pop()
        yield from map(called_name, calls_in(node))
        names_read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - names_done
        names_done |= names_read
        for name in names_read:
            waiting += [value for value in values_of(place, name) if value is not None]


def has_no_graph(place: Place, value: ast.expr) -> bool:
    """True if a value is a new tensor, a number, a batch of a loader, or cut off from its graph."""
    if isinstance(value, ast.Constant) or is_new_tensor(value) or is_cut_off(place, value):
        return True
    if not isinstance(value, ast.Name):
        return False
    values = list(values_of(place, value.id))
    whole = [one for one in values if one is not None]
    batches = len(values) - len(whole)
    if batches != len(list(_batches(place, value.id))):
        return False
    return bool(values) and all(is_new_tensor(one) for one in whole)


def _batches(place: Place, name: str) -> Iterator[ast.stmt]:
    """Loops of the function over a ``DataLoader`` that bind a name."""
    for node in ast.walk(place.scope):
        if not isinstance(node, (ast.For, ast.AsyncFor)):
            continue
        if name not in map(ast.unparse, bound_names(node)):
            continue
        iterated = node.iter
        while isinstance(iterated, ast.Call) and called_name(iterated) in _GOING_THROUGH:
            if not iterated.args:
                break
            iterated = iterated.args[0]
        made = {called_name(one) for one in _everywhere(place, ast.unparse(iterated))}
        if _LOADER in made and made <= {_LOADER, *_PREPARING}:
            yield node


def _everywhere(place: Place, name: str) -> list[ast.expr]:
    """All values assigned to a name or attribute of that last name anywhere in the file."""
    last = name.rpartition(".")[2]
    nodes = [node for node in place.program.nodes if isinstance(node, ast.Assign)]
    return [
        node.value
        for node in nodes
        if any(ast.unparse(one).rpartition(".")[2] == last for one in bound_names(node))
    ]


def values_of(place: Place, name: str, but: ast.stmt | None = None) -> Iterator[ast.expr | None]:
    """Values that a name is bound to in its function, an attribute in the file; None: unknown.

    What the function does not bind is a variable of the function around it, or of the file.
    """
    if "." in name:
        yield from _bound_within(place.program.tree, name, but)
        return
    functions = [one for one in reversed(place.around) if isinstance(one, FUNCTIONS)]
    for scope in [*functions, place.program.tree]:
        is_own = scope is place.scope
        within = _bound_within(scope, name, but, outside_functions=not is_own)
        bound = [*_given(scope, name), *within]
        yield from bound
        if bound or (is_own and name in map(ast.unparse, bound_names(but or ast.Pass()))):
            return


def calls_by_name(programs: Sequence[Program], method: str) -> Iterator[tuple[ast.Call, Place]]:
    """Calls of a method by a name that it was bound to, each with its statement.

    ``add(group)``, where ``add = optimizer.add_param_group``.
    """
    for program in programs:
        targets = [
            target
            for node in program.nodes
            for target, value in assigned(node)
            if _is_method(value, method)
        ]
        names = {ast.unparse(target).rpartition(".")[2] for target in targets}
        for call in calls_in(program.tree, *names) if names else ():
            place = program.place(call)
            values = values_of(place, ast.unparse(call.func)) if place is not None else ()
            if place is not None and any(_is_method(value, method) for value in values):
                yield call, place


def _is_method(value: ast.expr | None, method: str) -> bool:
    return isinstance(value, ast.Attribute) and value.attr == method


def returned_by(place: Place, call: ast.AST) -> list[tuple[Place, ast.expr]]:
    """What a function of the file returns that a call is of, each with its statement; else empty.

    ``scaled(x)``, or ``self.scaled(x)`` where the class around, or one alone, has such a method.
    """
    if not isinstance(call, ast.Call):
        return []
    is_method = isinstance(call.func, ast.Attribute)
    if is_method and ast.unparse(call.func).partition(".")[0] != "self":
        return []
    functions = place.program.functions(called_name(call))
    if is_method and len(functions) > 1 and place.class_ is not None:
        functions = [one for one in functions if one in place.class_.body]
    if len(functions) != 1:
        return []
    return [
        (at, node.value)
        for node in ast.walk(functions[0])
        if isinstance(node, ast.Return) and node.value is not None
        if (at := place.program.place(node)) is not None and at.function is functions[0]
    ]


def _given(scope: ast.AST, name: str) -> Iterator[None]:
    """None where a parameter of a function has a name: the caller says what it is."""
    if isinstance(scope, FUNCTIONS):
        spec = scope.args
        every = (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg)
        yield from (None for one in every if one is not None and one.arg == name)


def _bound_within(
    scope: ast.AST, name: str, but: ast.stmt | None, *, outside_functions: bool = False
) -> Iterator[ast.expr | None]:
    last = name.rpartition(".")[2]
    for node in _binding_nodes(scope, outside_functions).get(last, ()):
        if node is not but:
            yield from _bound_by(node, name)


@lru_cache(maxsize=1024)  # asked for one name after the other
def _binding_nodes(scope: ast.AST, outside_functions: bool) -> dict[str, list[ast.AST]]:
    """The nodes of a function or a file that bind something, by the last name of that."""
    by_name: dict[str, list[ast.AST]] = {}
    for node in _outside_functions(scope) if outside_functions else ast.walk(scope):
        for name in dict.fromkeys(_last_names_bound(node)):
            by_name.setdefault(name, []).append(node)
    return by_name


def _last_names_bound(node: ast.AST) -> Iterator[str]:
    """Names that `_bound_by` may say something of."""
    targets: Iterable[ast.AST] = bound_names(node)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (one.asname or one.name for one in node.names)
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        yield from node.names
    elif isinstance(node, (ast.NamedExpr, ast.comprehension)):
        targets = ast.walk(node.target)
    elif isinstance(node, ast.Call) and called_name(node) == "register_buffer":
        given = node.args[:1]
        yield from (str(one.value) for one in given if isinstance(one, ast.Constant))
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id
        elif isinstance(target, ast.Attribute):
            yield target.attr


def _outside_functions(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or a file that lie in no function or class within it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop(0)
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield node
            waiting += ast.iter_child_nodes(node)


def _bound_by(node: ast.AST, name: str) -> Iterator[ast.expr | None]:
    """Values that a node binds a name to; None where that is no assignment of its own."""
    last = name.rpartition(".")[2]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (None for one in node.names if (one.asname or one.name) == last)
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        yield from (None for one in node.names if one == last)
    if isinstance(node, (ast.NamedExpr, ast.comprehension)):
        yield from (None for one in ast.walk(node.target) if _is(one, name, last))
    if isinstance(node, ast.Call) and called_name(node) == "register_buffer":
        arguments = node.args[:1]
        if arguments and isinstance(arguments[0], ast.Constant) and arguments[0].value == last:
            yield from node.args[1:2]
    values = {id(target): value for target, value in assigned(node)}
    for target in bound_names(node):
        if _is(target, name, last):
            value = values.get(id(target)) if isinstance(node, ast.Assign) else None
            apart = isinstance(node, ast.Assign) and target not in node.targets
            yield None if apart and value is getattr(node, "value", None) else value


def _is(target: ast.AST, name: str, last: str) -> bool:
    if "." in name:
        return isinstance(target, ast.Attribute) and target.attr == last
    return isinstance(target, ast.Name) and target.id == name


def is_new_tensor(value: ast.expr | None) -> bool:
    """``torch.zeros(…)``, on its way to a device or a shape, too."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    if value.func.attr in SAME_VALUES:
        return is_new_tensor(value.func.value)
    of_torch = ast.unparse(value.func.value) == "torch"
    return of_torch and value.func.attr in FACTORIES and not _requires(value)


def _requires(call: ast.Call) -> bool:
    setting = keyword(call, "requires_grad")
    has_unpacked = any(one.arg is None for one in call.keywords)
    return has_unpacked or not (setting is None or _is_false(setting))


def _is_false(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def _asks_for_gradient(node: ast.AST) -> bool:
    """``x.requires_grad_()``, ``requires_grad=True``, and reading ``.grad`` oneself."""
    if isinstance(node, ast.Call) and called_name(node) == "requires_grad_":
        return not (node.args and _is_false(node.args[0]))
    if isinstance(node, ast.keyword):
        return node.arg == "requires_grad" and not _is_false(node.value)
    if isinstance(node, ast.Assign):
        targets = [one for one in bound_names(node) if getattr(one, "attr", "") == "requires_grad"]
        return bool(targets) and not _is_false(node.value)
    if isinstance(node, ast.Attribute) and node.attr == "Parameter":
        return True
    if isinstance(node, ast.Attribute):
        return node.attr == "grad" and isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Name) and node.id == "Parameter"


_OF_TENSORS = frozenset(("T", "data", "device", "dtype", "grad", "grad_fn", "mT", "ndim", "shape"))
"""Attributes that tensors have as well; others are read of objects that a model returns."""


def starts_backward(place: Place, name: str) -> bool:
    """True if the function calls ``name.backward()`` without a gradient: it is one number then."""
    calls = calls_in(place.scope, "backward")
    return any(
        not call.args
        and all(keyword.arg not in ("gradient", None) for keyword in call.keywords)
        and isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) == name
        for call in calls
    )


def is_reduction(value: ast.AST | None) -> bool:
    """``x.mean()``, ``x.sum()``: without a dimension the result is one number."""
    bare = isinstance(value, ast.Call) and not value.args and not value.keywords
    return bare and called_name(value) in ("mean", "sum") if value is not None else False


def is_python_number(value: ast.expr, programs: Sequence[Program]) -> bool:
    """True if a value is no tensor: ``loss.item()``, or a call of what returns nothing else."""
    name_called = called_name(value)
    if _returns_number(value):
        return True
    functions = [f for program in programs for f in program.functions(name_called)]
    returned = [
        node.value
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Return)
    ]
    return bool(name_called and returned) and all(
        one is not None and _returns_number(one) for one in returned
    )


def _returns_number(value: ast.expr) -> bool:
    """True if an expression is a constant, ``x.item()``, or a builtin's number: ``float(x)``.

    ``x.float()`` is a tensor of another type.
    """
    if not isinstance(value, ast.Call):
        return isinstance(value, ast.Constant)
    if isinstance(value.func, ast.Attribute):
        return value.func.attr in TO_NUMBER
    return called_name(value) in NUMBER_FUNCTIONS | TEXT_FUNCTIONS


def last_binding(place: Place, name: ast.Name) -> Place | None:
    """The last statement of the function, before this one, that binds a name."""
    latest: Place | None = None
    for node in ast.walk(place.scope):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.lineno < place.line:
            binds = any(isinstance(t, ast.Name) and t.id == name.id for t in bound_names(node))
            if binds and (latest is None or node.lineno > latest.line):
                latest = place.program.place(node)
    return latest


def is_object(place: Place, value: ast.expr) -> bool:
    """True if the function reads attributes or entries of a value, or goes through it.

    So it does with what a model returns that is no tensor: an object, a dict, a tuple.
    """
    names = {ast.unparse(target) for target in bound_names(place.statement)} | {ast.unparse(value)}
    callees = {id(call.func) for call in calls_in(place.scope)}
    for node in ast.walk(place.scope):
        inner = getattr(node, "value", None)
        if any(ast.unparse(one) in names for one in _taken_apart(node)):
            return True
        if not isinstance(inner, ast.expr) or ast.unparse(inner) not in names:
            continue
        if isinstance(node, ast.Attribute) and id(node) not in callees:
            return node.attr not in _OF_TENSORS
        key = node.slice if isinstance(node, ast.Subscript) else None
        if isinstance(key, ast.Constant) and isinstance(key.value, (str, int)):
            return True
    return False


def _taken_apart(node: ast.AST) -> list[ast.expr]:
    """Expressions that a node goes through one by one: in a loop, in ``zip``, into names."""
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        return [node.iter]
    if isinstance(node, ast.Starred):
        return [node.value]
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Tuple) for t in node.targets):
        return [node.value]
    if isinstance(node, ast.Call) and called_name(node) in ("enumerate", "list", "tuple", "zip"):
        return node.args
    return []


def goes_backward(place: Place, text: str, programs: Sequence[Program] = ()) -> bool:
    """True if a backward pass may start from what an expression names, or from what comes of it."""
    return flow_of(programs, place, text, through=True).learned


def used_as_tensor(place: Place, text: str, programs: Sequence[Program]) -> bool:
    """True if the program may do with what a name holds what it cannot do with a number."""
    return flow_of(programs, place, text, through=False).more_than_shown


def survives_call(
    place: Place, argument: ast.expr, programs: Sequence[Program], *, number: bool
) -> bool:
    """True if the function that a call hands a tensor to can do with a detached one, or a number.

    Without a graph nothing can be learned from it; a number is no tensor.
    """
    if flow_into(programs, place, argument, through=True).learned:
        return False
    return not (number and flow_into(programs, place, argument, through=False).more_than_shown)


def is_raised(place: Place, text: str, programs: Sequence[Program] = ()) -> bool:
    """True if an exception that a name holds may be raised, or asked for more than its text."""
    return flow_of(programs, place, text, through=False).more_than_shown
