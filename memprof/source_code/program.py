"""The user's program as syntax: the statement at a line, what encloses it, what its names do.

Read from the files that stacks and holders name; nothing is imported or run. A file that is not
here any more, or does not parse, is no `Program`, and whoever asks goes without.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from memprof.runfile.source_digests import MOST_BYTES, digest_of
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.parse import syntax_tree
from memprof.trace import Frame

__all__ = [
    "MOST_PROGRAMS",
    "Place",
    "Program",
    "arguments",
    "assigned",
    "bound_names",
    "called_name",
    "calls_in",
    "code_of",
    "excerpt",
    "imported_by",
    "lines_of",
    "loaded_names",
    "nodes_of",
    "own_calls",
    "place_of",
    "program_of",
    "root_name",
    "source_of",
    "with_imported",
]

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_MOST_LINES = 100_000
MOST_PROGRAMS = 64
"""Files of a program, that are looked at together."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Place:
    """A statement with what encloses it, outermost first."""

    program: Program
    statement: ast.stmt
    around: tuple[ast.AST, ...]

    @property
    def line(self) -> int:
        """The statement's first line."""
        return self.statement.lineno

    @property
    def lines(self) -> range:
        """All lines of the statement."""
        return range(self.line, (self.statement.end_lineno or self.line) + 1)

    @property
    def code(self) -> str:
        """The text of that line."""
        return self.program.code(self.statement.lineno)

    @property
    def function(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The innermost function around it."""
        return next((n for n in reversed(self.around) if isinstance(n, FUNCTIONS)), None)

    @property
    def loop(self) -> ast.For | ast.AsyncFor | ast.While | None:
        """The innermost loop around it in the same function."""
        for node in reversed(self.around):
            if isinstance(node, FUNCTIONS):
                return None
            if isinstance(node, LOOPS):
                return node
        return None

    @property
    def class_(self) -> ast.ClassDef | None:
        """The innermost class around it."""
        return next((n for n in reversed(self.around) if isinstance(n, ast.ClassDef)), None)

    @property
    def scope(self) -> ast.AST:
        """The function around it, else the whole file."""
        return self.function or self.program.tree


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Inside:
    """The statements, handlers or cases right inside a node, in order."""

    children: tuple[ast.AST, ...]
    first_lines: tuple[int, ...]
    """Of each, with its decorators."""
    last_lines: tuple[int, ...]

    @classmethod
    def of(cls, node: ast.AST) -> _Inside:
        """Those of a node."""
        children = tuple(_children(node))
        lines = [_lines_covered(child) for child in children]
        return cls(children, tuple(one[0] for one in lines), tuple(one[1] for one in lines))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Program:
    """One source file."""

    filename: str
    text: str
    lines: tuple[str, ...]
    tree: ast.Module
    modified_us: int = 0
    """When the file was written, in microseconds since the Unix epoch."""
    digest: str = ""
    """`source_digests.digest_of` the file."""
    is_excerpt: bool = False
    """One line of a text that is no file here: nothing is known of what stands around it."""
    _places: dict[tuple[int, int], Place] = field(default_factory=dict)
    _inside: dict[int, _Inside] = field(default_factory=dict)
    """By the identity of a node."""

    def code(self, line: int) -> str:
        """The text of a line without its newline; empty where there is no such line."""
        return self.lines[line - 1].rstrip() if 0 < line <= len(self.lines) else ""

    def at(self, line: int) -> Place | None:
        """The innermost statement that covers ``line``, the first of several."""
        return self._at(line, -1)

    def place(self, node: ast.AST) -> Place | None:
        """The statement that a node of this file's tree stands in."""
        return self._at(getattr(node, "lineno", 0), getattr(node, "col_offset", -1))

    def _at(self, line: int, column: int) -> Place | None:
        if (line, column) not in self._places:
            place = _innermost(self, line, column)
            if place is None:
                return None
            self._places[line, column] = place
        return self._places[line, column]

    def statement_in(self, node: ast.AST, line: int, column: int = -1) -> ast.AST | None:
        """The first statement, handler or case right inside a node that covers a line.

        Unless it is -1, also a column of it. A file of thousands of lines is asked for thousands of
        places: the statements of a node stand in order, and those that end before are passed over.
        """
        inside = self._inside.get(id(node))
        if inside is None:
            inside = self._inside[id(node)] = _Inside.of(node)
        first, end = bisect_left(inside.last_lines, line), bisect_right(inside.first_lines, line)
        return next((c for c in inside.children[first:end] if _covers(c, line, column)), None)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree, as `ast.walk` goes through them."""
        return nodes_of(self.tree)

    def functions(self, name: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every function or method of that name."""
        return [n for n in self.nodes if isinstance(n, FUNCTIONS) and n.name == name]

    def classes(self) -> list[ast.ClassDef]:
        """Every class."""
        return [n for n in self.nodes if isinstance(n, ast.ClassDef)]


def program_of(filename: str) -> Program | None:
    """The user's file of that name, if it is here and parses."""
    return source_of(filename) if frame_kind(filename) is FrameKind.USER else None


def source_of(filename: str) -> Program | None:
    """A file of whoever's, if it is here and parses: what a library's class has for methods.

    Whether it is the version that ran is not known of a library's.
    """
    if not filename.endswith((".py", ".pyw")):
        return None
    try:
        path = Path(filename)
        status = path.stat()
        if status.st_size > MOST_BYTES:
            return None
        return _read_program(filename, status.st_mtime_ns, status.st_size)
    except OSError:
        return None


def place_of(frame: Frame) -> Place | None:
    """The statement at a frame's line; None where its file is not here, or another than ran."""
    program = None if frame.changed else program_of(frame.filename)
    return program.at(frame.line) if program is not None else None


def code_of(frame: Frame) -> str:
    """The text of a frame's line, stripped; empty where its file is not here, or another."""
    program = None if frame.changed else program_of(frame.filename)
    return program.code(frame.line).strip() if program is not None else ""


def imported_by(program: Program) -> Iterator[Program]:
    """The user's files beside a file (or below, or one above) that it imports."""
    for filename in _files_imported(program):
        program_there = program_of(filename)
        if program_there is not None:
            yield program_there


@lru_cache(maxsize=128)
def _files_imported(program: Program) -> tuple[str, ...]:
    """Where those files would lie."""
    filenames = []
    folder = Path(program.filename).parent
    for node in program.nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module or ''}.{a.name}" for a in node.names)]
        else:
            continue
        for beside in (folder, folder.parent):
            for name in names:
                path = beside.joinpath(*name.strip(".").split("."))
                filenames += [str(path.with_suffix(".py")), str(path / "__init__.py")]
    return tuple(filenames)


def with_imported(programs: Sequence[Program]) -> list[Program]:
    """Those files, and files of the user's that they import; at most ``MOST_PROGRAMS``."""
    by_name = {program.filename: program for program in programs}
    waiting = list(programs)
    while waiting and len(by_name) < MOST_PROGRAMS:
        for program in imported_by(waiting.pop()):
            if program.filename not in by_name:
                by_name[program.filename] = program
                waiting.append(program)
    return list(by_name.values())


def excerpt(filename: str, line: int, code: str) -> Program | None:
    """A single statement as the job read it, of a notebook's cell or of a file that is not here.

    None where the line is no whole statement, or one that has others in it.
    """
    if not 0 < line < _MOST_LINES or frame_kind(filename) is not FrameKind.USER:
        return None
    tree = syntax_tree(code.strip())
    if tree is None or len(tree.body) != 1 or hasattr(tree.body[0], "body"):
        return None
    ast.increment_lineno(tree, line - 1)
    lines = (*[""] * (line - 1), code.strip())
    return Program(filename, "\n".join(lines), lines, tree, is_excerpt=True)


@lru_cache(maxsize=128)
def _read_program(filename: str, modified_ns: int, _size: int) -> Program | None:
    try:
        content = Path(filename).read_bytes()
        text = content.decode("utf-8")  # line ends as they are
    except ValueError:
        return None
    digest = digest_of(content)
    tree = _tree(filename, digest, text)
    if tree is None:
        return None
    lines = tuple(line.rstrip("\r\n") for line in lines_of(text))
    return Program(filename, text, lines, tree, modified_ns // 1000, digest)


@lru_cache(maxsize=128)
def _tree(_filename: str, _digest: str, text: str) -> ast.Module | None:
    """The tree of a file, parsed once for its digest however often it is written anew.

    Of each file name its own, because whoever follows a value tells functions by their identity.
    """
    return syntax_tree(text)


def lines_of(text: str) -> list[str]:
    """The lines of a text with their ends, as Python's parser (and `git`) counts them.

    ``str.splitlines`` counts more: form feeds, and some characters of Unicode, end lines there.
    """
    return _LINE.findall(text)


def _innermost(program: Program, line: int, column: int) -> Place | None:
    innermost: ast.stmt | None = None
    around: list[ast.AST] = []
    node: ast.AST = program.tree
    while True:
        child = program.statement_in(node, line, column)
        if child is None:
            break
        around.append(node)
        if isinstance(child, ast.stmt):
            innermost = child
            inside = tuple(around)
        node = child
    return Place(program, innermost, inside[1:]) if innermost is not None else None


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The statements and the handlers inside a node, also those of lambdas' expressions: none."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield child


def _lines_covered(node: ast.AST) -> tuple[int, int]:
    """The first line of a node, or of its first decorator, and its last one."""
    line = getattr(node, "lineno", None)
    if line is None:  # a match_case has no position of its own
        parts = [part for part in ast.iter_child_nodes(node) if hasattr(part, "lineno")]
        lines = [_lines_covered(part) for part in parts]
        return min(first for first, _ in lines), max(last for _, last in lines)
    decorators = (one.lineno for one in getattr(node, "decorator_list", ()))
    return min([line, *decorators]), getattr(node, "end_lineno", None) or line


def _covers(node: ast.AST, line: int, column: int) -> bool:
    """True if a node is on a line and, unless that is -1, at a column of it."""
    first, last = _lines_covered(node)
    if not first <= line <= last:
        return False
    start, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", None)
    before = line == getattr(node, "lineno", 0) and 0 <= column < start
    return not before and not (line == last and end is not None and column >= end)


def called_name(call: ast.AST) -> str:
    """The last name of what is called: ``backward`` of ``loss.sum().backward()``."""
    if not isinstance(call, ast.Call):
        return ""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def calls_in(node: ast.AST, *names: str) -> list[ast.Call]:
    """The calls inside a node, in order of lines; of those names only where some are given."""
    return [call for call in _calls(node) if not names or called_name(call) in names]


@lru_cache(maxsize=8192)
def _calls(node: ast.AST) -> tuple[ast.Call, ...]:
    """All of them; trees are never changed once they are read, and asked by many rules."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    return tuple(sorted(calls, key=lambda c: (c.lineno, c.col_offset)))


@lru_cache(maxsize=128)
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """A file's or a class's node and all below it, as `ast.walk` goes through them."""
    return tuple(ast.walk(tree))


def own_calls(statement: ast.stmt, *names: str) -> list[ast.Call]:
    """The calls of a statement itself, of those names where some are given: none of its body."""
    inner_functions = [part for part in ast.iter_child_nodes(statement) if _is_nested(part)]
    inside = {id(call) for part in inner_functions for call in calls_in(part)}
    return [call for call in calls_in(statement, *names) if id(call) not in inside]


def _is_nested(node: ast.AST) -> bool:
    return isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case))


def root_name(node: ast.AST) -> str:
    """``x`` of ``x``, ``x.a``, ``x[i].b``, ``x.f().g``; empty for anything else."""
    while True:
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            return node.id if isinstance(node, ast.Name) else ""


def bound_names(statement: ast.AST) -> list[ast.expr]:
    """The targets that a statement binds: names, attributes and subscripts, tuples taken apart."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = list(statement.targets)
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor)):
        targets = [statement.target]
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        targets = [i.optional_vars for i in statement.items if i.optional_vars is not None]
    flat: list[ast.expr] = []
    while targets:
        target = targets.pop(0)
        if isinstance(target, (ast.Tuple, ast.List)):
            targets = [*target.elts, *targets]
        else:
            flat.append(target.value if isinstance(target, ast.Starred) else target)
    return flat


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The targets of an assignment, each with what it is bound to: ``a, b = x, y`` one by one."""
    if isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        yield node.target, node.value
    if not isinstance(node, ast.Assign):
        return
    values = node.value.elts if isinstance(node.value, ast.Tuple) else []
    for target in node.targets:
        names = target.elts if isinstance(target, ast.Tuple) else []
        if names and len(names) == len(values):
            yield from zip(names, values, strict=True)
        else:
            inner = ast.Assign(targets=[target], value=node.value)
            yield from ((one, node.value) for one in bound_names(inner))


def arguments(call: ast.Call) -> Iterator[ast.expr]:
    """What a call is given, by position and by name."""
    yield from call.args
    yield from (keyword.value for keyword in call.keywords)


def loaded_names(node: ast.AST) -> set[str]:
    """The names that are read inside a node."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
