"""What came of results that a program keeps for a while: reductions of them, or nothing at all."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.call_sites import handed_over
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import (
    Place,
    Program,
    assigned,
    bound_names,
    called_name,
    calls_in,
    place_of,
)
from memprof.source_code.scopes import parameters
from memprof.source_code.values import values_of
from memprof.source_code.verbs import FILLING, SAME_VALUES
from memprof.trace import EMPTY, Frame
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = [
    "Fate",
    "are_read_whole",
    "calling_frame",
    "fate_of",
    "fates",
    "handed_outside",
    "reads_outside_torch",
]

_FEWEST = 4
"""Results: fewer may be what a loop has in hand."""
_NEARLY_ALL = 0.9
"""Of the results of a line: in its last turns a loop may do something else with them."""
_MOST_REDUCED = 1 / 3
"""Of their bytes, that what they are reduced to takes: indices take eight bytes, scores four."""
_MOST_LINES = 3
"""That are named."""
_MODULE_CALL = "_call_impl"
_OUTSIDE_TORCH = ("array", "asarray", "dump", "dumps", "from_dlpack", "numpy", "save", "tolist")
"""What reads a tensor without an operator of torch's …"""
_GIVING_PARTS = SAME_VALUES - {"expand", "repeat"} | {
    "chunk",
    "detach",
    "split",
    "tensor_split",
    "unbind",
}
_DEEPEST = 4
"""Names that are followed, one to the next."""
_JSON = "json."
"""It takes no tensors."""
_SMALL = (
    *("all", "any", "argmax", "argmin", "max", "mean", "min", "norm", "sum", "topk"),
    *("argsort", "bincount", "multinomial", "nonzero", "unique", "where"),
    *("arange", "item", "linspace", "rand", "randint", "randn", "randperm", "size", "tensor"),
)
"""… and what gives it something small to read, or places in something."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A row of `KeptResults`."""

    size: int
    count: int
    needed: int
    unread: int
    reduced: int
    readers: list[int]
    computed: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Fate:
    """What operators did with results that had outlived calls of models, to the results' end."""

    stack: int
    sizes: tuple[int, ...]
    """Bytes of one: batches differ."""
    count: int
    reduced: int
    """Bytes of what they were reduced to."""
    readers: tuple[Frame, ...]
    """The program's lines that reduced them; empty where nothing was computed of them."""
    computed: tuple[int, ...]
    """Stacks of what was computed of them value by value, or joined of them."""

    @property
    def lines(self) -> str:
        """The lines with their verb: ``line 45 and line 47 reduce``."""
        lines = [f"line {frame.line}" for frame in self.readers[:_MOST_LINES]]
        where = " and ".join(filter(None, (", ".join(lines[:-1]), lines[-1])))
        return f"{where} {'reduces' if len(lines) == 1 else 'reduce'}"

    @property
    def figures(self) -> str:
        """How many they were, and what remains: ``all 24 to 2.99 MiB``."""
        return f"all {self.count} to {format_bytes(self.reduced)}"


def fates(window: Window) -> Iterator[Fate]:
    """Those of lines whose results were nearly all reduced, or nearly all read by nothing."""
    for stack, entries in _by_stack(window).items():
        count, needed = sum(one.count for one in entries), sum(one.needed for one in entries)
        unread = sum(one.unread for one in entries)
        if stack == EMPTY or count < _FEWEST or count - needed < _NEARLY_ALL * count:
            continue
        if calling_frame(window, stack) is None:
            continue  # a library keeps them, and hands them to NumPy as it likes
        # What was read before it had outlived enough calls is not known to have been.
        is_unread = unread >= _NEARLY_ALL * count
        readers = [] if is_unread else [row for one in entries for row in one.readers]
        reduced = sum(one.reduced for one in entries)
        nbytes = sum((one.count - one.needed - one.unread) * one.size for one in entries)
        frames = _lines(window, readers)
        if is_unread or (frames and reduced <= _MOST_REDUCED * nbytes):
            computed = tuple(row for one in entries for row in one.computed)
            sizes = tuple(sorted({one.size for one in entries}))
            yield Fate(stack, sizes, count, reduced, frames, computed)


def are_read_whole(window: Window, stacks: Collection[int]) -> bool:
    """Whether operators read all of nearly every result of some stacks, long after it was made."""
    by_stack = _by_stack(window)
    if not stacks or not by_stack.keys() >= set(stacks):
        return False
    entries = [entry for one in stacks for entry in by_stack[one]]
    return sum(one.needed for one in entries) >= _NEARLY_ALL * sum(one.count for one in entries)


def _by_stack(window: Window) -> dict[int, list[_Entry]]:
    """What is known of each stack's results, an entry for each of their sizes."""
    by_stack: dict[int, list[_Entry]] = {}
    for record in window.kept_results:
        figures = (record.size, record.count, record.needed, record.unread, record.reduced)
        rows = zip(record.stack, *figures, record.readers, record.computed, strict=True)
        for stack, *entry in rows:
            by_stack.setdefault(stack, []).append(_Entry(*entry))
    return by_stack


def calling_frame(window: Window, stack: int) -> Frame | None:
    """The program's line that called what made them: a model, or a function of torch's.

    None where a library did.
    """
    frames = window.trace.stack(stack)
    calls = [at for at, frame in enumerate(frames) if _MODULE_CALL in frame.name]
    outside = frames[calls[-1] + 1 :] if calls else frames
    kinds = ((frame, frame_kind(frame.filename)) for frame in outside)
    caller = next((pair for pair in kinds if pair[1] is not FrameKind.TORCH), None)
    return caller[0] if caller is not None and caller[1] is FrameKind.USER else None


def fate_of(window: Window, frames: Sequence[Frame]) -> Fate | None:
    """The same of what one stack made, innermost frame first; None where that is not known."""
    alike = (one for one in fates(window) if window.trace.stack(one.stack) == tuple(frames))
    return next(alike, None)


def _lines(window: Window, stacks: Sequence[int]) -> tuple[Frame, ...]:
    frames = (window.user_frames(window.trace.stack(stack)) for stack in stacks)
    return tuple(dict.fromkeys(own[0] for own in frames if own))


def reads_outside_torch(programs: Sequence[Program]) -> bool:
    """Whether a file hands tensors on to what torch's operators do not see, and not small ones."""
    return any(_hands_outside(program, program.tree, programs) for program in programs)


def handed_outside(frames: Sequence[Frame], reader: Frame | None) -> bool:
    """Whether a function that a result goes through hands something on to such.

    Args:
        frames: the program's own lines that made it, innermost first.
        reader: the line that reads it: it goes no further out than to that function.
    """
    for frame in frames:
        place = place_of(frame)
        if place is None or _hands_on(place, reader):
            return True
        if reader is not None and (frame.filename, frame.name) == (reader.filename, reader.name):
            return False
    return False


def _hands_on(place: Place, reader: Frame | None) -> bool:
    """Whether a function hands something on that may be what a statement of it binds or returns.

    By the names that it has there. What ``reader`` makes of it is no part of it.
    """
    statement, programs = place.statement, (place.program,)
    if isinstance(statement, ast.Return):
        return _hands_outside(place.program, statement, programs)
    names = {_held_by(one) for one in bound_names(statement)}
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or not names:
        return _hands_outside(place.program, place.scope, programs)
    is_there = reader is not None and reader.filename == place.program.filename
    read_at = reader.line if reader is not None and is_there else 0
    others = [
        (target, value)
        for node in ast.walk(place.scope)
        if not (isinstance(node, ast.stmt) and _has_line(node, read_at))
        for target, value in (*assigned(node), *_gone_through(node), *_filled(node))
        if value is not None
    ]
    known = 0
    while known < len(names):
        known = len(names)
        names |= {_held_by(target) for target, value in others if _texts(value) & names}
    given = (one for call in _calls_outside(place.scope) for one in _given(call))
    return any(_texts(one) & names and not _is_small_at(place, one, programs) for one in given)


def _held_by(target: ast.expr) -> str:
    """The name of what has a target's value: of an entry the container's."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return ast.unparse(target)


def _filled(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a method is called of that may store what it is given: ``parts.append(x)``."""
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    if is_method and node.func.attr in FILLING:  # type: ignore[attr-defined]
        yield from ((node.func.value, value) for value in node.args)  # type: ignore[attr-defined]


def _gone_through(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a loop takes its variables from."""
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield from ((target, node.iter) for target in _targets(node.target))


def _targets(target: ast.expr) -> list[ast.expr]:
    return [one for one in ast.walk(target) if isinstance(one, ast.Name)]


def _texts(value: ast.AST) -> set[str]:
    """The names and attributes in an expression."""
    parts = (one for one in ast.walk(value) if isinstance(one, (ast.Name, ast.Attribute)))
    return {ast.unparse(one) for one in parts}


def _has_line(statement: ast.stmt, line: int) -> bool:
    """Whether a statement without a body of its own is on a line."""
    is_there = statement.lineno <= line <= (statement.end_lineno or statement.lineno)
    return is_there and not hasattr(statement, "body")


def _calls_outside(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls by which something reads a tensor without an operator of torch's."""
    calls = calls_in(tree, *_OUTSIDE_TORCH)
    return (call for call in calls if not ast.unparse(call.func).startswith(_JSON))


def _hands_outside(program: Program, tree: ast.AST, programs: Sequence[Program]) -> bool:
    return any(
        not any(_is_small_at(program.place(call), one, programs) for one in _given(call))
        for call in _calls_outside(tree)
    )


def _is_small_at(
    place: Place | None, value: ast.expr, programs: Sequence[Program], depth: int = _DEEPEST
) -> bool:
    """Whether a value is of what is small; a name by what it is bound to, or handed by a call.

    ``rows.tolist()``, for ``rows`` of ``torch.randperm(n).split(k)`` that was handed on.
    """
    if _is_small(value):
        return True
    while isinstance(value, (ast.Call, ast.Subscript)):
        inner = value.value if isinstance(value, ast.Subscript) else _receiver(value)
        if inner is None:
            return False
        value = inner
    if place is None or not isinstance(value, ast.Name) or not depth:
        return False
    taken_from = _iterated(place, value.id)
    if taken_from is not None:
        return _is_small_at(place, taken_from, programs, depth - 1)
    if place.function is not None and value.id in parameters(place.function):
        handed = handed_over(place, value, programs)
        return handed is not None and _is_small_at(*handed, programs, depth - 1)
    values = list(values_of(place, value.id))
    return bool(values) and all(
        one is not None and _is_small_at(place, one, programs, depth - 1) for one in values
    )


def _receiver(call: ast.Call) -> ast.expr | None:
    """``rows`` of ``rows.split(64)``, and of other methods that give no more than there is."""
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in _GIVING_PARTS
    return call.func.value if is_method else None  # type: ignore[attr-defined]


def _iterated(place: Place, name: str) -> ast.expr | None:
    """What a loop around a statement, or a comprehension in it, takes a variable from."""
    for node in (*reversed(place.around), *ast.walk(place.statement)):
        if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            targets = (one for one in ast.walk(node.target) if isinstance(one, ast.Name))
            if any(one.id == name for one in targets):
                return node.iter
    return None


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) else ())]


def _is_small(value: ast.expr) -> bool:
    return any(called_name(node) in _SMALL for node in ast.walk(value))
