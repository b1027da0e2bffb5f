"""Whether a backward pass starts from a value of the user's source, or from a sum that it is in."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.program import Place, Program, called_name, calls_in, loaded_names
from memprof.source_code.scopes import nodes_around, parameters, reads_of
from memprof.source_code.verbs import CUTTING, JOINING, NUMBER_FUNCTIONS, TEXT_FUNCTIONS

__all__ = ["attribute_reads", "is_learned_from", "reads_are_learned_from"]

_LINEAR = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_ADDING = frozenset(("mean", "sum"))
"""Functions and methods by which each of several values has its own part in the result."""
_SCALING = frozenset(("div", "mul", "true_divide"))
"""Methods that scale a value by what they are given."""
_ENTRIES = "items"
_SAME = frozenset(("double", "float", _ENTRIES, "reshape", "squeeze", "to", "values", "view"))
"""Methods that return the same values, of a dict too."""
_GATHERING = frozenset(("list", "tuple"))
_BY_SCALER = "scale"
"""Method of torch's ``GradScaler`` that returns the loss that it is given, scaled."""
_LEARNING = ("backward", "manual_backward", "grad")
_OF_FRAMEWORKS = frozenset(("compute_loss", "training_step"))
"""Methods of the program that Lightning and transformers call for the loss they learn from."""
_DEEPEST = 8
"""Names, attributes and functions on the way to the backward pass."""
_BOUND = ("self", "cls")


@dataclass(frozen=True, slots=True)
class _Way:
    """The files that a value is followed through, and how far it may still go."""

    programs: Sequence[Program]
    depth: int = _DEEPEST

    @property
    def further(self) -> _Way:
        return _Way(self.programs, self.depth - 1)


def is_learned_from(
    place: Place, value: ast.AST, around: Sequence[ast.AST], programs: Sequence[Program]
) -> bool | None:
    """True where a backward pass starts from a value or its sum, and nothing else needs its graph.

    False where something else may; None where nothing does at all.

    Args:
        place: the statement that the value stands in.
        value: its expression.
        around: the nodes around that, outermost first.
        programs: the files of the program, through whose functions it is followed.
    """
    return _learned(place, value, around, _Way(programs))


def reads_are_learned_from(
    reads: Iterable[tuple[Place, ast.expr, Sequence[ast.AST]]], programs: Sequence[Program]
) -> bool:
    """Whether a backward pass starts from one of the reads of a variable, and none does more.

    Each read comes with its statement and the nodes around it, outermost first.
    """
    way = _Way(programs)
    return _together(_learned(place, read, around, way) for place, read, around in reads) is True


def _together(answers: Iterable[bool | None]) -> bool | None:
    """What is known of a value by all that is done with it."""
    known = {one for one in answers if one is not None}
    return None if not known else False not in known


def _learned(place: Place, value: ast.AST, around: Sequence[ast.AST], way: _Way) -> bool | None:
    waiting = [*around]
    while waiting:
        parent = waiting.pop()
        if isinstance(parent, (ast.stmt, ast.comprehension)):
            return _of_statement(place, parent, value, waiting, way)
        if isinstance(parent, ast.Tuple) and waiting and isinstance(waiting[-1], ast.Return):
            at = next(at for at, one in enumerate(parent.elts) if one is value)
            return _of_callers(place, at, way)
        if isinstance(parent, (ast.keyword, ast.Attribute)) and waiting:
            outer = waiting.pop()
        else:
            outer = parent
        if _needs_no_graph(parent):
            return None
        if isinstance(outer, ast.Call) and _starts(outer, parent, value):
            return True
        if not _is_linear(parent, outer, value):
            into = _parameter(outer, parent, value, way.programs)
            return _of_reads_in(*into, way) if into is not None else False
        value = outer
    return False


def _starts(call: ast.Call, parent: ast.AST, value: ast.AST) -> bool:
    """Whether a backward pass starts from a value by a call: its own, or one it is given to."""
    if called_name(call) not in _LEARNING:
        return False
    return (call.func is parent and not call.args) or value in call.args[:1]


def _needs_no_graph(parent: ast.AST) -> bool:
    """Whether what is around a value takes it as a number, or cuts it off from its graph."""
    if isinstance(parent, ast.Attribute):
        return parent.attr in CUTTING
    is_builtin = called_name(parent) in NUMBER_FUNCTIONS | TEXT_FUNCTIONS
    return isinstance(parent, (ast.FormattedValue, ast.Compare)) or is_builtin


def _is_linear(parent: ast.AST, outer: ast.AST, value: ast.AST) -> bool:
    """Whether an expression around a value adds it up, scales it, or joins it with others."""
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, _LINEAR):
        other = parent.left if parent.right is value else parent.right
        if isinstance(parent.op, ast.Mult) and loaded_names(other) & loaded_names(value):
            return False  # a square
        return not (isinstance(parent.op, ast.Div) and parent.right is value)
    if isinstance(parent, ast.Attribute):
        if not isinstance(outer, ast.Call) or outer.func is not parent:
            return False
        if parent.attr in _SCALING:
            return not any(loaded_names(one) & loaded_names(value) for one in outer.args)
        return parent.attr in _ADDING | _SAME
    if isinstance(parent, ast.DictComp):
        return parent.value is value
    if isinstance(parent, (ast.ListComp, ast.GeneratorExp)):
        return parent.elt is value
    if isinstance(parent, (ast.List, ast.Tuple)):
        return True
    return isinstance(parent, ast.Call) and _adds_up(parent, value)


def _adds_up(call: ast.Call, value: ast.AST) -> bool:
    """Whether a function is one of a sum, a mean, or of joining, of a value that it is given."""
    name = called_name(call)
    if name == "reduce":
        operation = ast.unparse(call.args[0]) if call.args else ""
        return operation in ("add", "operator.add", "torch.add") and value in call.args[1:2]
    is_function = isinstance(call.func, ast.Name)
    if name == "add":
        return not is_function and value in call.args[:2]
    if name == _BY_SCALER:
        return not is_function and value in call.args[:1]
    if name in _GATHERING:
        return is_function and value in call.args
    return name in _ADDING | JOINING and value in call.args[:1]


def _of_statement(
    place: Place,
    statement: ast.AST,
    value: ast.AST,
    around: Sequence[ast.AST],
    way: _Way,
) -> bool | None:
    """The same of what a statement does with a value that is all of it, or all that it goes over.

    ``around`` are the nodes around the statement, or around the ``for`` of a comprehension.
    """
    if isinstance(statement, ast.Return):
        return _of_callers(place, -1, way)
    if isinstance(statement, (ast.For, ast.AsyncFor, ast.comprehension)):
        within = around[-1] if isinstance(statement, ast.comprehension) and around else statement
        if statement.iter is not value or not way.depth:
            return None if statement.iter is not value else False
        outside = around[:-1] if within is not statement else around
        return _together(
            _learned(_place_of(place, load), load, [*outside, *inside], way.further)
            for target in ast.walk(_values_among(statement))
            if isinstance(target, ast.Name)
            for load, inside in reads_of(within, target.id)
        )
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if statement.value is not value or len(targets) != 1:
            return False
        return _of_target(place, targets[0], statement, way)
    return None  # of an expression, or a condition


def _values_among(loop: ast.For | ast.AsyncFor | ast.comprehension) -> ast.expr:
    """What a loop binds to the values that it goes over: ``v`` of ``for k, v in d.items()``."""
    is_pair = isinstance(loop.target, ast.Tuple) and called_name(loop.iter) == _ENTRIES
    return loop.target.elts[-1] if is_pair and isinstance(loop.target, ast.Tuple) else loop.target


def _of_target(place: Place, target: ast.expr, statement: ast.stmt, way: _Way) -> bool | None:
    """The same of the variable or the attribute that a statement binds to a value."""
    if not way.depth:
        return False
    own = {id(node) for node in ast.walk(statement)}
    reads: Iterable[tuple[Place, ast.expr, Sequence[ast.AST]]] = ()
    if isinstance(target, ast.Name):
        reads = (
            (place, load, around)
            for load, around in reads_of(place.scope, target.id)
            if load.lineno > statement.lineno
        )
    elif isinstance(target, ast.Attribute):
        reads = attribute_reads(place, target.attr, way.programs)
    else:
        return False
    return _of_reads((one for one in reads if id(one[1]) not in own), way)


def attribute_reads(
    of: Place, name: str, programs: Sequence[Program]
) -> Iterator[tuple[Place, ast.expr, Sequence[ast.AST]]]:
    """Where an attribute is read, with the statement and the nodes around it, outermost first.

    ``of`` is a statement of the object's class: what another class reads of ``self`` is its own.
    """
    family = _family(of.class_, programs) if of.class_ is not None else set()
    for program in programs:
        for node in program.nodes:
            if not isinstance(node, ast.Attribute) or node.attr != name:
                continue
            place = program.place(node) if isinstance(node.ctx, ast.Load) else None
            if place is None:
                continue
            of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            inside = place.class_.name if place.class_ is not None else ""
            if not family or not of_self or inside in family:
                yield place, node, nodes_around(place.statement, node)


def _family(class_: ast.ClassDef, programs: Sequence[Program]) -> set[str]:
    """The names of a class, of those it derives from, and of those that derive from it."""
    bases = {
        one.name: {ast.unparse(base).rpartition(".")[2] for base in one.bases}
        for program in programs
        for one in program.classes()
    }
    above, below = {class_.name}, {class_.name}
    for _ in range(_DEEPEST):
        above |= {base for name in above for base in bases.get(name, ())}
        below |= {name for name, its_bases in bases.items() if its_bases & below}
    return above | below


def _of_reads(reads: Iterable[tuple[Place, ast.expr, Sequence[ast.AST]]], way: _Way) -> bool | None:
    return _together(
        _learned(_place_of(place, read), read, around, way.further) for place, read, around in reads
    )


def _place_of(place: Place, node: ast.AST) -> Place:
    return place.program.place(node) or place


def _parameter(
    call: ast.AST, parent: ast.AST, value: ast.AST, programs: Sequence[Program]
) -> tuple[Place, str] | None:
    """The parameter of the program's one function of that name to which a call gives a value."""
    if not isinstance(call, ast.Call):
        return None
    functions = [
        (program, function)
        for program in programs
        for function in program.functions(called_name(call))
    ]
    if len(functions) != 1:
        return None
    program, function = functions[0]
    place = program.place(function.body[0])
    names = [one for one in parameters(function) if one not in _BOUND]
    if isinstance(parent, ast.keyword):
        name = parent.arg or ""
    else:
        at = next((at for at, one in enumerate(call.args) if one is value), len(names))
        name = names[at] if at < len(names) else ""
    return (place, name) if place is not None and name in names else None


def _of_reads_in(place: Place, name: str, way: _Way) -> bool | None:
    """The same of what a function does with a parameter."""
    if not way.depth:
        return False
    return _of_reads(((place, load, around) for load, around in reads_of(place.scope, name)), way)


def _of_callers(place: Place, at: int, way: _Way) -> bool | None:
    """The same of what a function returns, by its calls: of several values of one of them.

    ``at`` is its place among them, -1 where it is all that is returned.
    """
    function = place.function
    if function is None or not way.depth:
        return False
    calls = [
        (where, call)
        for program in way.programs
        for call in calls_in(program.tree, function.name)
        if (where := program.place(call)) is not None and where.function is not function
    ]
    if not calls:
        is_method = place.class_ is not None and bool(place.class_.bases)
        return is_method and function.name in _OF_FRAMEWORKS
    return _together(_of_call(where, call, at, way) for where, call in calls)


def _of_call(place: Place, call: ast.Call, at: int, way: _Way) -> bool | None:
    around = nodes_around(place.statement, call)
    if at < 0:
        return _learned(place, call, around, way.further)
    statement = place.statement
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return False
    if not isinstance(target, ast.Tuple) or at >= len(target.elts):
        return False
    return _of_target(place, target.elts[at], statement, way.further)
