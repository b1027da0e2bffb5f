"""Several links of a chain that are one thing to a person become one."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from memprof.reference_chain import Link, LinkKind
from memprof.source_code.find_line import registered_at

__all__ = ["tidy"]

_MODULE, _ITEM = LinkKind.MODULE_ATTRIBUTE, LinkKind.ITEM
_STATE = LinkKind.OPTIMIZER_STATE
_OF_MODULES = ("_modules", "_parameters")
_BY_NAME = frozenset(("ModuleDict", "ParameterDict"))
_WRAPPERS = frozenset(
    ("UserDict", "UserList", "WeakIdKeyDictionary", "WeakKeyDictionary", "WeakValueDictionary")
)
"""Classes, of Python's and of torch, that have their entries in a dict or list called ``data``."""
_CONTAINERS = _BY_NAME | {"ModuleList", "ParameterList"}


def tidy(links: list[Link]) -> list[Link]:
    """Join the links of one thing: a module's path, an optimizer's state, a hook and its dict."""
    if _JOINED.isdisjoint([one.kind for one in links]):
        return links
    result: list[Link] = []
    at = 0
    while at < len(links):
        join = _JOINS.get(links[at].kind)
        link, used = join(links, at) if join is not None else (None, 0)
        result.append(links[at] if link is None else link)
        at += used or 1
    return result


def _join_module(links: list[Link], at: int) -> tuple[Link | None, int]:
    """``_modules`` / name pairs and the ``_parameters`` or ``_buffers`` entry at their end.

    An entry of a module that is there to hold others begins anew, where a parameter is meant: such
    a container may be what grows.
    """
    first, start = links[at], at
    path: list[str] = []
    if _is_entry(links, at):
        entry, type_name = links[at + 1], first.type_name
        name = entry.name if type_name in _BY_NAME else entry.name.strip("'")
        return msgspec.structs.replace(entry, name=name, type_name=type_name, is_record=False), 2
    kinds = {
        "_parameters": LinkKind.PARAMETER,
        "_buffers": LinkKind.BUFFER,
        "_modules": LinkKind.MODULE_ATTRIBUTE,
    }
    kind = LinkKind.MODULE_ATTRIBUTE
    filename = ""
    while at + 1 < len(links) and links[at].kind == _MODULE and links[at].name in kinds:
        if links[at + 1].kind != _ITEM or (path and _is_entry(links, at)):
            break
        kind, filename = kinds[links[at].name], links[at].filename
        path.append(links[at + 1].name.strip("'"))
        at += 2
        if kind is not LinkKind.MODULE_ATTRIBUTE:
            break
    inner = path and kind is LinkKind.MODULE_ATTRIBUTE and at < len(links)
    if inner and links[at].kind == _MODULE and links[at].name not in kinds:
        path.append(links[at].name)
        filename = links[at].filename
        at += 1
    if not path:
        return None, 0
    name = ".".join(path)
    releases = _releases_of(first, links[at - 1])
    return Link(kind, name, first.type_name, filename, releases=releases), at - start


def _releases_of(outer: Link, inner: Link) -> tuple[str, ...]:
    """The ways out of a module that a chain's name is for, or of the one inside that has the rest.

    What both have empties the inner one through the outer one, as `MetricCollection.reset` does;
    its `clear` and `pop` take out whole metrics. What only the outer one has is about other things
    than what the inner one collects, unless it is there to hold modules.
    """
    of_outer, of_inner = set(outer.releases), set(inner.releases)
    both = of_outer & of_inner
    holds_modules = not _CONTAINERS.isdisjoint((outer.type_name, inner.type_name))
    either = of_outer | of_inner if holds_modules else of_inner or of_outer
    return tuple(sorted(both or either))


def _is_entry(links: list[Link], at: int) -> bool:
    """Whether a module holds a parameter as a container does, or a module that has it.

    What else a module has, such as a cache of keys and values, does not come with the module.
    """
    if not _is_pair(links, at) or links[at].type_name not in _CONTAINERS:
        return False
    while _is_pair(links, at) and links[at].name == "_modules":
        at += 2
    return _is_pair(links, at)


def _is_pair(links: list[Link], at: int) -> bool:
    """Whether a module's dict of modules or of parameters, and an entry of it, come next."""
    if at + 1 >= len(links) or links[at + 1].kind != _ITEM:
        return False
    return links[at].kind == _MODULE and links[at].name in _OF_MODULES


def _join_state(links: list[Link], at: int) -> tuple[Link | None, int]:
    """``optimizer.state[parameter][name]`` and ``optimizer.param_groups[i]['params'][j]``."""
    first = links[at]
    if first.kind != _STATE:
        return None, 0
    items = []
    for one in links[at + 1 : at + (3 if first.name == "state" else 4)]:
        if one.kind not in (_ITEM, LinkKind.KEY):
            break
        items.append(one)
    used = 1 + len(items)
    if first.name == "state" and len(items) == 2 and items[0].kind == _ITEM:
        name = items[1].name.strip("'")
        return Link(_STATE, name, first.type_name, orphaned=first.orphaned), used
    if first.name == "state" and items and items[0].kind == LinkKind.KEY:
        key = Link(
            _STATE, "state (key)", first.type_name, is_parameter=True, orphaned=first.orphaned
        )
        return key, 2
    name = first.name + "".join(f"[{one.name}]" for one in items)
    of_groups = first.name == "param_groups"
    return Link(_STATE, name, first.type_name, is_parameter=of_groups), used


def _join_hook(links: list[Link], at: int) -> tuple[Link | None, int]:
    """A hook, its dict's entry, and the line where the hook function begins."""
    first = links[at]
    if first.kind != LinkKind.HOOK or first.line:
        return None, 0
    used = 2 if at + 1 < len(links) and links[at + 1].kind == _ITEM else 1
    where = next((one for one in links[at + used : at + used + 2] if one.line), None)
    if where is None:
        return (first, used) if used == 2 else (None, 0)
    line = registered_at(where.filename, where.type_name) or where.line
    return Link(LinkKind.HOOK, first.name, first.type_name, where.filename, line), used


def _join_task(links: list[Link], at: int) -> tuple[Link | None, int]:
    """A task with the future by which the loop will wake it, and the coroutine that it runs."""
    used = at
    while used < len(links) and links[used].kind in (LinkKind.TASK, LinkKind.BOUND_METHOD):
        used += 1
    while links[used - 1].kind != LinkKind.TASK:  # a method of what comes next
        used -= 1
    runs = links[used] if used < len(links) and links[used].kind == LinkKind.COROUTINE else None
    if runs is None:
        return (links[at], used - at) if used - at > 1 else (None, 0)
    task = Link(LinkKind.TASK, runs.type_name, "Task", runs.filename)
    return task, used - at


def _join_nodes(links: list[Link], at: int) -> tuple[Link | None, int]:
    """Runs of one graph that were walked from several places."""
    used = at
    while used < len(links) and links[used].kind == LinkKind.AUTOGRAD_NODE:
        used += 1
    if used - at < 2:
        return None, 0
    nodes = tuple(node for one in links[at:used] for node in one.nodes)
    return msgspec.structs.replace(links[at], nodes=nodes), used - at


def _join_iterators(links: list[Link], at: int) -> tuple[Link | None, int]:
    """An iterator and the list, or the chain of lists, that it keeps its items in."""
    used = 0
    while at + used < len(links) and links[at + used].kind == LinkKind.ITERATOR:
        used += 1
    return (links[at], used) if used > 1 else (None, 0)


def _join_views(links: list[Link], at: int) -> tuple[Link | None, int]:
    """A view of a view: the bytes that the first shows, and those of the storage at the end."""
    used = at
    while used < len(links) and links[used].kind == LinkKind.BASE:
        used += 1
    run = links[at:used]
    if len(run) < 2:
        return None, 0
    shown = next((one.shown_bytes for one in run if one.shown_bytes >= 0), -1)
    storage = max(one.storage_bytes for one in run)
    return msgspec.structs.replace(run[0], shown_bytes=shown, storage_bytes=storage), len(run)


def _join_wrapper(links: list[Link], at: int) -> tuple[Link | None, int]:
    """An entry of ``table.data``, where ``table`` is a class around Python's dict or list."""
    if links[at].name != "data" or links[at].type_name not in _WRAPPERS:
        return None, 0
    if at + 1 == len(links) or links[at + 1].kind != _ITEM:
        return None, 0
    return msgspec.structs.replace(links[at + 1], type_name=links[at].type_name), 2


_JOINS: dict[str, Callable[[list[Link], int], tuple[Link | None, int]]] = {
    LinkKind.ATTRIBUTE: _join_wrapper,
    LinkKind.MODULE_ATTRIBUTE: _join_module,
    LinkKind.OPTIMIZER_STATE: _join_state,
    LinkKind.HOOK: _join_hook,
    LinkKind.TASK: _join_task,
    LinkKind.AUTOGRAD_NODE: _join_nodes,
    LinkKind.ITERATOR: _join_iterators,
    LinkKind.BASE: _join_views,
}
_JOINED = frozenset(_JOINS)
