"""What is registered with `atexit`: C keeps it, where no search from Python's names comes."""

from __future__ import annotations

import atexit
import functools
import inspect
import types

from memprof.cpython.signal_errors import guarded_errors
from memprof.reference_chain import Link, LinkKind
from memprof.referrers.introspection import is_one_of, qualified_name
from memprof.sources.user_files import is_user_file

__all__ = ["exit_link"]

_CALLABLE = (types.MethodType, types.FunctionType, functools.partial)


class _Listener:
    """Equal to nothing, it hears with what it is compared."""

    __slots__ = ("heard",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.heard: list[object] = []

    def __eq__(self, other: object) -> bool:
        self.heard.append(other)
        return False


def exit_link(top: object) -> Link | None:
    """The link of `atexit` to what nothing else holds; None where that is not registered.

    ``top`` is a function or a method that is to be called at the end, or what one is to be given:
    a tuple of arguments, or a dict of those that are handed over by name.
    """
    if is_one_of(type(top), _CALLABLE):
        return _function_link(top) if any(one is top for one in _exit_functions()) else None
    if type(top) not in (tuple, dict):
        return None
    # which arguments belong to which function is not to be seen: there must be one only
    links = [
        link
        for one in _exit_functions()
        if (link := _function_link(one)) and is_user_file(link.filename)
        if type(top) is tuple or _takes(one, top)
    ]
    distinct = dict.fromkeys((link.type_name, link.filename) for link in links)
    return links[0] if len(distinct) == 1 else None


def _takes(function: object, given: object) -> bool:
    """Whether a function has parameters of the names in a dict; asks nothing of other keys."""
    plain = _plain_function(function)
    names = list(given) if type(given) is dict else []
    if plain is None or not names or any(type(name) is not str for name in names):
        return False
    code = plain.__code__
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return bool(code.co_flags & inspect.CO_VARKEYWORDS) or set(names) <= set(own)


def _exit_functions() -> list[object]:
    """All functions to be called at the end; the only way to them is to take out one of them.

    Nothing equals what is asked to be taken out, so all stay. Functions, methods and partials
    compare in C; only a callable of a class with an ``__eq__`` of its own runs code for it.
    """
    listener = _Listener()
    try:
        atexit.unregister(listener)  # type: ignore[arg-type]
    except guarded_errors():  # of such an ``__eq__``: with a part of them none can be told apart
        return []
    return listener.heard


def _function_link(function: object) -> Link | None:
    plain = _plain_function(function)
    if plain is None:
        return None
    code = plain.__code__
    return Link(LinkKind.ATEXIT, "atexit", qualified_name(plain), code.co_filename)


def _plain_function(function: object) -> types.FunctionType | None:
    """The function in Python that a method or a partial calls; None for others."""
    while isinstance(function, functools.partial):
        function = functools.partial.func.__get__(function)
    plain = function.__func__ if type(function) is types.MethodType else function
    # No `isinstance`, which asks an object for its ``__class__``.
    return plain if type(plain) is types.FunctionType else None
