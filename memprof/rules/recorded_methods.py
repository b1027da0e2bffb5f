"""Methods that records have in their fields, where a result was meant, as nothing calls them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise

from memprof.reference_chain import Link, LinkKind, is_field, largest_container
from memprof.source_code.idioms import growing, last_name
from memprof.source_code.program import Place, Program, assigned, called_name

__all__ = ["recorded_method"]

_FIELDS = frozenset({LinkKind.ATTRIBUTE, LinkKind.CLOSURE, LinkKind.DEFAULT_ARGUMENT})
"""Links by which an object or a function has something under a name."""
_WRAPPED = "__wrapped__"
"""The attribute of a function for the one that it was made to call (``functools.wraps``)."""
_CALLABLES = frozenset(("WeakMethod", "methodcaller", "partial", "partialmethod"))
"""Functions that return something to be called."""
_NAMED_TUPLES = ("NamedTuple", "namedtuple")
"""What makes a class of tuples with names for their items: as its base, or as it is called."""


def recorded_method(
    links: Sequence[Link], programs: Sequence[Program]
) -> tuple[ast.Attribute, Place] | None:
    """The one reference to a bound method that a record has in a field, where no program calls it.

    None without one. Methods that the largest container has for its own items are registered there,
    unless the reference stands among results of other methods of its object, in a row or beside it.
    """
    registry = largest_container(links)
    for at, (above, link) in enumerate(pairwise(links)):
        if link.kind is not LinkKind.BOUND_METHOD:
            continue
        method = link.type_name.rpartition(".")[2]
        if at == registry:
            reference = _among_results(programs, method)
            if reference is not None:
                return reference
            continue
        field = _field(above, programs)
        if not field or any(_is_called(node, field, method) for p in programs for node in p.nodes):
            continue
        references = list(_references(programs, method))
        if len(references) == 1:
            return references[0]
    return None


def _references(programs: Sequence[Program], name: str) -> Iterator[tuple[ast.Attribute, Place]]:
    """Where a method of that name is named and not called, each with its statement."""
    for program in programs:
        functions = {id(n.func) for n in program.nodes if isinstance(n, ast.Call)}
        for node in program.nodes:
            if not isinstance(node, ast.Attribute) or node.attr != name or id(node) in functions:
                continue
            place = program.place(node) if isinstance(node.ctx, ast.Load) else None
            if place is not None:
                yield node, place


def _among_results(programs: Sequence[Program], name: str) -> tuple[ast.Attribute, Place] | None:
    """The one reference to a method among results of other methods of its object.

    In a row with them, ``(("loss", job.fit(x)), ("size", job.size))``, or in columns side by side,
    where the program calls nothing that it takes out of a container.
    """
    references = list(_references(programs, name))
    if len(references) != 1 or any(_calls_items(program) for program in programs):
        return None
    reference, place = references[0]
    receiver = ast.unparse(reference.value)
    for row in ast.walk(place.statement):
        if not isinstance(row, (ast.Tuple, ast.List)):
            continue
        pairs = [one.elts if isinstance(one, (ast.Tuple, ast.List)) else [one] for one in row.elts]
        own = next((pair for pair in pairs if reference in pair), None)
        at = own.index(reference) if own is not None else 0
        others = [pair[at] for pair in pairs if pair is not own and len(pair) > at]
        if own is not None and any(_is_result_of(one, receiver) for one in others):
            return reference, place
    is_result = _returns_value(programs, name) and _has_results_beside(place, reference, receiver)
    return (reference, place) if is_result else None


def _returns_value(programs: Sequence[Program], method: str) -> bool:
    """Whether a method takes no argument and returns something, as far as it is the program's."""
    functions = [one for program in programs for one in program.functions(method)]
    return all(
        not one.args.args[1:]
        and not one.args.kwonlyargs
        and any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(one))
        for one in functions
    )


def _has_results_beside(place: Place, reference: ast.Attribute, receiver: str) -> bool:
    """Whether a method goes into one column of a table whose others get results of its object.

    ``sizes.append(job.size)`` in one block with ``losses.append(job.loss())``; or whose others get
    results of any calls: ``history["rate"]`` beside ``history["loss"]``.
    """
    block = next(
        (
            statements
            for _, statements in ast.iter_fields(place.around[-1] if place.around else place.scope)
            if isinstance(statements, list) and place.statement in statements
        ),
        [],
    )
    columns = {
        id(statement): filling
        for statement in block
        if isinstance(statement, ast.stmt)
        and (at := place.program.place(statement)) is not None
        and (filling := growing(at)) is not None
        and filling.values
    }
    own = columns.get(id(place.statement))
    if own is None or own.values[-1] is not reference:
        return False
    table = _table_of(own.container)
    return any(
        _is_result_of(one.values[-1], receiver)
        or (table and _table_of(one.container) == table and _is_result(one.values[-1]))
        for one in columns.values()
    )


def _table_of(container: str) -> str:
    """``history`` of ``history["loss"]``; empty where a container is no column of another."""
    column = ast.parse(container, mode="eval").body
    is_column = isinstance(column, ast.Subscript) and isinstance(column.slice, ast.Constant)
    return ast.unparse(column.value) if is_column else ""  # type: ignore[attr-defined]


def _is_result(value: ast.expr) -> bool:
    """Whether it is what a call returns, and nothing that is made to be called."""
    return isinstance(value, ast.Call) and called_name(value) not in _CALLABLES


def _is_result_of(value: ast.expr, receiver: str) -> bool:
    is_method = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
    return is_method and ast.unparse(value.func.value) == receiver  # type: ignore[attr-defined]


def _calls_items(program: Program) -> bool:
    """Whether a file calls items: ``for callback in callbacks: callback()``."""
    through = {
        name.id
        for node in program.nodes
        if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension))
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }
    return any(
        isinstance(node, ast.Call)
        and (
            isinstance(node.func, ast.Subscript)
            or (isinstance(node.func, ast.Name) and node.func.id in through)
        )
        for node in program.nodes
    )


def _field(link: Link, programs: Sequence[Program]) -> str:
    """The name of the field that a link is by; empty where it is by none."""
    if link.kind in _FIELDS:
        return link.name if link.name != _WRAPPED else ""
    if is_field(link):
        return link.name.strip("'\"")
    if link.kind is not LinkKind.ITEM or not link.name.isdigit():
        return ""
    for program in programs:
        for name, fields in _named_tuples(program):
            if name == link.type_name.rpartition(".")[2]:
                return fields[int(link.name)] if int(link.name) < len(fields) else link.name
    return ""


def _named_tuples(program: Program) -> Iterator[tuple[str, list[str]]]:
    """A file's classes of named tuples with their fields, as far as those are written out."""
    for node in program.nodes:
        if isinstance(node, ast.ClassDef):
            bases = {called_name(base) or last_name(ast.unparse(base)) for base in node.bases}
            if bases & {*_NAMED_TUPLES}:
                own = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
                yield node.name, [one.id for one in own if isinstance(one, ast.Name)]
        for target, value in assigned(node):
            if isinstance(value, ast.Call) and called_name(value) in _NAMED_TUPLES:
                yield last_name(ast.unparse(target)), list(_fields_written(value))


def _fields_written(call: ast.Call) -> Iterator[str]:
    """The fields of ``namedtuple("Row", "step lr")``, or of a list of names, or of pairs."""
    fields = call.args[1] if len(call.args) > 1 else None
    if isinstance(fields, ast.Constant):
        yield from str(fields.value).replace(",", " ").split()
    for one in fields.elts if isinstance(fields, (ast.List, ast.Tuple)) else ():
        name = one.elts[0] if isinstance(one, ast.Tuple) and one.elts else one
        if isinstance(name, ast.Constant):
            yield str(name.value)


def _is_called(node: ast.AST, field: str, method: str) -> bool:
    """Whether a node calls what a record has in a field, or gives it a name, to call it by that.

    The method may have the field's own name, and is called as an attribute of its object.
    """
    if isinstance(node, ast.Call):
        return _is_read(node.func, field) and not (
            isinstance(node.func, ast.Attribute) and field == method
        )
    return any(_is_read(value, field) for _, value in assigned(node))


def _is_read(expression: ast.expr | None, field: str) -> bool:
    """``record.field``, ``record["field"]``, or ``record.get("field")``."""
    if isinstance(expression, ast.Call) and called_name(expression) == "get":
        key: ast.expr | None = expression.args[0] if expression.args else None
    elif isinstance(expression, ast.Subscript):
        key = expression.slice
    else:
        return isinstance(expression, ast.Attribute) and expression.attr == field
    return isinstance(key, ast.Constant) and key.value == field
