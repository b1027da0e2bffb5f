"""Names that keep a tensor until the next step, read from the statements of its stack."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.program import (
    FUNCTIONS,
    LOOPS,
    Place,
    bound_names,
    called_name,
    place_of,
    root_name,
)
from memprof.source_code.verbs import FILLING
from memprof.trace import Frame

__all__ = ["Binding", "binding_of", "first_binding", "handed_on", "is_read_before", "keeping_line"]


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """A statement that binds what a stack made, and the expression that it is bound to."""

    place: Place
    target: str
    """As written: ``state.model``, ``out``."""
    depth: int
    """Index of the frame in the stack."""
    needs_old: bool
    """What was bound before is read before the new value is bound: ``h = step(h)``."""


def binding_of(stack: Sequence[Frame]) -> Binding | None:
    """The binding that keeps a tensor beyond the call that made it: a loop's variable, an item.

    ``stack`` is innermost first. Local names of a function die when it returns, so they count only
    inside a loop, at the top of a file, or where a later line of the function hands them on. Those
    of a module's call do not count at all, unless it hands them on to an object.
    """
    calls = [depth for depth, frame in enumerate(stack) if "_call_impl" in frame.name]
    outermost_call = max(calls, default=-1)
    for depth, frame in enumerate(stack):
        place = place_of(frame)
        if place is None:
            continue
        is_over = depth < outermost_call
        for target in bound_names(place.statement):
            if isinstance(target, (ast.Attribute, ast.Subscript)):
                return _binding(place, target, depth)
            if _persists(place) and not is_over:
                return _binding(place, target, depth)
            binding_place = handed_on(place, target.id) if isinstance(target, ast.Name) else None
            if binding_place is not None and not (is_over and _is_to_variable(binding_place)):
                targets = bound_names(binding_place.statement)
                return _binding(binding_place, targets[0] if targets else target, depth)
    return None


def first_binding(stack: Sequence[Frame]) -> Binding | None:
    """The binding that keeps a tensor, else the innermost name that it is given at all.

    A function that runs for the whole job, as ``main`` does, keeps what its local names hold.
    """
    keeping = binding_of(stack)
    if keeping is not None:
        return keeping
    for depth, frame in enumerate(stack):
        place = place_of(frame)
        for target in bound_names(place.statement) if place is not None else ():
            assert place is not None
            return _binding(place, target, depth)
    return None


def _binding(place: Place, target: ast.expr, depth: int) -> Binding:
    return Binding(place, ast.unparse(target), depth, is_read_before(place, target))


def _persists(place: Place) -> bool:
    """True if a plain name bound here outlives the step: in a loop, or in no function at all."""
    if isinstance(place.statement, LOOPS):
        return True
    return place.loop is not None or place.function is None


def handed_on(place: Place, name: str) -> Place | None:
    """The first later statement of the same function that stores ``name`` in what lives longer."""
    for statement in _later(place):
        if _stores(statement, name):
            return place.program.place(statement)
        if any(isinstance(t, ast.Name) and t.id == name for t in bound_names(statement)):
            return None
    return None


def _is_to_variable(place: Place) -> bool:
    """Whether a statement stores into what a plain variable has: ``maps.append(x)``."""
    statement = place.statement
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    return isinstance(call.func.value, ast.Name)


def _later(place: Place) -> Iterator[ast.stmt]:
    """The simple statements of the same function that come after, in order of lines."""
    statements = [
        n
        for n in ast.walk(place.scope)
        if isinstance(n, ast.stmt)
        and n.lineno > place.line
        and not isinstance(n, (*FUNCTIONS, *LOOPS, ast.If, ast.With, ast.Try, ast.ClassDef))
    ]
    yield from sorted(statements, key=lambda n: n.lineno)


def _stores(statement: ast.stmt, name: str) -> bool:
    targets = [t for t in bound_names(statement) if isinstance(t, (ast.Attribute, ast.Subscript))]
    if (
        targets
        and isinstance(statement, (ast.Assign, ast.AnnAssign))
        and statement.value is not None
    ):
        return _passes(statement.value, name)
    if isinstance(statement, ast.Expr) and called_name(statement.value) in FILLING:
        call = statement.value
        assert isinstance(call, ast.Call)
        return any(_passes(argument, name) for argument in call.args)
    return False


def _passes(value: ast.expr, name: str) -> bool:
    """True if a value holds ``name`` itself, as such or in a literal or a plain constructor."""
    if isinstance(value, ast.Name):
        return value.id == name
    if isinstance(value, (ast.Tuple, ast.List, ast.Set)):
        return any(_passes(item, name) for item in value.elts)
    if isinstance(value, ast.Dict):
        return any(_passes(item, name) for item in value.values)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        arguments = [*value.args, *(keyword.value for keyword in value.keywords)]
        return any(_passes(item, name) for item in arguments)
    return isinstance(value, ast.BinOp) and (
        _passes(value.left, name) or _passes(value.right, name)
    )


def keeping_line(frames: Sequence[Frame]) -> tuple[Frame | None, str]:
    """The line that puts what was made into a container or an attribute, and that as written.

    ``frames`` are the program's own, innermost first: what a function returns its caller has.
    """
    for frame in frames:
        place = place_of(frame)
        if place is None:
            break
        statement: ast.stmt = place.statement
        if isinstance(statement, ast.Return):
            continue
        target, line = _taken_by(statement), frame.line
        if target is None:
            names = [one for one in bound_names(statement) if isinstance(one, ast.Name)]
            kept_at = handed_on(place, names[0].id) if len(names) == 1 else None
            if kept_at is not None:
                target = _taken_by(kept_at.statement)
                line = kept_at.line
            elif len(names) == 1 and _is_returned(place, names[0].id):
                continue
        if target is None:
            break
        return frame._replace(line=line), ast.unparse(target)
    return None, ""


def _taken_by(statement: ast.stmt) -> ast.expr | None:
    """What a statement puts a value into: a container, an attribute or an item."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        return call.func.value if call.func.attr in FILLING else None
    targets = bound_names(statement)
    kept = (one for one in targets if isinstance(one, (ast.Attribute, ast.Subscript)))
    return next(kept, None)


def _is_returned(place: Place, name: str) -> bool:
    returns = (node.value for node in ast.walk(place.scope) if isinstance(node, ast.Return))
    return any(isinstance(value, ast.Name) and value.id == name for value in returns)


def is_read_before(place: Place, target: ast.expr) -> bool:
    """True if a target is read in its own statement or earlier in the same pass over it.

    ``h = cell(x, h)`` needs the old ``h``; ``out = model(x)`` does not need the old ``out``.
    """
    text = ast.unparse(target)
    body: ast.AST = place.loop or place.scope
    if isinstance(place.statement, LOOPS):
        body = place.statement
    for node in ast.walk(body):
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            continue
        if not isinstance(node.ctx, ast.Load) or node.lineno > (place.statement.end_lineno or 0):
            continue
        if root_name(node) == root_name(target) and ast.unparse(node) == text:
            if isinstance(place.statement, LOOPS):
                continue
            if node.lineno >= place.line or not _bound_between(place, target, node, body):
                return True
    return False


def _bound_between(place: Place, target: ast.expr, reader: ast.AST, body: ast.AST) -> bool:
    """True if the target was bound anew before that read, so that it is not the old value."""
    text = ast.unparse(target)
    line = getattr(reader, "lineno", 0)
    for node in ast.walk(body):
        if isinstance(node, ast.stmt) and node.lineno < line and node is not place.statement:
            if isinstance(node, LOOPS) and node is body:
                continue
            if any(ast.unparse(t) == text for t in bound_names(node)):
                return True
    return False
