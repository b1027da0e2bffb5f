"""shuffled-copy: all of a data set is copied in another order, to be gone through in batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import (
    Place,
    assigned,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    place_of,
)
from memprof.source_code.scopes import parameters, reads_of
from memprof.source_code.values import values_of
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, in such copies of one line."""
_ORDERS = frozenset(("permutation", "randperm"))
"""Functions of torch and of NumPy that return an order."""
_SAME_ORDER = frozenset(
    (
        "LongTensor",
        "as_tensor",
        "cuda",
        "from_numpy",
        "list",
        "long",
        "numpy",
        "tensor",
        "to",
        "tolist",
    )
)
"""What an order goes through as it is."""
_DATA_SET = "TensorDataset"
"""Of which a loader takes the rows of a batch, one by one."""
_UNNAMED = "perm"
"""What an order is called in an advice that has no name in the source."""
_SELECT, _GIVEN = "index_select", 3
_IN_BATCHES = frozenset(("chunk", "split", "tensor_split"))
_FEWEST = 3
"""Times that a set is put in order."""
_BOTH = 2
_BATCHES = frozenset(("chunk", "narrow", "split"))
_NUMBERS = frozenset(("amax", "amin", "max", "mean", "min", "std", "sum", "var"))
"""Methods whose result is the same in every order, but for one along other dimensions."""
_OF_LENGTH = frozenset(("device", "dtype", "shape", "size"))


@dataclass(frozen=True, slots=True, eq=False)
class ShuffledSet:
    """What is copied, the variable of the copy, and that of the order."""

    source: str
    name: str
    order: str
    taken: str
    """A batch of what is copied, as a person would type it."""


@dataclass(frozen=True, slots=True, eq=False)
class ShuffledCopy(Match):
    """What is copied."""

    whole: ShuffledSet | None = None


class ShuffledCopyRule(WasteRule[ShuffledCopy]):
    """`x = x[perm]` at the beginning of an epoch, and `x[i : i + batch]` for its batches."""

    name = "shuffled-copy"
    summary = "a data set is copied in another order, to be gone through in batches"
    fixes = ("index_batches",)

    def matches(self, window: Window) -> Iterator[ShuffledCopy]:
        """What a line makes by indices in random order, and slices alone are read of."""
        if window.peak.event < 0:
            return
        lives = window.lives
        there = window.at_peak & ~window.has_owner & (lives.alloc >= 0)
        for site in window.large_sites(there, _LEAST_SHARE):
            place = place_of(window.owners.sites.frames[site])
            copy = _copy(place) if place is not None else None
            if place is not None and copy is None:
                copy = _of_return(
                    place, _calling(window, window.largest(there & (window.site == site)))
                )
            if place is not None and copy is None:
                match = _of_attribute(window, site, place)
                if match is not None:
                    yield match
                    return
            if copy is None:
                continue
            every = np.flatnonzero((window.site == site) & ~window.has_owner & (lives.alloc >= 0))
            rows = every[window.at_peak[every]]
            yield ShuffledCopy(
                row=int(rows[lives.size[rows].argmax()]),
                rows=rows,
                nbytes=int(lives.size[rows].sum()),
                saving=window.replayed(window.whole(every)),
                whole=copy,
            )
            return

    def title(self, match: ShuffledCopy) -> str:
        """Say of what they are copies."""
        assert match.whole is not None
        return f"are `{match.whole.source}` once more, in another order, of which batches are taken"

    def advice(self, match: ShuffledCopy, case: Case) -> Iterator[Advice]:
        """Take each batch by its part of the order."""
        whole = match.whole
        assert whole is not None
        why = (
            f"Batches are parts of a copy, {format_bytes(match.nbytes)}: take each of "
            f"`{whole.source}` itself, by its part of `{whole.order}` (a `DataLoader`: by "
            "`shuffle=True`)."
        )
        yield Advice("index_batches", why, case.site, typed=whole.taken)


def _of_attribute(window: Window, site: int, place: Place) -> ShuffledCopy | None:
    """The same where an object's own set takes its place: at the peak both are there.

    None where that is not done again and again, as a set may be put in order once.
    """
    names = _shuffled_attribute(place)
    if names is None:
        return None
    lives = window.lives
    rows = np.flatnonzero((window.site == site) & ~window.has_owner & (lives.alloc >= 0))
    largest = lives.requested[rows].max()
    rows = rows[lives.requested[rows] == largest]
    there = rows[window.at_peak[rows]]
    if len(rows) < _FEWEST or len(there) < _BOTH:
        return None
    # Each is there until the next one is complete, as was the set in its first order.
    made = lives.alloc[rows]
    first = (lives.requested == largest) & ~window.has_owner & (lives.alloc < made[0])
    first &= (lives.free > made[0]) & (lives.free < made[1])
    old = np.concatenate([np.flatnonzero(first), rows[:-1]])
    replaced_at = made[np.searchsorted(made, lives.free[old]) - 1]
    return ShuffledCopy(
        row=int(there[-1]),
        rows=there[1:],
        nbytes=int(lives.size[there[1:]].sum()),
        saving=window.replayed(window.ended_at(old, replaced_at)),
        whole=ShuffledSet(
            source=names[0],
            name=names[0],
            order=names[1],
            taken=f"{names[0]}[{names[1]}[i : i + batch]]",
        ),
    )


def _shuffled_attribute(place: Place) -> tuple[str, str] | None:
    """The attribute that a statement puts in random order, and the variable of the order.

    Only where parts are read of it elsewhere in the file, and nothing needs all of it but a number.
    """
    for target, value in assigned(place.statement):
        if not isinstance(target, ast.Attribute) or not isinstance(value, ast.Subscript):
            continue
        order = value.slice
        if not isinstance(order, ast.Name) or ast.unparse(value.value) != ast.unparse(target):
            continue
        made = [one for one in values_of(place, order.id) if one is not None]
        if made and all(map(_is_order, made)):
            return (ast.unparse(target), order.id) if _is_batched(place, target.attr) else None
    return None


def _is_batched(place: Place, name: str) -> bool:
    """Whether all reads of an attribute after it was made are of batches, rows and numbers."""
    is_batched = False
    nodes = place.program.nodes
    parents = {id(child): node for node in nodes for child in ast.iter_child_nodes(node)}
    for node in nodes:
        if not isinstance(node, ast.Attribute) or node.attr != name:
            continue
        if not isinstance(node.ctx, ast.Load):
            continue
        where, parent = place.program.place(node), parents[id(node)]
        if where is None or where.statement is place.statement or _is_of_making(where):
            continue
        if isinstance(parent, ast.Subscript) and parent.value is node:
            is_batched |= _is_slice(where, parent.slice)
        elif isinstance(parent, ast.Attribute) and parent.attr in _BATCHES:
            is_batched = True
        elif not (called_name(parent) == "len" or _asks_for_number(parent)):
            return False
    return is_batched


def _is_of_making(place: Place) -> bool:
    """Whether a statement is of the method that makes an object: its set has its first order."""
    return place.function is not None and place.function.name == "__init__"


def _copy(place: Place) -> ShuffledSet | None:
    """What a statement copies in random order. None where anything but slices is read of it."""
    if isinstance(place.statement, ast.For):
        return _of_loop(place, place.statement.iter)
    if not isinstance(place.statement, ast.Assign):
        return None
    for target, value in assigned(place.statement):
        entries = value if isinstance(value, ast.DictComp) else None
        indexed = _indexed(entries.value if entries is not None else value)
        if not isinstance(target, ast.Name) or indexed is None:
            continue
        part, index = indexed
        order = _order(place, index)
        if not order:
            continue
        taken = f"{ast.unparse(part)}[{order}[i : i + batch]]"
        source = ast.unparse(part)
        if entries is not None:
            source, taken = _of_entries(entries, taken)
        is_given = place.function is not None and source in parameters(place.function)
        if not source or (source == target.id and not is_given):
            continue  # the set itself is gone then
        if _is_sliced(place, target.id, has_entries=entries is not None):
            return ShuffledSet(source, target.id, order, taken)
    return None


def _calling(window: Window, row: int) -> Place | None:
    """The program's statement that called the function which made a tensor."""
    frames = window.user_frames(window.stack(row))[1:2]
    return place_of(frames[0]) if frames else None


def _of_return(place: Place, calling: Place | None) -> ShuffledSet | None:
    """The same where a function returns the copy, and its caller takes the batches."""
    value = place.statement.value if isinstance(place.statement, ast.Return) else None
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    targets = bound_names(calling.statement) if calling is not None else []
    if calling is None or len(targets) != len(values):
        return None
    handed = loaded_names(calling.statement)
    for target, one in zip(targets, values, strict=True):
        indexed = _indexed(one)
        order = _order(place, indexed[1]) if indexed is not None else ""
        if indexed is None or not order or not isinstance(target, ast.Name):
            continue
        if target.id in handed:
            continue  # ``x = in_order(x)``: the set itself is gone then
        source = ast.unparse(indexed[0])
        if _is_sliced(calling, target.id, has_entries=False):
            return ShuffledSet(source, target.id, order, f"{source}[{order}[i : i + batch]]")
    return None


def _of_loop(place: Place, iterated: ast.expr) -> ShuffledSet | None:
    """The same of a loop that takes batches of such a copy: ``for b in x[order].split(batch)``."""
    for call in calls_in(iterated, *_IN_BATCHES):
        indexed = _indexed(call.func.value) if isinstance(call.func, ast.Attribute) else None
        order = _order(place, indexed[1]) if indexed is not None else ""
        if indexed is not None and order:
            source = ast.unparse(indexed[0])
            return ShuffledSet(source, "", order, f"{source}[{order}[i : i + batch]]")
    return None


def _order(place: Place, index: ast.expr) -> str:
    """By what name an index is known that puts all in random order; empty for others."""
    if not isinstance(index, ast.Name):
        return _UNNAMED if _is_order(index) else ""
    made = [one for one in values_of(place, index.id) if one is not None]
    return index.id if made and all(map(_is_order, made)) else ""


def _is_order(value: ast.expr) -> bool:
    """Whether a value is an order of ``torch.randperm`` or of NumPy, perhaps in another type."""
    while isinstance(value, ast.Call) and called_name(value) in _SAME_ORDER:
        given = value.args[:1]
        is_method = isinstance(value.func, ast.Attribute) and (
            not given or called_name(value) in ("to", "cuda")
        )
        if not (is_method or given):
            return False
        value = value.func.value if is_method else given[0]  # type: ignore[attr-defined]
    return called_name(value) in _ORDERS


def _is_slice(place: Place, index: ast.expr) -> bool:
    """``i : i + batch``, as such, or by a variable that ``slice(i, i + batch)`` is bound to."""
    if isinstance(index, ast.Name):
        made = [one for one in values_of(place, index.id) if one is not None]
        return bool(made) and all(_is_slice(place, one) for one in made)
    return isinstance(index, ast.Slice) or called_name(index) == "slice"


def _indexed(value: ast.expr | None) -> tuple[ast.expr, ast.expr] | None:
    """``x`` and ``order`` of ``x[order]``, ``x.index_select(0, order)`` or torch's function."""
    if isinstance(value, ast.Subscript):
        index = value.slice
        return (value.value, index) if isinstance(index, (ast.Call, ast.Name)) else None
    if not isinstance(value, ast.Call) or called_name(value) != _SELECT:
        return None
    is_method = isinstance(value.func, ast.Attribute) and ast.unparse(value.func.value) != "torch"
    receiver = [value.func.value] if isinstance(value.func, ast.Attribute) and is_method else []
    given = [*receiver, *value.args, *(one.value for one in value.keywords)]
    if len(given) != _GIVEN or ast.unparse(given[1]) != "0":
        return None
    return (given[0], given[2]) if isinstance(given[2], (ast.Call, ast.Name)) else None


def _of_entries(entries: ast.DictComp, taken: str) -> tuple[str, str]:
    """``data`` of ``{k: v[order] for k, v in data.items()}``, and the same of a batch of it."""
    loop = entries.generators[0]
    items = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    if len(entries.generators) != 1 or not isinstance(items, ast.Attribute) or loop.ifs:
        return "", ""
    target = ast.unparse(loop.target).strip("()")
    text = f"{ast.unparse(entries.key)}: {taken} for {target} in {ast.unparse(loop.iter)}"
    return ast.unparse(items.value) if items.attr == "items" else "", f"{{{text}}}"


def _is_sliced(place: Place, name: str, *, has_entries: bool) -> bool:
    """Whether all later reads of a variable take slices of it, or ask for its length.

    Of its entries, where it is a dictionary.
    """
    sliced = False
    for load, around in reads_of(place.scope, name):
        if load.lineno <= place.line:
            continue
        value: ast.expr = load
        beyond = around
        if has_entries:
            entry = around[-1]
            if not isinstance(entry, ast.Subscript) or not isinstance(entry.slice, ast.Constant):
                return False
            value, beyond = entry, around[:-1]
        if _takes_batches(place, value, beyond):
            sliced = True
        elif not (called_name(beyond[-1]) == "len" or _asks_for_length(beyond[-1])):
            return False
    return sliced


def _takes_batches(place: Place, value: ast.expr, around: list[ast.AST]) -> bool:
    """``x[i : i + batch]``, ``x.split(batch)``, ``x.chunk(n)``.

    Not ``first, second = x.split((n, m))``: parts that have names are kept.
    """
    parent = around[-1]
    if called_name(parent) == _DATA_SET:
        return True
    if isinstance(parent, ast.Subscript) and parent.value is value:
        return _is_slice(place, parent.slice)
    call = around[-2] if len(around) > 1 else None
    if not isinstance(call, ast.Call) or not isinstance(parent, ast.Attribute):
        return False
    sizes = any(isinstance(one, (ast.List, ast.Tuple)) for one in call.args)
    is_named = isinstance(around[-3], ast.Assign)
    return call.func is parent and parent.attr in _IN_BATCHES and not (sizes or is_named)


def _asks_for_number(node: ast.AST) -> bool:
    return _asks_for_length(node) or (isinstance(node, ast.Attribute) and node.attr in _NUMBERS)


def _asks_for_length(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _OF_LENGTH


RULE = ShuffledCopyRule()
