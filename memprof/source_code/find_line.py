"""Finds the line of the user's source that makes, fills or passes on what a holder names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from memprof.source_code.assignment_index import (
    EMPTIED,
    FILLED,
    NO_TENSOR,
    Bound,
    Fill,
    Index,
    read_index,
)

__all__ = [
    "assigned_in_class",
    "assigned_in_function",
    "called_at",
    "creates_graph_at",
    "defines_class",
    "filled_at",
    "filled_below",
    "forget",
    "grown_at",
    "index_of",
    "is_filled_at",
    "is_filled_in_class",
    "may_stop_growing",
    "passed_at",
    "reading_until",
    "registered_at",
    "saved_at",
    "stored_under",
]

_HALF = 0.5
"""Of a rank: what is moved to the host comes after what is not, and before what is begun empty."""
_MOST = 256
"""Files that are remembered: several times those that one search looks through."""

_indexes: dict[str, Index] = {}
_thread = threading.local()


@contextmanager
def reading_until(is_over: Callable[[], bool]) -> Iterator[None]:
    """Let this thread read no further file once ``is_over()``; those that were read stay."""
    _thread.is_over = is_over
    try:
        yield
    finally:
        _thread.is_over = None


def forget() -> None:
    """Read every file again that is asked for from now on."""
    _indexes.clear()


def index_of(filename: str) -> Index:
    """The index of a file, as `read_index` makes it; empty where the time is over for that."""
    index = _indexes.get(filename)
    if index is not None:
        return index
    is_over: Callable[[], bool] | None = getattr(_thread, "is_over", None)
    if is_over is not None and is_over():
        return Index()
    while len(_indexes) >= _MOST:
        _indexes.pop(next(iter(_indexes)), None)
    index = _indexes[filename] = read_index(filename)
    return index


def filled_at(  # noqa: PLR0913 - each is something that is known of a link
    filename: str,
    name: str,
    *,
    keys: Sequence[str] = (),
    class_name: str = "",
    function: str = "",
    view: bool = False,
    as_key: bool = False,
    after: int = 0,
    of_library: bool = False,
) -> int:
    """The line that puts things into a variable, or an attribute ``.name``; 0: none.

    Of several lines one that names ``keys`` (quoted dict keys further down the chain), or writes
    under a key that is computed (``records[split].append(x)``), or lies in the class ``class_name``
    (or the Function of that node) is preferred.
    For a variable of a closure lines from ``after`` on, where its function begins, come first. Of a
    variable of ``function`` what other functions put into theirs of the same name comes last.
    With ``as_key`` tensors are the keys, and the values may be anything.
    With ``view`` it is the line that took the variable which is put there from something larger.
    ``of_library``: the attribute's class is a library's, so what a class of the file puts into an
    attribute of its own is something else.
    """
    index = index_of(filename)
    fills = index.filled.get(name, [])
    if of_library:
        fills = [one for one in fills if not one.of_self]
    texts, class_name = [one.strip("'") for one in keys], class_name.removesuffix("Backward")
    # What binds the name itself has a variable of its own; another one may share that of a closure.
    binding = {one.function for one in fills if not one.by_method} - {function}
    others = binding if function else frozenset()
    best = min(
        fills,
        key=lambda one: (
            one.line < after,
            one.function in others,
            "" not in one.keys and sum(text not in one.keys for text in texts),
            one.rank % NO_TENSOR == EMPTIED,
            bool(class_name) and one.class_ != class_name,
            (one.rank % NO_TENSOR if as_key else one.rank) + _HALF * one.on_host,
            sum(text not in one.keys for text in texts),
            one.function == "__init__",
            not _carries_on(index, one),
            one.line,
        ),
        default=None,
    )
    if best is None:
        return 0
    origin = _binding(filename, best.value, best.line) if view and best.value else None
    return origin.line if origin is not None and origin.part else best.line


def _carries_on(index: Index, fill: Fill) -> bool:
    """True if a line makes a new value of the old one, again and again: ``net = Wrapped(net)``."""
    again = any(first <= fill.line <= last for first, last in index.loops)
    return fill.of_itself and (again or (fill.attribute and fill.function != "__init__"))


def grown_at(filename: str, name: str) -> int:
    """The line that adds to the attribute ``.name`` outside of ``__init__``; 0: none."""
    fills = index_of(filename).filled.get(name, [])
    candidates = [one for one in fills if one.rank == FILLED and one.function != "__init__"]
    return min(candidates).line if candidates else 0


def filled_below(filename: str, key: str) -> int:
    """The line that fills what a record has at ``key``, whatever the record's name; 0: none."""
    fills = index_of(filename).filled.get(f"[{key}]", [])
    best = min(fills, key=lambda one: (one.function == "__init__", one), default=None)
    return best.line if best is not None else 0


def stored_under(filename: str, key: str) -> int:
    """The line that puts a tensor under a key into a dict of whatever name; 0: none.

    One that makes it of what was there comes first: ``state["mean"] = 0.9 * state["mean"] + g``.
    """
    stores = {
        fill
        for fills in index_of(filename).filled.values()
        for fill in fills
        if key in fill.keys and fill.rank % NO_TENSOR == FILLED
    }
    best = min(stores, key=lambda one: (not one.of_itself, one), default=None)
    return best.line if best is not None else 0


def is_filled_at(filename: str, line: int) -> bool:
    """True if a line of a file adds to something, and does not only assign it."""
    fills = (one for fillings in index_of(filename).filled.values() for one in fillings)
    return any(one.line == line and one.rank % NO_TENSOR == FILLED for one in fills)


def defines_class(filename: str, name: str) -> bool:
    """Whether a file has the class of an object, or one that its class is made of.

    torch derives classes as it works: ``ParametrizedNet``, ``FSDPNet``.
    """
    return any(name.endswith(one) for one in index_of(filename).classes)


def is_filled_in_class(filename: str, name: str, class_name: str) -> bool:
    """True if a class of that name in the file puts something into its attribute ``.name``."""
    return any(one.class_ == class_name for one in index_of(filename).filled.get(name, []))


def passed_at(filename: str, name: str, *, own: bool) -> int:
    """The line that gives an attribute ``.name`` a parameter of its function; 0: none.

    So the links of a cycle that point back are made: ``child.parent = parent``; with ``own``, where
    the parameter is ``self``.
    """
    fills = index_of(filename).filled.get(name, [])
    candidates = [one for one in fills if one.passed and (one.value == "self") is own]
    best = min(candidates, default=None)
    return best.line if best is not None and best.rank < NO_TENSOR else 0


def may_stop_growing(filename: str, name: str, class_name: str = "") -> bool:
    """True if the file does more with a container, or an attribute ``.name``, than fill it.

    It takes entries out, looks at its length, or asks whether a key is there: a bounded buffer, a
    cache, results of one epoch. Whether the bound is ever reached is not known.
    For an attribute, what other classes do with theirs of the same name does not count.
    """
    index = index_of(filename)
    filling = {one.class_ for one in index.filled.get(name, [])}
    owners = {owner for owner, name_kept in index.kept_small if name_kept == name}
    return bool(owners & {"", class_name} if class_name in filling else owners)


def called_at(filename: str, name: str) -> int:
    """The first line that calls something of that last name; 0: none."""
    return min(index_of(filename).calls.get(name, []), default=(0, 0))[1]


def assigned_in_function(filename: str, name: str, line: int) -> int:
    """The line that last bound ``name`` before ``line``, in the same function; 0: none."""
    binding = _binding(filename, name, line)
    return binding.line if binding is not None else 0


def _binding(filename: str, name: str, line: int) -> Bound | None:
    index = index_of(filename)
    around = [(first, last) for first, last in index.functions if first <= line <= last]
    first, last = max(around, default=(1, 1 << 30))
    inside = [one for one in index.bound.get(name, []) if first <= one.line <= last]
    inside = [one for one in inside if not one.off] or inside
    line = _line_of_exit(index, inside, line)
    before = [one for one in inside if one.line <= line]
    if before:
        latest = max(before, key=lambda one: one.line)
        return _of_last_round(index, inside, latest, line) or latest
    return min(inside, key=lambda one: one.line, default=None)


def _line_of_exit(index: Index, inside: list[Bound], line: int) -> int:
    """The last line of a ``with`` whose first line runs, where its body adds to the variable.

    A context is left by its first line, and nothing has been added when it is entered.
    """
    for first, last in index.contexts:
        if first == line and any(one.own and first < one.line <= last for one in inside):
            return last
    return line


def _of_last_round(index: Index, inside: list[Bound], latest: Bound, line: int) -> Bound | None:
    """The later line of a loop around ``line`` that adds to what was bound before the loop.

    In the loop's round before it has run, and what it bound is there still.
    """
    for first, last in sorted(index.loops, reverse=True):
        if first <= line <= last and not first <= latest.line <= last:
            own = [one for one in inside if one.own and line < one.line <= last]
            if own:
                return max(own, key=lambda one: one.line)
    return None


def assigned_in_class(filename: str, class_name: str, name: str) -> int:
    """The line of a class body that makes the attribute ``name``; 0: none."""
    return min(
        index_of(filename).in_class.get((class_name.rsplit(".", maxsplit=1)[-1], name), []),
        default=(0, 0),
    )[1]


def registered_at(filename: str, function: str) -> int:
    """The line that registers ``function``, or what its maker returns, as a hook; 0: none does.

    Other functions may have one of the same name: first comes the function that defines it, then a
    line that calls that function.
    """
    lines = index_of(filename).registered
    name, *around = function.split(".")[::-1]
    ways = (*(f"{one}.{name}" for one in around[:1]), *around[:1], name, *around[1:])
    return next((lines[one] for one in ways if one in lines), 0)


def saved_at(filename: str, node: str) -> int:
    """The line where the custom Function behind the node ``node`` saves tensors; 0: none."""
    return min(index_of(filename).saved.get(node.removesuffix("Backward"), []), default=(0, 0))[1]


def creates_graph_at(filename: str) -> int:
    """The first line that makes gradients with a graph of their own; 0: none."""
    return min(index_of(filename).creates_graph, default=(0, 0))[1]
