"""Chains of references in a person's words: one line that says what holds a tensor."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from memprof.holding.kinds import LinkKind, is_field
from memprof.records import Link, breadth

__all__ = ["describe"]

_ITEM = LinkKind.ITEM
_ROOTS = frozenset({LinkKind.LOCAL, LinkKind.GLOBAL, LinkKind.NOTEBOOK})
_AGAIN = re.compile(r"((?:\.\w+|\[[^\[\]]*\]){1,4}?)\1{3,}")
"""Attributes and items that follow one another at least four times."""
_DOTTED = frozenset(
    kind
    for kind in (
        LinkKind.ATTRIBUTE,
        LinkKind.MODULE_ATTRIBUTE,
        LinkKind.PARAMETER,
        LinkKind.BUFFER,
        LinkKind.EXCEPTION,
        LinkKind.OPTIMIZER_STATE,
    )
)


def describe(links: list[Link]) -> str:
    """One line: what holds the tensor, and by what name a person can reach that."""
    phrases: list[str] = []
    part: list[Link] = []
    for one in links:
        if one.kind in _ROOTS or one.kind in _DOTTED or one.kind == _ITEM:
            part.append(one)
            continue
        if part:
            phrases.append(_path_phrase(part))
            part = []
        phrases.append(_phrase(one))
    if part:
        phrases.append(_path_phrase(part))
    runs = [(phrase, len(list(same))) for phrase, same in groupby(phrases[::-1])]
    return ", kept by ".join(f"{one} x{count}" if count > 1 else one for one, count in runs)


def _phrase(one: Link) -> str:
    words = _WORDS.get(one.kind)
    return words(one) if words is not None else one.name or f"an object of type {one.type_name}"


def _where(one: Link) -> str:
    return f" ({Path(one.filename).name}:{one.line})" if one.line else ""


def _name(one: Link) -> str:
    return f"`{one.name}`" if one.name else ""


def _thread_words(one: Link) -> str:
    if one.type_name == "thread":
        return f"thread {_name(one)}"
    return f"attribute {_name(one)} of a {one.type_name}"


_WORDS: dict[str, Callable[[Link], str]] = {
    LinkKind.KEY: lambda one: f"key of a {one.type_name} ({one.length} items)",
    LinkKind.CLOSURE: lambda one: (
        f"variable {_name(one)} in the closure of {one.type_name}(){_where(one)}"
    ),
    LinkKind.DEFAULT_ARGUMENT: lambda one: (
        f"default argument {_name(one)} of {one.type_name}(){_where(one)}"
    ),
    LinkKind.BOUND_METHOD: lambda one: f"bound method {one.type_name}(){_where(one)}",
    LinkKind.PARTIAL: lambda one: one.type_name,
    LinkKind.LRU_CACHE: lambda one: f"lru_cache of {one.type_name}(){_where(one)}",
    LinkKind.CLASS_ATTRIBUTE: lambda one: f"class attribute `{one.type_name}.{one.name}`",
    LinkKind.HOOK: lambda one: f"{one.name} of {one.type_name}{_where(one)}",
    LinkKind.AUTOGRAD_NODE: lambda one: f"the autograd graph ({one.name})",
    LinkKind.SAVED_TENSOR: lambda one: f"saved tensor {_name(one)} of {one.type_name}",
    LinkKind.CTX_ATTRIBUTE: lambda one: f"attribute {_name(one)} of ctx ({one.type_name})",
    LinkKind.GRAD: lambda one: f".grad of a {one.type_name}",
    LinkKind.BASE: lambda one: _view(one) + (f" that shows {one.name}" if one.name else ""),
    LinkKind.TRACEBACK: lambda one: f"traceback through {one.type_name}(){_where(one)}",
    LinkKind.FRAME: lambda one: (
        f"local {_name(one)} of the finished call {one.type_name}(){_where(one)}"
    ),
    LinkKind.LOG_RECORD: lambda one: f"log record of {one.type_name}{_where(one)}",
    LinkKind.THREAD: _thread_words,
    LinkKind.GENERATOR: lambda one: (
        f"local {_name(one)} of the suspended generator {one.type_name}(){_where(one)}"
    ),
    LinkKind.COROUTINE: lambda one: (
        f"local {_name(one)} of the suspended coroutine {one.type_name}(){_where(one)}"
    ),
    LinkKind.ITERATOR: lambda one: f"{one.name}, which keeps what it has passed on",
    LinkKind.CYCLE: lambda _: "a reference cycle that only the garbage collector frees",
    LinkKind.CPP_CYCLE: lambda _: "a reference cycle through C++ that nothing frees",
}


def _path_phrase(part: list[Link]) -> str:
    expressions = _expressions(part)
    head, root = part[-1], part[0]
    where = f", {_root_phrase(root)}" if root.kind in _ROOTS else ""
    last = len(part) - 1
    items = [
        at for at, one in enumerate(part) if one.kind == _ITEM and (at == last or not is_field(one))
    ]
    if items:
        at = max(items, key=lambda one: breadth(part[one]))
        inner = expressions[-1][len(expressions[at - 1]) if at else 0 :]
        name = f" `{_folded(expressions[at - 1])}`" if at else ""
        deeper = f" at `{_folded(inner)}`" if at < len(part) - 1 else ""
        return f"{part[at].type_name}{name} ({part[at].length} items){deeper}{where}"
    if head.kind in _ROOTS:
        return _root_phrase(head)
    noun = _NOUNS.get(head.kind, "attribute")
    full = (
        f" (`{_folded(expressions[-1])}`)"
        if len(part) > 2 or (root.kind not in _ROOTS and len(part) > 1)
        else ""
    )
    return f"{noun} `{head.name}` of `{head.type_name}`{full}{where}"


_NOUNS: dict[str, str] = {
    LinkKind.PARAMETER: "parameter",
    LinkKind.BUFFER: "buffer",
    LinkKind.OPTIMIZER_STATE: "optimizer state",
}


def _expressions(part: list[Link]) -> list[str]:
    """For every link, what one would type to reach that far."""
    texts: list[str] = []
    text = ""
    for one in part:
        if one.kind == _ITEM:
            text += f"[{one.name}]"
        else:
            text += ("." if text else "") + one.name
        texts.append(text)
    return texts


def _folded(expression: str) -> str:
    """``[0].next…`` with a step that comes again and again said once, and how often it comes."""
    return _AGAIN.sub(lambda found: f"({found[1]} x{len(found[0]) // len(found[1])})", expression)


def _root_phrase(root: Link) -> str:
    if root.kind == LinkKind.LOCAL:
        where = f"({Path(root.filename).name}:{root.line})"
        return f"local `{root.name}` of {root.type_name}() {where}"
    if root.kind == LinkKind.NOTEBOOK:
        return f"the notebook's `{root.name}`"
    return f"global `{root.name}` of {root.type_name}"


def _view(one: Link) -> str:
    return "a NumPy array" if one.type_name == "ndarray" else "a view"
