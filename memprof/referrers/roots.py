"""Where a search starts: the frames of every thread and the modules; follows no reference."""

from __future__ import annotations

import inspect
import linecache
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from memprof.cpython.frame_locals import frame_variables
from memprof.referrers.introspection import text_of
from memprof.sources.user_files import is_user_file

__all__ = [
    "ClassesByOwner",
    "Root",
    "classes_by_owner",
    "ended_by",
    "frame_roots",
    "is_own",
    "is_own_module",
    "module_root",
    "module_roots",
    "source_line",
]

_PACKAGE = __name__.split(".")[0]
_INSIDE = f"{_PACKAGE}."
_MOST_CAUSES = 16
"""Exceptions that one came of, which are followed."""
_ends: list[BaseException] = []
"""The exception with which the program ends, while its last search runs."""


@dataclass(frozen=True)
class Root:
    """Named values that are alive by themselves: a frame's variables or a module's globals."""

    kind: str
    """``"frame"``, ``"module"``; or ``"iterated"``: a generator that a loop goes through."""
    owner: str
    """The function's or the module's name."""
    names: list[str]
    values: list[object]
    filename: str = ""
    line: int = 0
    thread: str = ""
    """The thread's name where it is not the one that searches."""
    user: bool = True
    """Whether the code is the user's own, not a library's."""
    free: frozenset[str] = frozenset()
    """Variables of a frame that belong to an enclosing function."""

    def name_of(self, value: object) -> str:
        """The name that ``value`` has here; empty when it is gone."""
        for name, other in zip(self.names, self.values, strict=True):
            if other is value:
                return name
        return ""


def is_own(globals_: dict[str, object]) -> bool:
    """Whether a frame or module with these globals is memprof's."""
    name = dict.get(globals_, "__name__")
    if type(name) is str and name == "__main__":  # of `python -m memprof.record.launch`
        name = dict.get(globals_, "__package__")
    return is_own_module(name)


def is_own_module(name: object) -> bool:
    """Whether a name of a module, or what stands in its place, is that of one of memprof's."""
    return type(name) is str and (name == _PACKAGE or name.startswith(_INSIDE))


def source_line(filename: str, line: int) -> str:
    """The text of a line, stripped; empty where the source is not there."""
    return linecache.getline(filename, line).strip() if filename and line > 0 else ""


@contextmanager
def ended_by(error: BaseException | None) -> Iterator[None]:
    """Take the calls that an exception went through for running ones: it ends the program.

    Nobody has stored it, and what its frames refer to was in use a moment ago.
    """
    if error is not None:
        _ends.append(error)
    try:
        yield
    finally:
        _ends.clear()


def frame_roots() -> list[Root]:
    """The frames of all threads, outermost first, users' before libraries', without memprof's.

    Within `ended_by` also those that the exception went through.
    """
    threads = list(threading._active.values())  # type: ignore[attr-defined]
    names = {thread.ident: thread.name for thread in threads}
    here = threading.get_ident()
    roots: list[Root] = []
    tops = sys._current_frames()
    while tops:  # no variable may keep a frame: the top one of this thread is our own
        ident = next(iter(tops))
        thread = "" if ident == here else names.get(ident, str(ident))
        roots += _stack_roots(tops.pop(ident), thread)
    for error in _ends:
        roots += _ended_roots(error)
    return sorted(roots, key=lambda root: not root.user)


def _stack_roots(top: types.FrameType | None, thread: str) -> list[Root]:
    roots: list[Root] = []
    while top is not None:
        if not is_own(top.f_globals) and not _is_module_level(top):
            roots.append(_frame_root(top, thread))
        top = top.f_back
    return roots[::-1]


def _ended_roots(error: BaseException) -> list[Root]:
    roots: list[Root] = []
    following: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if following is None:
            break
        traceback = following.__traceback__
        while traceback is not None:
            frame, traceback = traceback.tb_frame, traceback.tb_next
            if not is_own(frame.f_globals) and not _is_module_level(frame):
                roots.append(_frame_root(frame, ""))
        following = following.__cause__ or following.__context__
    return roots


def _is_module_level(frame: types.FrameType) -> bool:
    return (
        frame.f_locals is frame.f_globals
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED
        else False
    )


def _frame_root(frame: types.FrameType, thread: str) -> Root:
    names, values = frame_variables(frame)
    code = frame.f_code
    return Root(
        "frame",
        code.co_name,
        names,
        values,
        code.co_filename,
        frame.f_lineno or code.co_firstlineno,
        thread,
        is_user_file(code.co_filename),
        frozenset(code.co_freevars),
    )


def module_roots(*, user: bool) -> list[Root]:
    """The globals of the user's modules, or of libraries'; never memprof's."""
    roots = []
    visited: set[int] = set()  # ``multiprocessing`` calls the main module ``__mp_main__`` as well
    for name, module in list(sys.modules.items()):
        if type(name) is not str or not issubclass(type(module), types.ModuleType):
            continue
        variables = types.ModuleType.__getattribute__(module, "__dict__")
        if type(variables) is not dict or id(variables) in visited or is_own(variables):
            continue
        visited.add(id(variables))
        if _is_user_module(name, variables) == user:
            roots.append(_module_root(name, variables, user=user))
    return roots


def module_root(name: str, module: types.ModuleType) -> Root:
    """The globals of one module."""
    variables = types.ModuleType.__getattribute__(module, "__dict__")
    return _module_root(name, variables, user=_is_user_module(name, variables))


@dataclass(frozen=True, slots=True)
class ClassesByOwner:
    """Classes by who has them; none of the lists has those of the program."""

    own: list[type]
    """Of memprof's modules."""
    named_by_libraries: list[type]
    """Those that a module of a library has under their own names."""
    of_no_module: list[type]
    """Made in C without saying where: what autograd makes of its nodes."""


def classes_by_owner(classes: Iterable[type]) -> ClassesByOwner:
    """Sort ``classes`` in one pass: to look at ten thousand of them costs what memory does."""
    variables_of: dict[str, dict[str, object] | None] = {}
    attributes_of = type.__dict__["__dict__"].__get__
    name_of = type.__dict__["__name__"].__get__
    sorted_classes = ClassesByOwner([], [], [])
    for kind in classes:
        attributes = attributes_of(kind)
        module = attributes.get("__module__")
        if type(module) is not str:
            if "__module__" not in attributes:
                sorted_classes.of_no_module.append(kind)
            continue
        if module not in variables_of:
            variables_of[module] = _library_variables(module)
        variables = variables_of[module]
        if variables is None:
            if is_own_module(module):
                sorted_classes.own.append(kind)
        elif variables.get(name_of(kind)) is kind:
            sorted_classes.named_by_libraries.append(kind)
    return sorted_classes


def _library_variables(name: str) -> dict[str, object] | None:
    """The globals of a library's module, but memprof's; None where there is none of that name."""
    module = sys.modules.get(name) if not is_own_module(name) else None
    if module is None or not issubclass(type(module), types.ModuleType):
        return None
    variables = types.ModuleType.__getattribute__(module, "__dict__")
    if type(variables) is not dict or _is_user_module(name, variables):
        return None
    return variables


def _module_root(name: str, variables: dict[str, object], *, user: bool) -> Root:
    # There may be a thousand modules with hundreds of names each: no step of Python for each name.
    moment = variables.copy()  # at once: other threads may define more
    names, values = list(moment), list(moment.values())
    if set(map(type, names)) != {str}:
        names = [text_of(key) for key in names]
    if "__builtins__" in names:
        at = names.index("__builtins__")
        del names[at], values[at]
    filename = variables.get("__file__")
    return Root(
        "module",
        name,
        names,
        values,
        filename if type(filename) is str else "",
        user=user,
    )


def _is_user_module(name: str, variables: dict[str, object]) -> bool:
    if type(name) is str and name == "__main__":
        return True
    filename = variables.get("__file__")
    if type(filename) is str:
        return is_user_file(filename)
    # a module made by hand has no spec; built-in and namespace modules have one
    return (
        variables.get("__spec__") is None
        and variables.get("__loader__") is None
        and name != "builtins"
    )
