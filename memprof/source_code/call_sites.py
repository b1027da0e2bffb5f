"""Calls that hand a value to the function that keeps it, and where a function hands it on."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.idioms import last_name, module_itself
from memprof.source_code.program import (
    Place,
    Program,
    assigned,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    root_name,
)
from memprof.source_code.values import is_python_number
from memprof.source_code.verbs import FILLING

__all__ = ["Handed", "calls_of", "handed_over", "handed_to", "hands_numbers", "parameters_given"]

_DEEPEST = 3
"""Functions that hand their own parameter on, from the user's call down to what keeps it."""

_BY_OBJECT = ("__call__", "forward")
"""Methods that run where an object is called."""

_OF_CONTAINERS = FILLING | {"get", "set"}
"""Names of containers' own methods: calls elsewhere may be of anything."""

Handed = tuple[Place, ast.expr]
"""The statement of a call, and the argument in it."""


@dataclass(frozen=True, slots=True)
class _Search:
    """The calls among which a value's way into a function is looked for."""

    programs: Sequence[Program]
    first: frozenset[int]
    """Identities of the functions whose calls come first."""
    owners: Collection[str]
    """Names by which the object whose method is called may be known."""
    method: str = ""
    """The bound method that is handed over, ``Class.name``, where that is known."""


def handed_over(
    place: Place | None,
    value: ast.expr | None,
    programs: Sequence[Program],
    *,
    first: Sequence[ast.AST] = (),
    owners: Collection[str] = (),
    method: str = "",
) -> Handed | None:
    """The call that a kept value comes from, where it is a parameter of the function around.

    Of ``meter.update(loss)`` for ``self.total += value`` in ``update``. A call that hands over the
    ``method`` of that name comes first, then calls with more than a number, then those in the
    functions ``first``. None where the value is made right there, or no call is found.
    """
    search = _Search(programs, frozenset(map(id, first)), owners, method)
    argument: Handed | None = None
    for _ in range(_DEEPEST):
        outer = _call_of(search, place, value)
        if outer is None:
            break
        argument = outer
        place, value = argument
    return argument


def hands_numbers(place: Place | None, value: ast.expr | None, programs: Sequence[Program]) -> bool:
    """Whether a call hands a number, ``loss.item()``, where others hand the value to be kept."""
    search = _Search(programs, frozenset(), ())
    return any(is_python_number(one, programs) for _, one in _handed(search, place, value))


def _call_of(search: _Search, place: Place | None, value: ast.expr | None) -> Handed | None:
    return next(_handed(search, place, value), None)


def _handed(search: _Search, place: Place | None, value: ast.expr | None) -> Iterator[Handed]:
    """The calls that hand a value to the function around, where it is one of its parameters."""
    function = place.function if place is not None else None
    if place is None or function is None or not isinstance(value, ast.Name):
        return
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    keywords = [a.arg for a in function.args.kwonlyargs]
    method = place.class_ is not None and names[:1] in (["self"], ["cls"])
    if value.id not in [*names[method:], *keywords]:
        return
    name_called = function.name
    if name_called == "__init__" and place.class_ is not None:
        name_called = place.class_.name
    position = names.index(value.id) - method if value.id in names else -1
    yield from _arguments(search, place, name_called, position, value.id)


def _arguments(
    search: _Search, place: Place, name_called: str, position: int, name: str
) -> Iterator[Handed]:
    """Calls of ``name_called`` with arguments, those in the functions that come first in front."""
    names = {name_called}
    if name_called in _BY_OBJECT and place.class_ is not None:
        names |= _bound_to(place.class_.name, search.programs)
    calls = [
        (call, where)
        for program in search.programs
        for call in calls_in(program.tree, *names)
        if (where := program.place(call)) is not None and where.scope is not place.scope
    ]
    if name_called in _OF_CONTAINERS:
        calls = [(call, where) for call, where in calls if _is_of(search, place, call, where)]
    calls.sort(key=lambda pair: id(pair[1].scope) not in search.first)
    handed = []
    for call, where in calls:
        values = [k.value for k in call.keywords if k.arg == name]
        if 0 <= position < len(call.args):
            values += [call.args[position]]
        if values and not isinstance(values[0], (ast.Constant, ast.Starred)):
            handed.append((where, values[0]))
    handed.sort(key=lambda one: is_python_number(one[1], search.programs))  # what keeps no memory
    yield from sorted(handed, key=lambda one: not _may_be_method(one[0], one[1], search.method))


def _bound_to(class_name: str, programs: Sequence[Program]) -> set[str]:
    """The last names of variables and attributes that are bound to new objects of a class.

    ``self.sim = Similarity(0.05)``: a module is called by that name, ``self.sim(x, y)``.
    """
    return {
        last_name(ast.unparse(target))
        for program in programs
        if class_name in program.text
        for node in program.nodes
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target, value in assigned(node)
        if value is not None
        and isinstance(target, (ast.Attribute, ast.Name))
        and called_name(module_itself(value)) == class_name
    }


def _may_be_method(where: Place, value: ast.expr, method: str) -> bool:
    """Whether an argument may be a bound method: ``self.name`` in its class, or ``x.name``."""
    class_, _, name = method.rpartition(".")
    if not isinstance(value, ast.Attribute) or value.attr != name:
        return False
    of_self = isinstance(value.value, ast.Name) and value.value.id == "self"
    own = where.class_.name if where.class_ is not None else ""
    return not of_self or own == class_.rpartition(".")[2]


def _is_of(search: _Search, place: Place, call: ast.Call, where: Place) -> bool:
    """True if a call is of the method around ``place``: by ``self``, or by a name that holds it."""
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    if receiver is None:
        return place.class_ is None
    text = ast.unparse(receiver)
    if text in ("self", "cls"):
        return where.class_ is place.class_
    return text.rsplit(".", maxsplit=1)[-1] in search.owners


def handed_to(place: Place) -> Iterator[tuple[Place, ast.expr]]:
    """Later statements of a function that hand on what a statement bound, to what stores it.

    Those are calls of functions of the same file that put the parameter into a container, and
    containers that grow by the name itself; each with the argument.
    """
    names = {t.id for t in bound_names(place.statement) if isinstance(t, ast.Name)}
    for node in ast.walk(place.scope):
        if not isinstance(node, ast.stmt) or node.lineno <= place.line:
            continue
        if not isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)):
            continue
        where = place.program.place(node)
        for call in calls_in(node):
            for position, argument in enumerate(call.args):
                if not isinstance(argument, ast.Name) or argument.id not in names:
                    continue
                grows = called_name(call) in FILLING
                if where is not None and (grows or _keeps(place.program, call, position)):
                    yield where, argument


def _keeps(program: Program, call: ast.Call, position: int) -> bool:
    """True if a function of this file stores its argument at ``position`` in a container."""
    method = isinstance(call.func, ast.Attribute)
    for function in program.functions(called_name(call)):
        arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if method and arguments[:1] in (["self"], ["cls"]):
            arguments = arguments[1:]
        if position >= len(arguments):
            continue
        if any(arguments[position] in _stored_names(node) for node in ast.walk(function)):
            return True
    return False


def _stored_names(node: ast.AST) -> set[str]:
    """The names that a node puts into a container, an item or an attribute."""
    if isinstance(node, ast.Call) and called_name(node) in FILLING:
        return set().union(*map(loaded_names, node.args))
    if isinstance(node, ast.Assign):
        targets = bound_names(node)
        if any(isinstance(t, (ast.Subscript, ast.Attribute)) and root_name(t) for t in targets):
            return loaded_names(node.value)
    return set()


def calls_of(place: Place) -> list[tuple[Place, ast.Call]]:
    """The calls in its file of the function around a statement, each with its own statement.

    Empty where another function has the name, or the function calls itself.
    """
    function = place.function
    if function is None or len(place.program.functions(function.name)) != 1:
        return []
    calls = [
        (at, call)
        for call in calls_in(place.program.tree, function.name)
        if (at := place.program.place(call)) is not None
    ]
    return calls if all(at.function is not function for at, _ in calls) else []


def parameters_given(place: Place, where: Place, names: set[str]) -> set[str]:
    """Parameters of the function around ``where`` that ``place``'s function hands names to."""
    function = where.function
    if function is None or function is place.scope or not names:
        return set()
    arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if where.class_ is not None and arguments[:1] == ["self"]:
        arguments = arguments[1:]
    parameters_with_value = set()
    for call in calls_in(place.scope, function.name):
        pairs = [*zip(arguments, call.args, strict=False)]
        pairs += [(one.arg, one.value) for one in call.keywords if one.arg]
        parameters_with_value |= {
            own for own, value in pairs if isinstance(value, ast.Name) and value.id in names
        }
    return parameters_with_value
