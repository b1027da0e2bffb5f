"""Buffers that modules register, and whether the program's source reads them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from memprof.source_code.program import (
    Place,
    Program,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    own_calls,
)
from memprof.source_code.scopes import qualified_name
from memprof.trace import Category
from memprof.views.window import Bools, Window

__all__ = [
    "buffers_made_by",
    "has_known_bases",
    "large_buffers",
    "mentions",
    "registered_in_loop",
    "registered_name",
    "unread_buffer",
]

_LEAST_SHARE = 0.15
"""Of the peak: tables of positions and masks are in most models, and small."""
_MODULES = frozenset(
    (
        *("torch.nn.Module", "torch.nn.modules.module.Module"),
        *("lightning.LightningModule", "lightning.pytorch.LightningModule"),
        *("pytorch_lightning.LightningModule", "pytorch_lightning.core.LightningModule"),
    )
)
"""Bases that know nothing of the buffers of a subclass."""
_BY_TEXT = frozenset(("get_buffer", "getattr", "vars"))
"""Calls that read an attribute by a text."""


def large_buffers(window: Window) -> Bools:
    """The buffers at the peak, where they make much of it; else none."""
    mask: Bools = window.at_peak & (window.category == Category.BUFFER)
    return mask & (window.share(window.bytes_of(mask)) >= _LEAST_SHARE)


def registered_name(call: ast.Call) -> str:
    """``mask`` of ``register_buffer("mask", …)``; empty where it is put together."""
    name = call.args[0] if call.args else None
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""


def buffers_made_by(place: Place) -> list[str]:
    """The buffers that a statement registers, or computes for a later line of its function."""
    targets = {ast.unparse(target) for target in bound_names(place.statement)}
    own = own_calls(place.statement, "register_buffer")
    names = []
    for call in calls_in(place.scope, "register_buffer"):
        values = [*call.args[1:2], *(k.value for k in call.keywords)]
        if call in own or targets & set().union(*map(loaded_names, values)):
            names.append(registered_name(call))
    return [name for name in names if name]


def unread_buffer(programs: Sequence[Program], place: Place) -> str:
    """The buffer that a statement makes, where nothing in the program's files names it again.

    Empty where its class has a base that may read it: any but torch's or Lightning's module.
    """
    if not has_known_bases(place):
        return ""
    names = buffers_made_by(place)
    return next((name for name in names if mentions(programs, name) == 1), "")


def registered_in_loop(place: Place) -> list[str]:
    """The names by which a loop registers what a dictionary has, in the order of that.

    ``for name, table in {"cos": …, "sin": …}.items(): self.register_buffer(name, table)``. Empty
    for other statements.
    """
    loop = place.statement
    items = (
        loop.iter.func if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) else None
    )
    table = items.value if isinstance(items, ast.Attribute) and items.attr == "items" else None
    if not isinstance(table, ast.Dict):
        return []
    keys = [
        one.value
        for one in table.keys
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]
    targets = list(map(ast.unparse, bound_names(loop)))
    given = [
        [*map(ast.unparse, call.args)][: len(targets)] for call in calls_in(loop, "register_buffer")
    ]
    return keys if given == [targets] and len(keys) == len(table.keys) else []


def has_known_bases(place: Place) -> bool:
    """Whether a statement is of a class none of whose bases may read what it sets."""
    class_ = place.class_
    return class_ is not None and all(qualified_name(place, b) in _MODULES for b in class_.bases)


def mentions(programs: Sequence[Program], name: str) -> int:
    """How often the program's files name an attribute, or have its name as a text.

    Many times where an attribute is asked for by a text that is put together, and where a module
    goes over all the buffers that it has.
    """
    count = 0
    for program in programs:
        for node in program.nodes:
            count += isinstance(node, ast.Attribute) and node.attr == name
            count += isinstance(node, ast.Constant) and node.value == name
            if isinstance(node, ast.Call):
                count += 2 * (_asks_by_text(node) or _goes_over_own(node))
    return count


def _goes_over_own(call: ast.Call) -> bool:
    """Whether a call is ``self.buffers()`` or ``self.named_buffers()``.

    Of another module it mostly copies or counts them, as an average of weights does.
    """
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in ("buffers", "named_buffers")
        and isinstance(function.value, ast.Name)
        and function.value.id == "self"
    )


def _asks_by_text(call: ast.Call) -> bool:
    if called_name(call) not in _BY_TEXT:
        return False
    method = isinstance(call.func, ast.Attribute)
    text = call.args[:1] if method else call.args[1:2]
    return not text or not all(isinstance(one, ast.Constant) for one in text)
