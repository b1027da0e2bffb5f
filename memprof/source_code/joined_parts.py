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
    called_name,
    calls_in,
    place_of,
)
from memprof.source_code.reduced_containers import reads_of_items
from memprof.source_code.reductions import reduction_of
from memprof.source_code.scopes import nodes_around
from memprof.source_code.verbs import SAME_VALUES
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
_JOINS = (
    *("array", "asarray", "cat", "column_stack", "concat", "concatenate", "dstack", "hstack"),
    *("nested_tensor", "pad_sequence", "stack", "vstack"),
)
_CONVERTING = SAME_VALUES | {"detach", "numpy"}


def is_joined_afterwards(place: Place) -> bool:
    """Whether the list that a statement fills is made and joined around the statement's loops.

    ``parts = []; for …: parts.append(x); return torch.cat(parts)``, in one function, or outside of
    all. Not where it is joined only if a parameter asks for that, as nobody in the file does.
    """
    collection = _collection(place)
    return collection is not None and any(
        call.lineno > collection.end
        and call.args
        and _is_whole(call.args[0], collection, place.program)
        and _is_of_scope(call, collection, place.program)
        for call in calls_in(collection.within, *_JOINS)
    )


def _is_whole(value: ast.expr, collection: _Collection, program: Program) -> bool:
    """Whether an expression has all items of a list: ``parts``, ``[x.cpu() for x in parts]``.

    Of a dict of lists also the variable of a loop over it: ``for rows in parts.values()``.
    """
    if isinstance(value, (ast.ListComp, ast.GeneratorExp)):
        loop, item = value.generators[0], value.elt
        while isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute):
            if called_name(item) not in _CONVERTING:
                return False
            item = item.func.value
        is_each = len(value.generators) == 1 and not loop.ifs
        is_each = is_each and ast.unparse(item) == ast.unparse(loop.target)
        return is_each and _is_whole(loop.iter, collection, program)
    text = ast.unparse(value)
    if not collection.of_dict or not isinstance(value, ast.Name):
        return text == collection.container
    place = program.place(value)
    around = nodes_around(place.statement, value) if place is not None else []
    loops = [loop for one in around for loop in getattr(one, "generators", ())]
    loops += [
        one for one in (place.around if place is not None else ()) if isinstance(one, ast.For)
    ]
    return any(
        isinstance(loop.iter, ast.Call)
        and ast.unparse(loop.iter.func)
        in (f"{collection.of_dict}.items", f"{collection.of_dict}.values")
        and text in _names(loop.target)
        for loop in loops
    )


def _is_of_scope(join: ast.Call, collection: _Collection, program: Program) -> bool:
    """Whether a call that joins a list is where that is a variable, and may run."""
    if collection.function is None:
        at = program.place(join)
        return at is not None and at.function is None
    return not _is_unasked(join, collection.function, program)


def is_returned_afterwards(place: Place) -> bool:
    """Whether the list that a statement fills is made and returned around the statement's loop.

    ``outputs = []; for …: outputs.append(x); return outputs``: it is the function's result, also as
    one of several, and as long as what a ``for`` goes over. Not where the loop trains.
    """
    collection = _collection(place)
    if collection is None or collection.function is None:
        return False
    if collection.within is not collection.function:
        return False
    loops = collection.filled_by
    if any(isinstance(loop, ast.While) for loop in loops) or any(calls_in(loops[0], *_TRAINING)):
        return False
    return any(
        isinstance(node, ast.Return)
        and node.lineno > collection.end
        and any(
            isinstance(one, ast.Name) and one.id == collection.container
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
        _comes_after(program.place(read), ends, programs, _DEEPEST) for read, program in reads
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
    """A list that loops fill, of a variable that is made beside them."""

    name: str
    """The variable's."""
    container: str
    """The list as it is filled: the variable, or ``parts["logits"]`` of one with a dict."""
    function: Function | None
    """None for one of the file itself, outside of all functions."""
    filled_by: tuple[ast.stmt, ...]
    """The loops, outermost first; it is made anew around them."""
    within: ast.AST
    """The loop around those in which it is made anew, or the function, or the file."""

    @property
    def of_dict(self) -> str:
        """The variable of the dict that has the list; empty where it has the list itself."""
        return self.name if self.container != self.name else ""

    @property
    def end(self) -> int:
        """The last line of the loops."""
        return self.filled_by[0].end_lineno or 0


def _collection(place: Place) -> _Collection | None:
    """The list that a statement fills; None where it is no variable made beside its loops."""
    filling, scope = growing(place), place.scope
    if filling is None:
        return None
    name = filling.container.split("[", 1)[0]  # of a dict of lists
    if not name.isidentifier() or (filling.keyed and name == filling.container):
        return None
    statements = ast.walk(scope) if place.function is not None else _outside_functions(scope)
    creations = [
        statement
        for statement in statements
        if isinstance(statement, (ast.Assign, ast.AnnAssign))
        and any(name == one for target in bound_names(statement) for one in _names(target))
    ]
    inside = place.around[place.around.index(scope) + 1 :] if place.function else place.around
    loops = [node for node in inside if isinstance(node, LOOPS)]
    filled_by = [loop for loop in loops if not any(one in ast.walk(loop) for one in creations)]
    if not creations or not filled_by:
        return None
    within = next((loop for loop in reversed(loops) if loop not in filled_by), scope)
    return _Collection(name, filling.container, place.function, tuple(filled_by), within)


def _outside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a file that are in no function or class."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node
            yield from _outside_functions(node)


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
