"""Small views that keep a whole storage, and the expression to clone."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.records import Holder
from memprof.reference_chain import THROUGH_GRAPH, LinkKind, largest_container
from memprof.rules.being_made import making_statement
from memprof.rules.case import Case
from memprof.rules.containers import filled_container, places_in
from memprof.rules.rule import Advice, Cause
from memprof.rules.source_facts import handed_over
from memprof.source_code.assignment_index import is_empty_container
from memprof.source_code.call_sites import Handed
from memprof.source_code.idioms import growing, last_name
from memprof.source_code.patch import diff, wrapped
from memprof.source_code.program import (
    Place,
    Program,
    assigned,
    bound_names,
    called_name,
    calls_in,
)
from memprof.source_code.returned_values import called_function
from memprof.source_code.values import values_of
from memprof.units import format_bytes

__all__ = ["SMALL_PART", "PartOfStorage", "advice_on_view", "alike", "share_shown", "small_view"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FAR_MORE = 4
"""Times the storage of a view: what a step adds to the graph that it hangs on."""
SMALL_PART = 0.25
"""Of a storage, or of all that a container keeps: who shows more of it hardly keeps it by mistake;
and a larger view is not what keeps much alive where a graph does."""
_MOSTLY = 0.5
"""Of what grows, that is shown: then a clone of each view frees little."""
_LITTLE = 0.05
"""Of what grew, that views of a holder keep whole: it does not grow by these."""
_MANY_TIMES = 16
"""What there was at the peak of the window: after it there may be much more."""
_TAKING = frozenset(("diagonal", "narrow", "select"))
"""Methods, and functions of torch, that make a view of a part."""
_MOST_HOLDERS = 3
"""Where all that a search names show a part each, there may be more of them."""


@dataclass(frozen=True, slots=True, eq=False)
class PartOfStorage(Cause):
    """A view that something holds, and the storage that it keeps whole."""

    shown_bytes: int
    storage_bytes: int
    is_main_reason: bool
    """No graph holds the storage as well, or the view is a small part of it; and no graph keeps
    more besides."""
    in_graphs: float
    """Share of what grows that graphs keep: a clone hangs on them as well."""


def alike(holder: Holder, sizes: Ints) -> Bools:
    """Which tensors are about as large as the storage of the view at a chain's end; else none."""
    view = holder.links[-1]
    if not 0 < view.shown_bytes < view.storage_bytes:
        return np.zeros(len(sizes), dtype=bool)
    of_size: Bools = (sizes >= view.storage_bytes / 2) & (sizes <= 2 * view.storage_bytes)
    return of_size


def share_shown(holder: Holder, sizes: Ints) -> float:
    """The part that a container's items show of the storages that they are views of; 1 for none.

    ``sizes`` are the storages'. An item may have several, as a cache has of each layer, or share
    one with others: there are as many views as there are more of.
    """
    at = largest_container(holder.links)
    if at is None or not len(sizes):
        return 1.0
    views = max(holder.links[at].length, len(sizes))
    return holder.links[-1].shown_bytes * views / float(sizes.sum())


def small_view(case: Case) -> PartOfStorage | None:
    """The first view in the chains of references that shows less than its storage has.

    Where a graph keeps far more than that storage, a clone is no remedy: it has the graph, too.
    """
    by_graph = any(holder.through_graph for holder in case.finding.holders) or (
        case.graph and not case.direct
    )
    for holder in case.finding.holders:
        if _is_of_librarys_hook(holder):
            continue
        for link in holder.links:
            if link.shown_bytes >= 0 and link.storage_bytes >= 0:
                view_bytes, whole = link.shown_bytes, link.storage_bytes
                if by_graph and case.finding.bytes_per_step >= _FAR_MORE * whole:
                    return None
                if _keeps_little(holder, case, whole):
                    break
                if not 0 < view_bytes < whole or _is_shared_out(case, whole):
                    return None
                if _show_all_together(holder, case, view_bytes, whole):
                    return None
                small = view_bytes <= SMALL_PART * whole or not case.links & THROUGH_GRAPH
                in_graphs = 1 - case.finding.growth.kept_itself if by_graph else 0.0
                is_main_reason = small and in_graphs <= _MOSTLY
                return PartOfStorage(view_bytes, whole, is_main_reason, in_graphs)
    return None


def _is_of_librarys_hook(holder: Holder) -> bool:
    """Whether a library's hook has it in an attribute that no line of the program sets.

    The program clones no mask that `torch.nn.utils.prune` took; it removes the hook.
    """
    above = [link for link in holder.links if link.kind != LinkKind.BASE]
    is_hook = any(link.kind == LinkKind.HOOK for link in above)
    return is_hook and above[-1].kind == LinkKind.ATTRIBUTE and not above[-1].line


def _show_all_together(holder: Holder, case: Case, view_bytes: int, storage_bytes: int) -> bool:
    """Whether the views in a chain's containers show most of what they keep.

    That is what grew, or more. Where there never was nearly as much as so many storages have, items
    share one, as rows of a batch do: then it is what grew.
    """
    at = largest_container(holder.links)
    items = holder.links[at].length if at is not None else 1
    whole_bytes, most = items * storage_bytes, case.finding.bytes
    if case.window is not None:
        most = max(most, case.window.line.peak_allocated.bytes)
    share_storages = whole_bytes > _MANY_TIMES * most
    kept_bytes = case.finding.bytes if share_storages else max(case.finding.bytes, whole_bytes)
    return places_in(holder) * view_bytes > _MOSTLY * kept_bytes


def _keeps_little(holder: Holder, case: Case, storage_bytes: int) -> bool:
    """Whether all such views of a container, or of a further holder, keep little of what grew.

    What holds most of it is to be let go of: a prepared model, say, and beside it a row of data.
    """
    places = places_in(holder)
    is_told = bool(places) or holder is not case.finding.holders[0]
    return is_told and max(1, places) * storage_bytes < _LITTLE * case.finding.bytes


def _is_shared_out(case: Case, storage_bytes: int) -> bool:
    """Whether several holders show what together is the whole: no clone frees any of it."""
    parts = {
        (tuple(link.name for link in holder.links if link.kind != LinkKind.ITEM), link.shown_bytes)
        for holder in case.finding.holders
        for link in holder.links
        if link.storage_bytes == storage_bytes and link.shown_bytes < storage_bytes
    }
    viewed_bytes = sum(viewed_bytes for _, viewed_bytes in parts)
    return len(parts) > 1 and (viewed_bytes >= storage_bytes or len(parts) >= _MOST_HOLDERS)


def _goes_on(part: PartOfStorage, case: Case) -> bool:
    """Whether most of the growth is left after a clone, in a container that the program fills."""
    is_large = part.shown_bytes > SMALL_PART * part.storage_bytes
    return is_large and filled_container(case) is not None


def advice_on_view(part: PartOfStorage, case: Case) -> Iterator[Advice]:
    """Clone the view where it is stored."""
    part_place = next(_stored_parts(case, case.finding.holders), None) or _made_part(case)
    place = part_place[0] if part_place is not None else _making(case) or _slicing(case)
    patch = ""
    if part_place is not None:
        suffix = ".copy()" if _of_arrays(case) else ".clone()"
        where, value = part_place
        beside = [one for at, one in _stored_parts(case, _beside(case)) if at is where]
        values = {id(one): one for one in (value, *beside)}.values()
        edits = [edit for one in values for edit in wrapped(one, suffix)]
        patch = diff(where.program, *edits)
    shown_size, whole = format_bytes(part.shown_bytes), format_bytes(part.storage_bytes)
    yield Advice(
        "clone_view",
        f"A view of {shown_size} keeps its whole storage of {whole}.",
        place or _making_record(case) or (case.places[0] if case.places else case.site),
        patch=patch,
        remains=1 - (1 - part.in_graphs) * (1 - part.shown_bytes / part.storage_bytes),
        otherwise=not part.is_main_reason or _goes_on(part, case),
    )


def _beside(case: Case) -> Iterator[Holder]:
    """Holders of other small views that the line of the first one puts there with it."""
    first = case.finding.holders[0] if case.finding.holders else None
    for search in case.window.searches if case.window is not None else ():
        for holder in search.holders:
            view = holder.links[-1]
            at = holder.filename, holder.line
            is_there = first is not None and at == (first.filename, first.line)
            if is_there and 0 < view.shown_bytes <= SMALL_PART * view.storage_bytes:
                yield holder


def _stored_parts(case: Case, holders: Iterable[Holder]) -> Iterator[Handed]:
    """The very expression that is the view, where it is put: ``rows[:2]`` of ``kept.append(…)``.

    Or a name that stands for nothing but such a part. The chain of references says which of several
    things that are put there it is.
    """
    for holder in holders:
        place = case.place_of(holder)
        if place is None:
            continue
        value = _held_value(holder, place)
        if value is None:
            yield from _items(place, holder)
            continue
        where, value = handed_over(case, place, value) or (place, value)
        parts = values_of(where, value.id) if isinstance(value, ast.Name) else [value]
        part_statements = list(parts)
        if not part_statements or not all(map(_is_part, part_statements)):
            continue
        names = {ast.unparse(one) for one in (value, *bound_names(where.statement))}
        if not any(_writes(node, names) for node in ast.walk(where.scope)):
            yield where, value


def _made_part(case: Case) -> Handed | None:
    """The view that an expression puts into the list that it makes; None where that is not sure.

    ``model(x)[:, 0]`` of ``[model(x)[:, 0] for x in xs]``, or what the only function called there
    returns that is a part, by itself or among others.
    """
    making = _making(case)
    if making is None:
        return None
    lists = (node for node in ast.walk(making.statement) if isinstance(node, ast.ListComp))
    items = [node.elt for node in lists]
    if len(items) != 1:
        return None
    values = items[0].elts if isinstance(items[0], ast.Tuple) else items
    parts = [(making, one) for one in values if _is_part(one)]
    for call in calls_in(items[0]) if not parts else ():
        called = called_function(making, call, case.programs)
        parts += _parts_returned(*called) if called is not None else ()
    return parts[0] if len(parts) == 1 else None


def _making(case: Case) -> Place | None:
    """The statement that is making the list which has the view, where only C++ has that yet."""
    for holder in case.finding.holders:
        if any(link.shown_bytes >= 0 for link in holder.links):
            return making_statement(holder, case.finding.stack)
    return None


def _parts_returned(program: Program, function: ast.AST) -> Iterator[Handed]:
    """What a function returns that is a part of something, with its statement."""
    for node in ast.walk(function):
        at = program.place(node) if isinstance(node, ast.Return) else None
        if at is None or at.function is not function or not isinstance(node, ast.Return):
            continue
        for value in node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]:
            parts = values_of(at, value.id) if isinstance(value, ast.Name) else [value]
            part_statements = list(parts)
            if value is not None and part_statements and all(map(_is_part, part_statements)):
                yield at, value


def _is_part(value: ast.expr | None) -> bool:
    """``rows[:2]`` and ``scores.diagonal()``.

    Also cut off from its graph: ``rows[:2].detach()`` shares its storage, too.
    """
    is_call = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
    if is_call and called_name(value) == "detach":  # type: ignore[arg-type]
        return _is_part(value.func.value)  # type: ignore[union-attr]
    if is_call and called_name(value) in _TAKING:  # type: ignore[arg-type]
        return True
    return isinstance(value, ast.Subscript)


def _items(place: Place, holder: Holder) -> Iterator[Handed]:
    """The view within a tuple that is put there: ``rows[i]`` of ``entry = (loss, rows[i])``.

    The chain of references ends in its position.
    """
    growth = growing(place)
    values = growth.values if growth is not None else ()
    names = [one.id for one in values if isinstance(one, ast.Name)]
    last = next((one for one in reversed(holder.links) if one.kind != LinkKind.BASE), None)
    bindings = [
        node
        for node in ast.walk(place.scope)
        if isinstance(node, ast.Assign)
        and any(isinstance(one, ast.Name) and one.id in names for one in bound_names(node))
    ]
    if last is None or last.kind != LinkKind.ITEM or not last.name.isdigit() or len(bindings) != 1:
        return
    record, at = bindings[0].value, int(last.name)
    items = record.elts if isinstance(record, ast.Tuple) else []
    made = place.program.place(bindings[0])
    if made is None or at >= len(items) or not isinstance(items[at], ast.Subscript):
        return
    if not any(_writes(node, {ast.unparse(items[at]), *names}) for node in ast.walk(place.scope)):
        yield made, items[at]


def _writes(node: ast.AST, names: set[str]) -> bool:
    """Whether a node changes a tensor in place: a clone would keep that from the whole."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr.endswith("_") and ast.unparse(node.func.value) in names
    if isinstance(node, ast.AugAssign):
        return ast.unparse(node.target) in names
    targets = bound_names(node) if isinstance(node, ast.Assign) else []
    return any(isinstance(t, ast.Subscript) and ast.unparse(t.value) in names for t in targets)


def _held_value(holder: Holder, place: Place) -> ast.expr | None:
    """What a statement puts where the chain goes on to the view."""
    kinds = [link.kind for link in holder.links]
    if LinkKind.BASE not in kinds:
        return None
    links = holder.links[: kinds.index(LinkKind.BASE)]
    growth = growing(place)
    value: ast.expr | None
    if growth is not None and len(growth.values) == 1:
        name, value = growth.container, growth.values[0]
        within = name.count("[") + 1  # its own items, and those of what it is in
    else:
        pairs = list(assigned(place.statement))
        if growth is not None or len(pairs) != 1 or not isinstance(place.statement, ast.Assign):
            return None
        name, value, within = ast.unparse(pairs[0][0]), pairs[0][1], 0
    places_of_name = [at for at, link in enumerate(links) if link.name == last_name(name)]
    # A variable stands for an item of what the chain names: its own items are the last.
    top = places_of_name[-1] + 1 if places_of_name else len(links) - within - _depth(value)
    below = links[max(0, top) :]
    if any(link.kind != LinkKind.ITEM for link in below) or len(below) < within:
        return None
    for link in below[within:]:
        value = _entry(value, link.name)
    return value


def _depth(value: ast.expr | None) -> int:
    """How many items lead to the tensor in what is put there: one in a tuple that is written."""
    return int(isinstance(value, (ast.Tuple, ast.List, ast.Dict)))


def _entry(value: ast.expr | None, name: str) -> ast.expr | None:
    """The item of a tuple, a list or a dict as it is written out; None where it is not."""
    if isinstance(value, (ast.Tuple, ast.List)) and name.isdigit() and int(name) < len(value.elts):
        starred = any(isinstance(one, ast.Starred) for one in value.elts)
        return None if starred else value.elts[int(name)]
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        return next((v for k, v in pairs if k is not None and ast.unparse(k) == name), None)
    return None


def _slicing(case: Case) -> Place | None:
    """A statement that takes a part of what the site made, or in the keeper's function."""
    scopes = [p for p in (case.site, *case.places, *(place for _, place in case.frames)) if p]
    names = {ast.unparse(t) for p in scopes for t in bound_names(p.statement)}
    for place in scopes:  # an item of a container is no part of a tensor
        containers = (t for t, value in assigned(place.statement) if is_empty_container(value))
        names.difference_update(ast.unparse(container) for container in containers)
    for place in scopes:
        for node in ast.walk(place.scope):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Subscript):
                continue
            key = node.value.slice
            is_text_key = isinstance(key, ast.Constant) and isinstance(key.value, str)
            if ast.unparse(node.value.value) in names and not is_text_key:
                return place.program.place(node)
    return None


def _making_record(case: Case) -> Place | None:
    """The one statement that makes the objects of the program's whose attribute a view is."""
    for holder in case.finding.holders:
        above = [link for link in holder.links if link.kind != LinkKind.BASE]
        if above and above[-1].kind == LinkKind.ATTRIBUTE:
            name = above[-1].type_name.rpartition(".")[2]
            places = {place.line: place for _, place in case.calls(name)}
            if len(places) == 1:
                return next(iter(places.values()))
    return None


def _of_arrays(case: Case) -> bool:
    """Whether NumPy arrays are the views."""
    links = (link for holder in case.finding.holders for link in holder.links)
    return any(link.kind == LinkKind.BASE and link.type_name == "ndarray" for link in links)
