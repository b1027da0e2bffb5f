"""The English of a chain of references: one line that says what holds a tensor.

These words are for people. Nothing is decided by them and no file holds them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

from memprof.reference_chain import (
    IN_PATHS,
    VARIABLES,
    Link,
    LinkKind,
    Unowned,
    above_graph,
    breadth,
    is_field,
)

__all__ = ["Clause", "clauses", "describe", "keeper", "label", "names_line", "shortened"]

_JOINED = ", kept by "
_AGAIN = r"((?:\.\w+|\[[^\[\]]*\]){1,4}?)\1{3,}"
"""Attributes and items that follow one another at least four times."""


_MOST_CLAUSES = 3
"""Of a title: a chain that has more is shown in full below it."""


class Clause(NamedTuple):
    """One part of a description."""

    text: str
    filename: str = ""
    line: int = 0
    """The line that the text names; 0 where it names none."""


def describe(links: Sequence[Link]) -> str:
    """Return one line: what holds the tensor, and by what name a person can reach that."""
    return _JOINED.join(clause.text for clause in clauses(links))


def shortened(links: Sequence[Link]) -> str:
    """Return the description with no more than its first clause and its last."""
    parts = clauses(links)
    if len(parts) > 2:
        return _JOINED.join((parts[0].text, "…", parts[-1].text))
    return describe(links)


def keeper(links: Sequence[Link], kind: LinkKind) -> str:
    """Return what a person can let go of, first: a graph's nodes in between are a detail.

    Of a long chain what keeps the tensor itself, the link of ``kind``, which says most about why,
    and the name are told.
    """
    above = above_graph(links)
    return (
        f"{_abridged(above, kind)}, through the autograd graph" if above else _abridged(links, kind)
    )


def _abridged(links: Sequence[Link], kind: LinkKind) -> str:
    texts = [clause.text for clause in clauses(links)]
    if len(texts) <= _MOST_CLAUSES:
        return _JOINED.join(texts)
    telling = {_clause(link).text for link in links if link.kind == kind and kind not in IN_PATHS}
    at = next((at for at, text in enumerate(texts) if text in telling), len(texts) - 2)
    shown = sorted({0, at, len(texts) - 1})
    parts = [texts[0]]
    for before, now in pairwise(shown):
        parts += [*(["…"] if now > before + 1 else []), texts[now]]
    return _JOINED.join(parts)


def names_line(links: Sequence[Link], filename: str, line: int) -> bool:
    """Return whether the description of a chain names a line of source."""
    return any((one.filename, one.line) == (filename, line) for one in clauses(links))


def label(link: Link) -> str:
    """Return the name of what a link refers to, as a box in a drawn chain shows it."""
    if link.kind == LinkKind.AUTOGRAD_NODE:
        return _nodes(link)
    if link.kind == LinkKind.BASE:
        return _part(link)
    return link.name if link.unowned is None else _describe_unowned(link.unowned)


def clauses(links: Sequence[Link]) -> list[Clause]:
    """Return the parts of a description from the tensor up to the name that holds it.

    Links that one types one after the other are one part; parts that are the same are one, with
    their number.
    """
    parts: list[Clause] = []
    path: list[Link] = []
    for link in links:
        begins = link.kind == LinkKind.NOTEBOOK  # however one got there, it has a name of its own
        if link.kind in IN_PATHS and not (begins and path):
            path.append(link)
            continue
        if path:
            parts.append(_path_clause(path))
            path = []
        if begins:
            path.append(link)
        else:
            parts.append(_clause(link))
    if path:
        parts.append(_path_clause(path))
    runs = [(clause, len(list(same))) for clause, same in groupby(parts[::-1])]
    return [
        clause._replace(text=f"{clause.text} x{count}") if count > 1 else clause
        for clause, count in runs
    ]


def _clause(link: Link) -> Clause:
    words = _WORDS.get(link.kind)
    if words is None:
        return Clause(label(link) or f"an object of type {link.type_name}")
    text = words(link)
    if link.kind not in _WITH_LINE or not link.line:
        return Clause(text)
    where = f" ({Path(link.filename).name}:{link.line})"
    return Clause(text + where, link.filename, link.line)


def _name(link: Link) -> str:
    return f"`{link.name}`" if link.name else ""


def _thread_words(link: Link) -> str:
    if link.type_name == "thread":
        return f"thread {_name(link)}"
    return f"attribute {_name(link)} of a {link.type_name}"


def _view_words(link: Link) -> str:
    part = _part(link)
    view = "a NumPy array" if link.type_name == "ndarray" else "a view"
    return f"{view} that shows {part}" if part else view


_WORDS: dict[LinkKind, Callable[[Link], str]] = {
    LinkKind.KEY: lambda link: f"key of a {link.type_name} ({link.length} items)",
    LinkKind.CLOSURE: lambda link: f"variable {_name(link)} in the closure of {link.type_name}()",
    LinkKind.DEFAULT_ARGUMENT: lambda link: f"default argument {_name(link)} of {link.type_name}()",
    LinkKind.BOUND_METHOD: lambda link: f"bound method {link.type_name}()",
    LinkKind.PARTIAL: lambda link: link.type_name,
    LinkKind.LRU_CACHE: lambda link: f"lru_cache of {link.type_name}()",
    LinkKind.CLASS_ATTRIBUTE: lambda link: f"class attribute `{link.type_name}.{link.name}`",
    LinkKind.ATEXIT: lambda link: f"`atexit`, which calls {link.type_name}() at the end",
    LinkKind.HOOK: lambda link: f"{link.name} of {link.type_name}",
    LinkKind.AUTOGRAD_NODE: lambda link: f"the autograd graph ({_nodes(link)})",
    LinkKind.SAVED_TENSOR: lambda link: f"saved tensor {_name(link)} of {link.type_name}",
    LinkKind.CTX_ATTRIBUTE: lambda link: f"attribute {_name(link)} of ctx ({link.type_name})",
    LinkKind.GRAD: lambda link: f".grad of a {link.type_name}",
    LinkKind.BASE: _view_words,
    LinkKind.TRACEBACK: lambda link: f"traceback through {link.type_name}()",
    LinkKind.FRAME: lambda link: f"local {_name(link)} of the finished call {link.type_name}()",
    LinkKind.LOG_RECORD: lambda link: f"log record of {link.type_name}",
    LinkKind.THREAD: _thread_words,
    LinkKind.GENERATOR: lambda link: (
        f"local {_name(link)} of the suspended generator {link.type_name}()"
    ),
    LinkKind.COROUTINE: lambda link: (
        f"local {_name(link)} of the suspended coroutine {link.type_name}()"
    ),
    LinkKind.TASK: lambda link: (
        f"a task of asyncio that still runs {link.name}()" if link.name else "a task of asyncio"
    ),
    LinkKind.ITERATOR: lambda link: f"{link.name}, which keeps what it has passed on",
    LinkKind.CYCLE: lambda _: "a reference cycle that only the garbage collector frees",
    LinkKind.CPP_CYCLE: lambda _: "a reference cycle through C++ that nothing frees",
}
_WITH_LINE = frozenset(
    {
        LinkKind.CLOSURE,
        LinkKind.DEFAULT_ARGUMENT,
        LinkKind.BOUND_METHOD,
        LinkKind.LRU_CACHE,
        LinkKind.HOOK,
        LinkKind.TRACEBACK,
        LinkKind.FRAME,
        LinkKind.LOG_RECORD,
        LinkKind.GENERATOR,
        LinkKind.COROUTINE,
    }
)
"""Links after whose words their line is named."""


def _nodes(link: Link) -> str:
    """``MeanBackward0 -> AddBackward0 x6 -> ... 2 more ... -> MmBackward0``."""
    return " -> ".join(
        (name if count == 1 else f"{name} x{count}") if name else f"... {count} more ..."
        for name, count in link.nodes
    )


def _part(link: Link) -> str:
    if link.shown_bytes < 0 or link.storage_bytes < 0:
        return ""
    return f"{link.shown_bytes} of {link.storage_bytes} bytes"


def _describe_unowned(memory: Unowned) -> str:
    if memory.cut_off:
        result = "the search ended before it found an owner"
    else:
        owner = f" (C++ holds the {memory.owner})" if memory.owner else ""
        result = f"no Python owner found{owner}"
    remarks = []
    if memory.autocast:
        remarks.append(f"autocast is on ({memory.autocast}) and caches low-precision weights")
    if memory.workspace:
        remarks.append("it has the size of a cuBLAS workspace, which torch keeps for every stream")
    graph, pool = memory.pool
    if graph:
        remarks.append(f"it lies in the private pool of a CUDA graph ({graph}, {pool})")
    elif pool:
        remarks.append(
            f"it lies in the memory pool (0, {pool}): a MemPool, or graphs that share one"
        )
    if memory.side_stream:
        remarks.append("it was allocated on a side stream, as a library such as NCCL does")
    return ": ".join(part for part in (result, "; ".join(remarks)) if part)


def _path_clause(path: list[Link]) -> Clause:
    expressions = _expressions(path)
    head, root = path[-1], path[0]
    variable = _variable(root) if root.kind in VARIABLES else Clause("")
    where = f", {variable.text}" if variable.text else ""
    last = len(path) - 1
    items = [
        at
        for at, link in enumerate(path)
        if link.kind == LinkKind.ITEM and (at == last or not is_field(link))
    ]
    if items:
        at = max(items, key=lambda one: breadth(path[one]))
        inner = expressions[-1][len(expressions[at - 1]) if at else 0 :]
        name = f" `{_fold(expressions[at - 1])}`" if at else ""
        deeper = f" at `{_fold(inner)}`" if at < last else ""
        text = f"{path[at].type_name}{name} ({path[at].length} items){deeper}{where}"
        return variable._replace(text=text)
    if head.kind in VARIABLES:
        return _variable(head)
    noun = _NOUNS.get(head.kind, "attribute")
    full = (
        f" (`{_fold(expressions[-1])}`)"
        if len(path) > 2 or (root.kind not in VARIABLES and len(path) > 1)
        else ""
    )
    return variable._replace(text=f"{noun} `{head.name}` of `{head.type_name}`{full}{where}")


_NOUNS: dict[LinkKind, str] = {
    LinkKind.PARAMETER: "parameter",
    LinkKind.BUFFER: "buffer",
    LinkKind.OPTIMIZER_STATE: "optimizer state",
}


def _expressions(path: list[Link]) -> list[str]:
    """Return for every link what one would type to reach that far.

    Of several private names in a row, a library's own way to what the program handed it, nothing is
    said: ``trainer.….model.outputs``.
    """
    inner = _inner_ways(path)
    texts: list[str] = []
    text = ""
    for at, link in enumerate(path):
        if link.kind == LinkKind.ITEM:
            text += f"[{link.name}]"
        elif at not in inner:
            text += ("." if text else "") + link.name
        elif at - 1 not in inner:
            text += ".…"
        texts.append(text)
    return texts


def _inner_ways(path: list[Link]) -> set[int]:
    """Return the places of a library's private names that come in a row before a public one."""
    inner: set[int] = set()
    run: list[int] = []
    for at, link in enumerate(path):
        is_attribute = link.kind == LinkKind.ATTRIBUTE and at > 0
        if is_attribute and link.name.startswith("_") and not link.filename:
            run.append(at)
            continue
        if len(run) > 1 and link.kind != LinkKind.ITEM:
            inner.update(run)
        run = []
    return inner


def _fold(expression: str) -> str:
    """``[0].next…`` with a step that comes again and again said once, and how often it comes."""
    return re.sub(_AGAIN, lambda run: f"({run[1]} x{len(run[0]) // len(run[1])})", expression)


def _variable(root: Link) -> Clause:
    if root.kind == LinkKind.LOCAL:
        where = f"({Path(root.filename).name}:{root.line})"
        return Clause(
            f"local `{root.name}` of {root.type_name}() {where}", root.filename, root.line
        )
    if root.kind == LinkKind.NOTEBOOK:
        return Clause(f"the notebook's `{root.name}`")
    return Clause(f"global `{root.name}` of {root.type_name}")
