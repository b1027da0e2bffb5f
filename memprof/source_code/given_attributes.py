"""Attributes that objects are given: by their own `__init__`, or by what calls their class."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.idioms import keyword as keyword_of
from memprof.source_code.idioms import last_name, module_itself
from memprof.source_code.program import Place, Program, bound_names, called_name, place_of
from memprof.source_code.scopes import qualified_name
from memprof.trace import Frame

__all__ = ["GivenAttribute", "derived_classes", "given_attribute", "given_in_init", "is_module"]

_INIT = "__init__"
_NAMESPACE = "types.SimpleNamespace"
_NAMED_TUPLE = "NamedTuple"
_DATA_CLASS = "dataclass"


@dataclass(frozen=True, slots=True, eq=False)
class GivenAttribute:
    """An attribute, a field or an entry, and the statement that sets it."""

    name: str
    """The attribute's, or the entry's key."""
    place: Place
    text: str = ""
    """As it is written: ``self.reference``, ``models.vae``, ``models['vae']``."""
    dropped_by: str = ""
    """The statement that lets go of it."""
    holder: str = ""
    """The variable of the object or the dictionary that has it; empty of an object's own."""
    holding: Place | None = None
    """The statement that binds that variable."""


def given_in_init(frame: Frame) -> GivenAttribute | None:
    """``text_encoder`` of ``self.text_encoder = load()`` in an ``__init__``; None for others."""
    place = place_of(frame)
    if place is None or place.function is None or place.function.name != _INIT:
        return None
    targets = bound_names(place.statement) if isinstance(place.statement, ast.Assign) else []
    if len(targets) != 1 or not isinstance(targets[0], ast.Attribute):
        return None
    is_own = isinstance(targets[0].value, ast.Name) and targets[0].value.id == "self"
    return _own_attribute(targets[0].attr, place) if is_own else None


def _own_attribute(name: str, place: Place) -> GivenAttribute:
    return GivenAttribute(name, place, f"self.{name}", f"self.{name} = None")


def given_attribute(
    made_by: Sequence[Frame], programs: Sequence[Program], now: Sequence[Frame]
) -> GivenAttribute | None:
    """The attribute that an object of the program's keeps what a stack made in.

    Of ``Trainer(reference=load())`` the one that the ``__init__`` of `Trainer` sets to its argument
    ``reference``; also where a variable is handed over, ``Trainer(model, reference)``. Likewise the
    field of a data class or of a named tuple, and the entry of a dictionary that is written with
    it. A module's attributes are parts of a model.

    Args:
        made_by: the frames that made the value, innermost first.
        programs: the program's files.
        now: the frames that run while the value is there.
    """
    running = {(frame.filename, frame.line) for frame in now}
    for inner, frame in enumerate(reversed(made_by), start=1):
        place = place_of(frame)
        outer = made_by[len(made_by) - inner + 1 :]
        called = _names_of(made_by[-inner - 1], programs) if inner < len(made_by) else ()
        for holding, argument in _holders_made(place, frame.line, called, running) if place else ():
            attribute = _kept_by(programs, holding, argument, place, outer) if place else None
            if attribute is not None:
                return attribute
        own = given_in_init(frame)
        if own is not None:
            return None if is_module(programs, own.place.class_) else own
    return None


def _names_of(frame: Frame, programs: Sequence[Program]) -> Collection[str]:
    """The names by which a function may be called: of an ``__init__`` those of its classes."""
    name = frame.name.rpartition(".")[2]
    place = place_of(frame) if name == _INIT else None
    return derived_classes(programs, place.class_.name) if place and place.class_ else (name,)


def _holders_made(
    place: Place, line: int, called: Collection[str], running: Collection[tuple[str, int]]
) -> Iterator[tuple[ast.Call | ast.Dict, ast.expr]]:
    """Calls and dictionaries that are handed what a call on a line returns, with the argument.

    None that a method is called of, ``Encoding(model).run()``, but while that runs: it keeps
    nothing afterwards.
    """
    filename = place.program.filename
    names = [one.id for one in bound_names(place.statement) if isinstance(one, ast.Name)]
    makes = any(_is_on(node, line, called) for node in ast.walk(place.statement))
    nodes = list(ast.walk(place.scope))
    receivers = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if not isinstance(node, (ast.Call, ast.Dict)):
            continue
        if id(node) in receivers and not any(
            (filename, one) in running
            for one in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        ):
            continue
        given = node.values if isinstance(node, ast.Dict) else node.args
        by_name = () if isinstance(node, ast.Dict) else node.keywords
        arguments = [
            argument
            for argument in (*given, *(one.value for one in by_name))
            if (isinstance(argument, ast.Name) and names == [argument.id] and makes)
            or _is_on(module_itself(argument), line, called)
        ]
        if len(arguments) == 1:  # of several that are made alike it is not known which is meant
            yield node, arguments[0]


def _is_on(node: ast.AST, line: int, called: Collection[str]) -> bool:
    if not isinstance(node, ast.Call) or called_name(node) not in called:
        return False
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _kept_by(
    programs: Sequence[Program],
    holding: ast.Call | ast.Dict,
    argument: ast.expr,
    place: Place,
    outer: Sequence[Frame],
) -> GivenAttribute | None:
    """The attribute, field or entry that something which is written there keeps an argument in."""
    if isinstance(holding, ast.Call):
        attribute = _set_by_class(programs, holding, argument)
        if attribute is not None:
            return attribute
    at = place.program.place(holding)
    name, binding = _variable_of(at, holding, outer) if at is not None else ("", None)
    if at is None or not name:
        return None
    if isinstance(holding, ast.Dict):
        keys = zip(holding.keys, holding.values, strict=True)
        key = next((one for one, value in keys if value is argument), None)
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return None
        entry = f"{name}[{key.value!r}]"
        return GivenAttribute(key.value, at, entry, f"del {entry}", name, binding)
    field, is_fixed = _field(programs, at, holding, argument)
    if not field:
        return None
    dropped_by = f"{name} = {name}._replace({field}=None)" if is_fixed else f"{name}.{field} = None"
    return GivenAttribute(field, at, f"{name}.{field}", dropped_by, name, binding)


def _variable_of(place: Place, made: ast.expr, outer: Sequence[Frame]) -> tuple[str, Place]:
    """What a value that a statement makes is bound to, and where; empty for nothing.

    What the statement returns the caller binds.
    """
    statement = place.statement
    for frame in outer:
        if not isinstance(statement, ast.Return) or statement.value is not made:
            break
        caller, function = place_of(frame), place.function
        if caller is None or function is None:
            return "", place
        place, statement = caller, caller.statement
        value = getattr(statement, "value", None)
        if not isinstance(value, ast.Call) or called_name(value) != function.name:
            return "", place
        made = value
    targets = bound_names(statement)
    is_bound = isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is made
    return ast.unparse(targets[0]) if is_bound and len(targets) == 1 else "", place


def _field(
    programs: Sequence[Program], place: Place, call: ast.Call, argument: ast.expr
) -> tuple[str, bool]:
    """The field of a class without an ``__init__`` that a call sets, and whether for good.

    Empty where it has none.
    """
    by_name = next((one.arg for one in call.keywords if one.value is argument), None) or ""
    if qualified_name(place, call.func) == _NAMESPACE:
        return by_name, False
    name = called_name(call)
    class_ = next(
        (one for program in programs for one in program.classes() if one.name == name), None
    )
    bases = {last_name(ast.unparse(base)) for base in class_.bases} if class_ is not None else set()
    decorators = class_.decorator_list if class_ is not None else []
    made_by = [
        one for one in decorators if last_name(ast.unparse(one).partition("(")[0]) == _DATA_CLASS
    ]
    if class_ is None or not (made_by or _NAMED_TUPLE in bases):
        return "", False
    fields = [
        one.target.id
        for one in class_.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    ]
    at = next((at for at, one in enumerate(call.args) if one is argument), -1)
    if not by_name and bases <= {_NAMED_TUPLE} and 0 <= at < len(fields):
        by_name = fields[at]
    frozen = [keyword_of(one, "frozen") for one in made_by if isinstance(one, ast.Call)]
    if any(isinstance(one, ast.Constant) and one.value for one in frozen):
        return "", False  # it has to be made anew
    return by_name if by_name in fields else "", not made_by


def _set_by_class(
    programs: Sequence[Program], call: ast.Call, argument: ast.expr
) -> GivenAttribute | None:
    """The attribute that the class which is called sets to an argument; None without one."""
    name = called_name(call)
    for program in programs:
        for node in program.nodes:
            if not isinstance(node, ast.ClassDef) or node.name != name:
                continue
            for function in node.body:
                if is_module(programs, node):
                    return None
                if isinstance(function, ast.FunctionDef) and function.name == _INIT:
                    parameter = _parameter(function, call, argument)
                    return _set_to(program, function, parameter) if parameter else None
    return None


def is_module(programs: Sequence[Program], class_: ast.ClassDef | None) -> bool:
    """Whether a class is derived from ``nn.Module``, by the names of what it is derived from."""
    bases = {last_name(ast.unparse(base)) for base in class_.bases} if class_ is not None else set()
    if any(base.endswith("Module") for base in bases):
        return True
    return any(
        isinstance(node, ast.ClassDef)
        and node.name in bases
        and node is not class_
        and is_module(programs, node)
        for program in programs
        for node in program.nodes
    )


def derived_classes(programs: Sequence[Program], name: str) -> frozenset[str]:
    """The names of a class and of those of the program that are derived from it."""
    names = {name}
    while True:
        more = {
            one.name
            for program in programs
            for one in program.classes()
            if names & {last_name(ast.unparse(base)) for base in one.bases}
        }
        if more <= names:
            return frozenset(names)
        names |= more


def _parameter(function: ast.FunctionDef, call: ast.Call, argument: ast.expr) -> str:
    """The name that a function has for an argument of its call; the first is the object."""
    for keyword in call.keywords:
        if keyword.value is argument:
            return keyword.arg or ""
    at = next((at for at, one in enumerate(call.args) if one is argument), -1)
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)][1:]
    return names[at] if 0 <= at < len(names) else ""


def _set_to(program: Program, function: ast.FunctionDef, parameter: str) -> GivenAttribute | None:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            target, place = node.targets[0], program.place(node)
            is_own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
            if node.value.id == parameter and is_own and place is not None:
                assert isinstance(target, ast.Attribute)
                return _own_attribute(target.attr, place)
    return None
