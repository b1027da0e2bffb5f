"""Buffers of a model that are larger than what is read of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.analysis.suspicion import Pattern, Suspicion
from memprof.source_code.program import (
    Place,
    Program,
    bound_names,
    calls_in,
    loaded_names,
    place_of,
)
from memprof.trace import Category
from memprof.views.window import Window

__all__ = ["large_buffers"]

_LEAST_SHARE = 0.15


def large_buffers(window: Window) -> Iterator[Suspicion]:
    """Buffers that make much of the peak, of which the program reads a slice, or one not at all."""
    mask = window.at_peak & (window.category == Category.BUFFER)
    if window.share(window.bytes_of(mask)) < _LEAST_SHARE:
        return
    row = window.main_site(mask)
    place = place_of(window.frame_of(row))
    if place is None:
        return
    unread = _unread(window, place)
    if unread:
        own = mask & (window.site == window.site[row])
        yield Suspicion(
            Pattern.UNREAD_BUFFER,
            row,
            np.flatnonzero(own),
            0.6,
            f"are a buffer of `{window.module_name(row)}` that nothing reads, `{unread}`",
            window.bytes_of(own),
            window.replayed(window.whole(np.flatnonzero(own))),
            {"buffer": unread},
        )
        return
    name = _sliced(place.program)
    if name:
        yield Suspicion(
            Pattern.LARGE_BUFFER,
            row,
            np.flatnonzero(mask),
            0.5,
            f"are buffers of `{window.module_name(row)}`, of which a slice is read",
            window.bytes_of(mask),
            None,
            {"buffer": name},
        )


def _unread(window: Window, place: Place) -> str:
    """The buffer that a statement makes, where none of the program's files mentions it again.

    Not where its class has another base than a module's own: that one may read it.
    """
    class_ = place.class_
    if class_ is None or any(ast.unparse(b).rpartition(".")[2] != "Module" for b in class_.bases):
        return ""
    made = {ast.unparse(target) for target in bound_names(place.statement)}
    for call in calls_in(place.scope, "register_buffer"):
        values = set().union(
            *map(loaded_names, [*call.args[1:2], *(k.value for k in call.keywords)])
        )
        own = call in calls_in(place.statement, "register_buffer")
        name = _registered(call)
        if name and (own or made & values) and _mentions(window, name) == 1:
            return name
    return ""


def _registered(call: ast.Call) -> str:
    name = call.args[0] if call.args else None
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""


def _mentions(window: Window, name: str) -> int:
    """How often the program's files name an attribute, or have its name as a text.

    Many times where an attribute is asked for by a name that is put together.
    """
    found = 0
    for program in window.programs:
        for node in ast.walk(program.tree):
            found += isinstance(node, ast.Attribute) and node.attr == name
            found += isinstance(node, ast.Constant) and node.value == name
            found += 2 * bool(isinstance(node, ast.Call) and _asks_by_text(node))
    return found


def _asks_by_text(call: ast.Call) -> bool:
    by_text = ast.unparse(call.func) in ("getattr", "self.get_buffer", "vars")
    return by_text and not all(isinstance(a, ast.Constant) for a in call.args[1:2])


def _sliced(program: Program) -> str:
    """A registered buffer that is read as ``self.name[:…]``."""
    registered = {_registered(call) for call in calls_in(program.tree, "register_buffer")} - {""}
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            sliced = any(isinstance(n, ast.Slice) for n in ast.walk(node.slice))
            if sliced and node.value.attr in registered and isinstance(node.ctx, ast.Load):
                return node.value.attr
    return ""
