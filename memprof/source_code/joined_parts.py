"""Whether what a loop collects in a list is joined, returned or read after the loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from memprof.source_code.idioms import growing
from memprof.source_code.program import (
    FUNCTIONS,
    LOOPS,
    Place,
    Program,
    bound_names,
    calls_in,
    place_of,
)
from memprof.source_code.reduced_containers import reads_of_items
from memprof.source_code.reductions import reduction_of
from memprof.trace import Frame

__all__ = [
    "are_results_joined",
    "is_joined_afterwards",
    "is_read_afterwards",
    "is_returned_afterwards",
    "outermost_loop",
]

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_Function: TypeAlias = tuple[str, str]
"""Its file and name."""
_MODULE = "<module>"
_NEVER = 1 << 30
"""A line that none comes after: of a function that runs in each round of a loop."""
_DEEPEST = 3
"""Calls that are followed outwards."""
_TRAINING = ("backward", "grad")
_JOINS = ("cat", "concat", "concatenate", "hstack", "stack", "vstack")


def is_joined_afterwards(place: Place) -> bool:
    """Whether the list that a statement fills is made and joined around the statement's loops.

    ``parts = []; for …: parts.append(x); return torch.cat(parts)``, in one function. Not where
    it is joined only if a parameter asks for that, as nobody in the file does.
    """
    collection = _collection(place)
    return collection is not None and any(
        call.lineno > collection.end
        and call.args
        and isinstance(call.args[0], ast.Name)
        and call.args[0].id == collection.name
        and not _is_unasked(call, collection.function, place.program)
        for call in calls_in(collection.within, *_JOINS)
    )


def is_returned_afterwards(place: Place) -> bool:
    """Whether the list that a statement fills is made and returned around the statement's loop.

    ``outputs = []; for …: outputs.append(x); return outputs``: it is the function's result, also as
    one of several, and as long as what a ``for`` goes over. Not where the loop trains.
    """
    collection = _collection(place)
    if collection is None or collection.within is not collection.function:
        return False
    loops = collection.filled_by
    if any(isinstance(loop, ast.While) for loop in loops) or any(calls_in(loops[0], *_TRAINING)):
        return False
    return any(
        isinstance(node, ast.Return)
        and node.lineno > collection.end
        and any(
            isinstance(one, ast.Name) and one.id == collection.name
            for one in (node.value, *getattr(node.value, "elts", ()))
        )
        for node in ast.walk(collection.function)
    )


def is_read_afterwards(place: Place, frames: Sequence[Frame], programs: Sequence[Program]) -> bool:
    """Whether an object's list that a statement fills is read only once the loop is over.

    ``for …: pool.add(x)``, and behind it ``pool.best(16)``, which reads ``self.clips``. Of the
    loops by which the statement ran the outermost is meant. Not where nothing reads it.

    Args:
        place: the statement.
        frames: the program's own frames by which it ran, innermost first.
        programs: files in which the list may be read.
    """
    filling = growing(place)
    if filling is None or filling.keyed or not filling.container.startswith("self."):
        return False
    loops = [outermost_loop(frame) for frame in frames]
    looping = [at for at, loop in enumerate(loops) if loop is not None]
    if not looping:
        return False
    ends: dict[_Function, int] = {}
    for at, (frame, loop) in enumerate(zip(frames, loops, strict=True)):
        key = frame.filename, frame.name.rpartition(".")[2]
        end = loop.end_lineno if loop is not None else frame.line
        ends[key] = end or frame.line if at >= looping[-1] else _NEVER
    reads = list(reads_of_items(place, filling.container, programs))
    return bool(reads) and all(
        _comes_after(program.at(read.lineno), ends, programs, _DEEPEST) for read, program in reads
    )


def _comes_after(
    place: Place | None, ends: Mapping[_Function, int], programs: Sequence[Program], depth: int
) -> bool:
    """Whether a statement, or all calls of its function, come after the ends of some functions."""
    if place is None:
        return False
    function = place.function
    name = function.name if function is not None else _MODULE
    end = ends.get((place.program.filename, name))
    if end is not None:
        return place.line > end
    if function is None or not depth:
        return False
    calls = [
        program.place(call)
        for program in programs
        for call in calls_in(program.tree, function.name)
    ]
    return bool(calls) and all(_comes_after(at, ends, programs, depth - 1) for at in calls)


def outermost_loop(frame: Frame) -> ast.stmt | None:
    """The outermost loop around a line of the program, in its own function."""
    place = place_of(frame)
    outermost = None
    for node in reversed((*place.around, place.statement) if place is not None else ()):
        if isinstance(node, FUNCTIONS):
            break
        outermost = node if isinstance(node, LOOPS) else outermost
    return outermost


@dataclass(frozen=True, slots=True)
class _Collection:
    """A variable with a list that loops of its own function fill."""

    name: str
    function: Function
    filled_by: tuple[ast.stmt, ...]
    """The loops, outermost first; it is made anew around them."""
    within: ast.stmt
    """The loop around those in which it is made anew, or the function."""

    @property
    def end(self) -> int:
        """The last line of the loops."""
        return self.filled_by[0].end_lineno or 0


def _collection(place: Place) -> _Collection | None:
    """The list that a statement fills; None where it is no variable that its function makes."""
    filling, function = growing(place), place.function
    if filling is None or function is None or not filling.container.isidentifier():
        return None
    name = filling.container
    creations = [
        statement
        for statement in ast.walk(function)
        if isinstance(statement, (ast.Assign, ast.AnnAssign))
        and any(name == one for target in bound_names(statement) for one in _names(target))
    ]
    inside = place.around[place.around.index(function) + 1 :]
    loops = [node for node in inside if isinstance(node, LOOPS)]
    filled_by = [loop for loop in loops if not any(one in ast.walk(loop) for one in creations)]
    if not creations or not filled_by:
        return None
    within = next((loop for loop in reversed(loops) if loop not in filled_by), function)
    return _Collection(name, function, tuple(filled_by), within)


def are_results_joined(program: Program, method: str) -> bool:
    """Whether a file joins all that calls of a method return, and does more than to reduce it.

    ``table = torch.cat(trainer.predict(…))``, or that of a variable that the call is bound to.
    """
    joins = [at for call in calls_in(program.tree, method) for at in _joining(program, call)]
    return bool(joins) and all(reduction_of(at, (program,)) is None for at in joins)


def _joining(program: Program, returning: ast.Call) -> Iterator[Place]:
    """The statements that join what a call returns."""
    place = program.place(returning)
    if place is None:
        return
    names = {ast.unparse(one) for one in bound_names(place.statement)}
    for call in calls_in(place.scope, *_JOINS):
        at = program.place(call)
        is_own = any(one is returning for one in call.args)
        if at is not None and (is_own or any(ast.unparse(one) in names for one in call.args)):
            yield at


def _is_unasked(join: ast.Call, function: Function, program: Program) -> bool:
    """Whether a call runs only with a parameter that is off by default, and that nobody gives.

    ``return torch.stack(frames) if return_frames else frames[-1]``
    """
    for node in ast.walk(function):
        if not isinstance(node, (ast.If, ast.IfExp)):
            continue
        test, is_then = node.test, _is_in(join, node.body)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, is_then = test.operand, _is_in(join, node.orelse)
        if is_then and isinstance(test, ast.Name) and _is_off(test.id, function):
            return not _is_given(test.id, function, program)
    return False


def _is_in(node: ast.AST, branch: ast.expr | list[ast.stmt]) -> bool:
    parts = branch if isinstance(branch, list) else [branch]
    return any(one is node for part in parts for one in ast.walk(part))


def _is_off(name: str, function: Function) -> bool:
    """Whether a parameter's default is False or None."""
    arguments = function.args
    by_place = [*arguments.posonlyargs, *arguments.args]
    defaults = dict(
        zip([one.arg for one in by_place][::-1], arguments.defaults[::-1], strict=False)
    )
    of_keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    defaults |= {one.arg: default for one, default in of_keywords if default is not None}
    default = defaults.get(name)
    return isinstance(default, ast.Constant) and default.value in (False, None)


def _is_given(name: str, function: Function, program: Program) -> bool:
    """Whether a call in the file may give a parameter something else."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    at = names.index(name) - (names[:1] == ["self"]) if name in names else len(names)
    for call in calls_in(program.tree, function.name):
        by_name = (one.arg in (name, None) for one in call.keywords)
        if any(by_name) or len(call.args) > at or any(map(_is_starred, call.args)):
            return True
    return False


def _is_starred(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Starred)


def _names(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
