"""Statements that were to freeze parameters, and set an attribute that nothing reads."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from difflib import SequenceMatcher
from functools import partial
from typing import NamedTuple

from memprof.source_code.chosen_names import is_chosen
from memprof.source_code.idioms import keyword
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    arguments,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    root_name,
)
from memprof.source_code.scopes import parameters as parameters_of
from memprof.source_code.values import values_of

__all__ = ["FreezingAttribute", "freezing_attributes"]

_MODULES_WITHIN = frozenset(("children", "modules", "named_children", "named_modules"))
"""Methods that give the modules below one."""
_PARAMETERS = frozenset(("named_parameters", "parameters"))
"""Methods that give a module's parameters."""
_ATTRIBUTE = "requires_grad"
_ALIKE = 0.85
"""Of the letters in their order: ``require_grad`` has 0.96, and ``grad`` 0.47."""


class FreezingAttribute(NamedTuple):
    """``encoder.requires_grad = False``, and the modules that it is set of."""

    place: Place
    receiver: ast.expr
    modules: frozenset[str]
    """Paths of them."""
    name: str = _ATTRIBUTE
    """The attribute that is set."""
    meant: str = ""
    """The attribute of parameters that it misspells; empty where it is of a module."""


def freezing_attributes(program: Program, paths: Collection[str]) -> Iterator[FreezingAttribute]:
    """Every such statement of a program, by the paths of the modules that ran.

    A parameter has such an attribute, and is frozen by it: what is no module by its name is none of
    these, unless the attribute is misspelled.
    """
    for node in program.nodes:
        place = program.place(node) if isinstance(node, (ast.Assign, ast.Expr)) else None
        for receiver, name in _set_false(node) if place is not None else ():
            assert place is not None
            if name == _ATTRIBUTE:
                modules = frozenset(_modules(place, receiver, paths))
                if modules:
                    yield FreezingAttribute(place, receiver, modules)
            elif _is_misspelled(name):
                modules = frozenset(_modules_of_parameter(place, receiver, paths))
                if modules:
                    yield FreezingAttribute(place, receiver, modules, name, meant=_ATTRIBUTE)


def _set_false(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Of what a statement sets an attribute to False, and that attribute: by ``setattr``, too."""
    if isinstance(node, ast.Assign) and _is_false(node.value):
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                yield target.value, target.attr
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "setattr":
        return
    if len(call.args) == len(("object", "name", "value")) and _is_false(call.args[2]):
        name = call.args[1]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield call.args[0], name.value


def _is_misspelled(name: str) -> bool:
    """Whether an attribute is nearly the one that freezes: ``require_grad``, ``requires_gradient``.

    ``requires_grad_`` is a method, and set by nobody.
    """
    is_like = SequenceMatcher(None, name.lower(), _ATTRIBUTE).ratio() >= _ALIKE
    return is_like and name != f"{_ATTRIBUTE}_"


def _modules_of_parameter(
    place: Place, parameter: ast.expr, paths: Collection[str]
) -> Iterator[str]:
    """Paths of the modules whose parameters a loop goes through, without those put in afterwards.

    A head is put in place of another one when the rest is frozen: ``model.fc = nn.Linear(…)``.
    """
    loop = _loop_of(place, parameter.id) if isinstance(parameter, ast.Name) else None
    iterated = loop.iter if loop is not None else None
    if not isinstance(iterated, ast.Call) or called_name(iterated) not in _PARAMETERS:
        return
    module = iterated.func.value if isinstance(iterated.func, ast.Attribute) else None
    if loop is not None and _name_beside(loop):
        yield from _chosen(place, loop, module, paths)
    elif isinstance(module, ast.Attribute):
        yield from (path for path in paths if module.attr in path.split("."))
    elif isinstance(module, ast.Name):
        put_in = {
            target.attr
            for node in place.program.nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            for target in node.targets
            if isinstance(target, ast.Attribute) and not _is_self(target.value)
        }
        # Another model beside it is not the one that the loop goes through.
        roots = {path.partition(".")[0] for path in paths if put_in & set(path.split("."))}
        for path in paths:
            if path.partition(".")[0] in roots and not put_in & set(path.split(".")):
                yield path


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id == "self"


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def _modules(place: Place, receiver: ast.expr, paths: Collection[str]) -> Iterator[str]:
    """Paths of the modules that an expression stands for, and of all that lie below them."""
    loop = _loop_of(place, receiver.id) if isinstance(receiver, ast.Name) else None
    iterated = loop.iter if loop is not None else None
    for one in _listed(place, iterated):
        yield from _modules(place, one, paths)
    module = receiver if iterated is None else _module_iterated(iterated)
    if loop is not None and module is not None and _name_beside(loop):
        yield from _chosen(place, loop, module, paths)
        return
    if isinstance(module, ast.Subscript):
        yield from _of_entry(place, module, paths)
        return
    names: set[str] = set()
    name = _name_of_part(place, module)
    if name is not None:
        texts = _texts_of(place, name)
        yield from (path for path in paths if texts & set(path.split(".")))
        return
    if isinstance(module, ast.Attribute):
        names = {module.attr}
    elif isinstance(module, ast.Name):
        names = _names_handed(place, module.id)
        names |= _classes(place, module) if iterated is None else set()
    yield from (path for path in paths if names & set(path.split(".")))


def _of_entry(place: Place, entry: ast.Subscript, paths: Collection[str]) -> Iterator[str]:
    """Paths of a part that is named by its key: ``self.parts["encoder"]``, ``model[0]``."""
    key = entry.slice.value if isinstance(entry.slice, ast.Constant) else None
    is_counted = isinstance(entry.slice, ast.Name) and _is_counted(place, entry.slice.id)
    if not isinstance(key, (int, str)) and not is_counted:
        return
    for path in paths:
        below = _below(place, entry.value, path)
        if below is not None and (is_counted or below.partition(".")[0] == str(key)):
            yield path


def _is_counted(place: Place, name: str) -> bool:
    """Whether a name is the number of a loop: the first few layers are as good as all of them."""
    iterated = _iterated(place, name)
    return called_name(iterated) in ("enumerate", "range") if iterated is not None else False


def _listed(place: Place, iterated: ast.expr | None) -> list[ast.expr]:
    """What a loop goes through that is written out: ``(self.stem, self.encoder)``, or its name."""
    if isinstance(iterated, ast.Name):
        values = list(values_of(place, iterated.id))
        iterated = values[0] if len(values) == 1 else None
    return iterated.elts if isinstance(iterated, (ast.List, ast.Set, ast.Tuple)) else []


def _chosen(
    place: Place, loop: ast.For, module: ast.expr | None, paths: Collection[str]
) -> Iterator[str]:
    """Paths of the parts of a module for which a loop over them with their names runs a statement.

    None where a condition of the loop asks for something else than the names.
    """
    method, variable = called_name(loop.iter), _name_beside(loop)
    texts = partial(_texts_of, place)
    chosen = []
    for path in paths:
        below = _below(place, module, path) if module is not None else None
        if below is None:
            continue
        parts = below.split(".")
        names = [".".join(parts[: at + 1]) for at in range(len(parts))]
        if method == "named_children":
            names = names[:1]
        elif method in _PARAMETERS:
            names = [f"{below}.weight"]
        answers = [is_chosen(place, loop, variable, name, texts) for name in names]
        if None in answers:
            return
        if True in answers:
            chosen.append(path)
    yield from chosen


def _below(place: Place, module: ast.expr, path: str) -> str | None:
    """The rest of a path behind that of a module; None where it does not lie below it."""
    names = path.split(".")
    roots = {names[0]} if _is_self(module) and place.class_ is not None else set()
    if isinstance(module, ast.Attribute):
        at = names.index(module.attr) if module.attr in names else -1
    else:
        if isinstance(module, ast.Name) and not roots:
            roots = _names_handed(place, module.id) | _classes(place, module)
        at = 0 if names[0] in roots else -1
    return ".".join(names[at + 1 :]) if 0 <= at < len(names) - 1 else None


def _name_beside(loop: ast.For) -> str:
    """``name`` of ``for name, layer in …``; empty where the loop has none, or never reads it."""
    target = loop.target
    both = isinstance(target, ast.Tuple) and len(target.elts) == len(("name", "part"))
    first = target.elts[0] if both and isinstance(target, ast.Tuple) else None
    of_names = called_name(loop.iter).startswith("named_")
    if not of_names or not isinstance(first, ast.Name):
        return ""
    return first.id if any(first.id in loaded_names(one) for one in loop.body) else ""


def _names_handed(place: Place, name: str) -> set[str]:
    """The attributes and classes of modules that callers hand a function as its parameter.

    Of ``freeze(self.encoder)``, and of ``self.encoder = freeze(Encoder())`` where the function
    returns what it is handed.
    """
    function = place.function
    if function is None or place.class_ is not None:
        return set()
    names: set[str] = set()
    for module, at in _handed(place, name):
        if isinstance(module, ast.Attribute):
            names.add(module.attr)
        elif isinstance(module, ast.Name):
            names |= _classes(at, module)
        elif isinstance(module, ast.Call) and module in _own_arguments(at):
            bound = [one for one in bound_names(at.statement) if isinstance(one, ast.Attribute)]
            returns = [one for one in ast.walk(function) if isinstance(one, ast.Return)]
            if all(one.value is not None and root_name(one.value) == name for one in returns):
                names |= {one.attr for one in bound}
    return names


def _handed(place: Place, name: str) -> Iterator[tuple[ast.expr, Place]]:
    """What the calls of the function around a statement give it as that parameter, and where."""
    function = place.function
    parameters = list(parameters_of(function)) if function is not None else []
    if function is None or name not in parameters:
        return
    position = parameters.index(name) - (place.class_ is not None)
    for call in calls_in(place.program.tree, function.name):
        at = place.program.place(call)
        given = keyword(call, name)
        if given is None and 0 <= position < len(call.args):
            given = call.args[position]
        if at is not None and given is not None:
            yield given, at


def _own_arguments(place: Place) -> list[ast.expr]:
    """What a statement hands to the call whose result it binds, or that is all of it."""
    value = getattr(place.statement, "value", None)
    return list(arguments(value)) if isinstance(value, ast.Call) else []


def _loop_of(place: Place, name: str) -> ast.For | None:
    """The loop around a statement whose variable a name is."""
    for node in reversed(place.around):
        if isinstance(node, FUNCTIONS):
            return None
        if isinstance(node, ast.For) and _binds(node.target, name):
            return node
    return None


def _iterated(place: Place, name: str) -> ast.expr | None:
    """What the loop goes through whose variable a name is."""
    loop = _loop_of(place, name)
    return loop.iter if loop is not None else None


def _name_of_part(place: Place, module: ast.expr | None) -> ast.expr | None:
    """``name`` of ``getattr(model, name)``, which an expression or its variable stands for."""
    values = [module]
    if isinstance(module, ast.Name):
        values = list(values_of(place, module.id))
    made = values[0] if len(values) == 1 else None
    is_got = called_name(made) == "getattr" if made is not None else False
    return made.args[1] if is_got and isinstance(made, ast.Call) and len(made.args) > 1 else None


def _texts_of(place: Place, name: ast.expr) -> set[str]:
    """The texts that a name may stand for: those of what its loop goes through, or was set to.

    Of ``config.frozen`` these are all that a class, a call or an assignment gives such a field.
    """
    if isinstance(name, ast.Name):
        iterated = _iterated(place, name.id)
        values = [iterated] if iterated is not None else [*values_of(place, name.id)]
        values += [one for one, _ in _handed(place, name.id)]
    else:
        values = [name]
    fields = {one.attr for one in values if isinstance(one, ast.Attribute)}
    for node in place.program.nodes if fields else ():
        if isinstance(node, ast.keyword) and node.arg in fields:
            values.append(node.value)
        elif isinstance(node, (ast.AnnAssign, ast.Assign)):
            bound = {ast.unparse(one).rpartition(".")[2] for one in bound_names(node)}
            values += [node.value] if bound & fields else []
    return {
        part.value
        for value in values
        if value is not None
        for part in ast.walk(value)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def _binds(target: ast.expr, name: str) -> bool:
    """Whether a loop binds a name: ``for p in …``, ``for _, p in …``."""
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    return any(isinstance(one, ast.Name) and one.id == name for one in targets)


def _module_iterated(iterated: ast.expr) -> ast.expr | None:
    """The module whose parts are gone through; None for parameters and others."""
    while isinstance(iterated, ast.Subscript):
        iterated = iterated.value  # the first few layers
    if isinstance(iterated, ast.Call):
        if not isinstance(iterated.func, ast.Attribute):
            return None
        return iterated.func.value if called_name(iterated) in _MODULES_WITHIN else None
    return iterated if isinstance(iterated, ast.Attribute) else None


def _classes(place: Place, receiver: ast.Name) -> set[str]:
    """The classes of what a variable is bound to: ``teacher = Teacher()``, ``… .to(device)``."""
    names = set()
    for value in values_of(place, receiver.id):
        made = value
        while isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute):
            if not isinstance(made.func.value, ast.Call):
                break
            made = made.func.value
        names.add(called_name(made) if isinstance(made, ast.Call) else "")
    return names - {""}
