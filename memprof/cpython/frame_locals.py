"""The variables of a function's frame, read without touching the frame; looks for no frames.

Before Python 3.13 ``frame.f_locals`` of a function makes a dict that stays on the frame, or alters
the one that ``locals()`` gave the program: either keeps tensors alive that the function let go of.
Taking things out of it again unbinds variables where a trace or profile function is at work. So the
variables are read where the interpreter keeps them: by its own function on 3.12, and by the layout
of a frame, which is the same in every release of 3.10 and of 3.11, there.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
import types
from collections.abc import Callable

__all__ = ["frame_variable", "frame_variables"]

Variables = tuple[list[str], list[object]]
Reader = Callable[[types.FrameType], Variables]

_WORD = ctypes.sizeof(ctypes.c_void_p)


def frame_variables(frame: types.FrameType) -> Variables:
    """Names and values of a frame's variables, those of enclosing functions included.

    None where they cannot be read without altering the frame, or without running code of the
    program: a class body may have a namespace of any type.
    """
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return _of_namespace(frame.f_locals)
    return _of_function(frame)


def frame_variable(frame: types.FrameType, name: str) -> object:
    """The value of one variable of a function's frame; None if it has none or cannot be read."""
    if _one_of_function is not None and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return _one_of_function(frame, name)
    names, values = frame_variables(frame)
    return values[names.index(name)] if name in names else None


def _of_namespace(namespace: object) -> Variables:
    """A module's or a class body's own dict, which is no copy."""
    if not issubclass(type(namespace), dict):
        return [], []
    items: list[tuple[object, object]] = list(dict.items(namespace))  # type: ignore[arg-type]
    pairs = [(name, value) for name, value in items if issubclass(type(name), str)]
    return [str.__str__(name) for name, _ in pairs], [value for _, value in pairs]


def _through_proxy(frame: types.FrameType) -> Variables:
    """From Python 3.13 on ``f_locals`` is a view of the frame and makes no dict (PEP 667)."""
    items = list(frame.f_locals.items())
    return [name for name, _ in items], [value for _, value in items]


def _variable_by_name() -> Callable[[types.FrameType, str], object]:
    """Python 3.12 has ``PyFrame_GetVar``, which says ``NameError`` of an unbound variable."""
    one = ctypes.py_object
    function: Callable[[types.FrameType, str], object]
    function = ctypes.PYFUNCTYPE(one, one, one)(("PyFrame_GetVar", ctypes.pythonapi))
    return function


def _by_name() -> Reader:
    variable = _variable_by_name()

    def read(frame: types.FrameType) -> Variables:
        names: list[str] = []
        values: list[object] = []
        for name in _names(frame.f_code):
            try:
                values.append(variable(frame, name))
            except NameError:
                continue
            names.append(name)
        return names, values

    return read


def _names(code: types.CodeType) -> list[str]:
    """Names in the order of a frame's slots in 3.11; an argument that is a cell has one slot."""
    return list(dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)))


def _from_slots_3_11(frame: types.FrameType) -> Variables:
    """``PyFrameObject.f_frame`` -> ``_PyInterpreterFrame``: its ``f_code`` and ``localsplus``."""
    inner = ctypes.c_void_p.from_address(id(frame) + 3 * _WORD).value or 0
    return _from_slots(frame, inner + 4 * _WORD, inner + 9 * _WORD, _names(frame.f_code))


def _from_slots_3_10(frame: types.FrameType) -> Variables:
    """``PyFrameObject``: its ``f_code`` and ``f_localsplus``, where every cell has its own slot."""
    code = frame.f_code
    names = [*code.co_varnames, *code.co_cellvars, *code.co_freevars]
    slots = id(frame) + types.FrameType.__basicsize__ - _WORD
    return _from_slots(frame, id(frame) + 4 * _WORD, slots, names)


def _from_slots(
    frame: types.FrameType, code_at: int, slots: int, slot_names: list[str]
) -> Variables:
    code = frame.f_code
    if ctypes.c_void_p.from_address(code_at).value != id(code):
        return [], []
    names: list[str] = []
    values: list[object] = []
    cells = {*code.co_cellvars, *code.co_freevars}
    for at, name in enumerate(slot_names):
        try:  # an empty slot, or an empty cell
            value: object = ctypes.py_object.from_address(slots + at * _WORD).value
            if name in cells and type(value) is types.CellType:
                value = value.cell_contents
        except ValueError:
            continue
        names.append(name)
        values.append(value)
    return names, values


def _nothing(frame: types.FrameType) -> Variables:  # noqa: ARG001 - an interpreter not known here
    return [], []


def _reader() -> Reader:
    if sys.version_info >= (3, 13):
        return _through_proxy
    if sys.implementation.name != "cpython":
        return _nothing
    if sys.version_info >= (3, 12):
        return _by_name()
    size, reader = (
        (120, _from_slots_3_11) if sys.version_info >= (3, 11) else (360, _from_slots_3_10)
    )
    # a debug build has more in every object
    has_known_size = types.FrameType.__basicsize__ == size and object.__basicsize__ == 2 * _WORD
    return reader if has_known_size else _nothing


def _single_reader() -> Callable[[types.FrameType, str], object] | None:
    """Reads one variable without the others, where the interpreter has a way to."""
    if sys.version_info >= (3, 13):
        return lambda frame, name: frame.f_locals.get(name)
    if sys.implementation.name != "cpython" or sys.version_info < (3, 12):
        return None
    variable = _variable_by_name()

    def read(frame: types.FrameType, name: str) -> object:
        try:
            return variable(frame, name)
        except NameError:
            return None

    return read


_of_function, _one_of_function = _reader(), _single_reader()
