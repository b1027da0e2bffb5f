"""Buffers that modules register, and whether the program's source reads them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.program import (
    Place,
    Program,
    assigned,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    own_calls,
    place_of,
)
from memprof.source_code.scopes import parameters, qualified_name
from memprof.source_code.verbs import SAME_VALUES, VIEWING
from memprof.trace import Category
from memprof.views.window import Bools, Window

__all__ = [
    "buffers_made_by",
    "has_known_bases",
    "is_unread",
    "large_buffers",
    "mentions",
    "registered_in_loop",
    "registering_place",
    "registrations",
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
_BUFFERS = frozenset(("torch.nn.Buffer", "torch.nn.parameter.Buffer"))
_VIEWS = (SAME_VALUES | VIEWING) - {"clone", "repeat"}
"""Methods whose result may be the tensor itself."""
_DEEPEST = 8
"""Classes that inherit from one another."""


def large_buffers(window: Window) -> Bools:
    """The buffers at the peak, where they make much of it; else none."""
    mask: Bools = window.at_peak & (window.category == Category.BUFFER)
    return mask & (window.share(window.bytes_of(mask)) >= _LEAST_SHARE)


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """What makes a tensor a buffer: ``self.register_buffer("mask", …)``, ``x = nn.Buffer(…)``."""

    name: str
    """The buffer's; empty where it is put together."""
    value: ast.expr | None
    node: ast.AST
    receiver: ast.expr
    """The module, as it is written."""


def registrations(program: Program, scope: ast.AST) -> Iterator[Registration]:
    """What registers buffers in a node of a file."""
    for call in calls_in(scope, "register_buffer"):
        if isinstance(call.func, ast.Attribute):
            name, value = _given(call, 0, "name"), _given(call, 1, "tensor")
            text = name.value if isinstance(name, ast.Constant) else ""
            yield Registration(str(text), value, call, call.func.value)
    for call in calls_in(scope, "Buffer"):
        place = program.place(call)
        if place is None or qualified_name(place, call.func) not in _BUFFERS:
            continue
        for target, value in assigned(place.statement):
            if value is call and isinstance(target, ast.Attribute):
                data = _given(call, 0, "data")
                yield Registration(target.attr, data, place.statement, target.value)


def _given(call: ast.Call, at: int, name: str) -> ast.expr | None:
    """What a call is given by position or by name."""
    by_name = (one.value for one in call.keywords if one.arg == name)
    return call.args[at] if at < len(call.args) else next(by_name, None)


def registering_place(window: Window, row: int) -> Place | None:
    """The statement that registers a buffer, or computes it in the function that does.

    A function that only makes the table is called there. None where it is not known.
    """
    frame = window.frame_of(row)
    frames = [frame, *window.user_frames(window.stack(row))]
    places = [place for one in frames if (place := place_of(one)) is not None]
    return next((place for place in places if buffers_made_by(place)), next(iter(places), None))


def buffers_made_by(place: Place) -> list[str]:
    """The buffers that a statement registers, or computes for a later line of its function."""
    return [one.name for one in _registered_by(place) if one.name]


def _registered_by(place: Place) -> list[Registration]:
    """What registers what a statement makes, by the names that it has on the way."""
    inside = {id(node) for node in (place.statement, *own_calls(place.statement))}
    every = list(registrations(place.program, place.scope))
    own = [one for one in every if id(one.node) in inside]
    own += _registered_before(place)
    names = {ast.unparse(target) for target in bound_names(place.statement)}
    while names:
        own += [one for one in every if one not in own and _reads(one.value, names)]
        if own:
            return own
        further = {
            ast.unparse(target)
            for node in ast.walk(place.scope)
            for target, value in assigned(node)
            if _reads(value, names)
        }
        if further <= names:
            return own
        names |= further
    return own


def _registered_before(place: Place) -> Iterator[Registration]:
    """Buffers that another statement of the file registers, with nothing in them as yet.

    ``self.register_buffer("mask", None)``, and here ``self.mask = …``.
    """
    for target in bound_names(place.statement):
        if not isinstance(target, ast.Attribute):
            continue
        for one in registrations(place.program, place.program.tree):
            is_empty = isinstance(one.value, ast.Constant) and one.value.value is None
            if is_empty and one.name == target.attr:
                yield Registration(one.name, None, place.statement, target.value)


def _reads(value: ast.expr | None, names: set[str]) -> bool:
    return value is not None and bool(loaded_names(value) & names)


def unread_buffer(programs: Sequence[Program], place: Place) -> str:
    """The buffer that a statement makes, where nothing in the program's files reads it.

    Empty where its class has a base that may read it: any but torch's or Lightning's module, and
    classes of the same file that have no other.
    """
    every = [one for one in _registered_by(place) if one.name]
    own = [one for one in every if not _is_computed(place, one)] or every
    are_unread = all(
        is_unread(programs, one.name) and _has_known_owner(programs, place, one) for one in own
    )
    return own[0].name if own and are_unread else ""


def _is_computed(place: Place, one: Registration) -> bool:
    """Whether a buffer is computed of what a statement makes, and is another tensor."""
    is_here = any(call is one.node for call in own_calls(place.statement))
    is_here = is_here or one.node is place.statement
    value = one.value
    return not is_here and isinstance(value, ast.Call) and called_name(value) not in _VIEWS


def _has_known_owner(programs: Sequence[Program], place: Place, one: Registration) -> bool:
    """Whether no base of the module that gets a buffer may read it.

    It is the object of the method, or a parameter for which each call gives its own object.
    """
    if place.class_ is not None:
        return has_known_bases(place)
    function = place.function
    names = list(parameters(function)) if function is not None else []
    if function is None or ast.unparse(one.receiver) not in names:
        return False
    at = names.index(ast.unparse(one.receiver))
    owners = [
        where
        for program in programs
        for call in calls_in(program.tree, function.name)
        if (where := program.place(call)) is not None
        and (given := _given(call, at, names[at])) is not None
        and ast.unparse(given) == "self"
    ]
    calls = sum(len(calls_in(program.tree, function.name)) for program in programs)
    return 0 < len(owners) == calls and all(map(has_known_bases, owners))


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
    """Whether a statement is of a class none of whose bases may read what it sets.

    A base of the same file does so where the file says it.
    """
    class_ = place.class_
    return class_ is not None and all(_is_known_base(place, base) for base in class_.bases)


def _is_known_base(place: Place, base: ast.expr, depth: int = 0) -> bool:
    if qualified_name(place, base) in _MODULES:
        return True
    classes = [
        one for one in place.program.classes() if isinstance(base, ast.Name) and one.name == base.id
    ]
    if len(classes) != 1 or depth >= _DEEPEST:
        return False
    inside = place.program.place(classes[0].body[-1])
    return inside is not None and all(
        _is_known_base(inside, one, depth + 1) for one in classes[0].bases
    )


def is_unread(programs: Sequence[Program], name: str) -> bool:
    """Whether the program's files only register a buffer of a name, or assign it."""
    return not any(
        _may_read(node, name, own)
        for program in programs
        for own in (_own_names(program),)
        for node in program.nodes
    )


def _own_names(program: Program) -> set[int]:
    """The texts by which buffers are registered, by identity."""
    return {
        id(_given(one.node, 0, "name"))
        for one in registrations(program, program.tree)
        if isinstance(one.node, ast.Call)
    }


def _may_read(node: ast.AST, name: str, registering: set[int]) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == name and isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Constant):
        return node.value == name and id(node) not in registering
    return isinstance(node, ast.Call) and (_asks_by_text(node) or _goes_over_own(node))


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
