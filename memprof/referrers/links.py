"""How one object refers to the next, in a person's words; runs no code of the objects it looks at.

Attributes are read from instance dicts and slots through the descriptors that C defines, containers
through the methods of the built-in types, so no property, ``__getattr__`` or ``__repr__`` runs.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Iterator

import msgspec
import torch

from memprof.reference_chain import Link, LinkKind
from memprof.referrers.introspection import (
    SEQUENCES,
    SETS,
    bound_of,
    instance_dict,
    is_one_of,
    is_plain_container,
    qualified_name,
    refers,
    size_of,
    text_of,
    type_mro,
)
from memprof.referrers.links_by_type import (
    PROBES,
    LruCache,
    function_link,
    in_code,
    lru_link,
    may_apply,
)
from memprof.referrers.notebook import cell_results, keeps_results
from memprof.referrers.torch_references import is_tensor_type
from memprof.source_code.verbs import RELEASING
from memprof.sources.graph_nodes import is_node_type
from memprof.sources.user_files import is_user_file

__all__ = ["Naming"]

_HOOK_DICTS = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_state_dict_hooks": "state_dict hook",
    "_load_state_dict_pre_hooks": "load_state_dict pre-hook",
    "_load_state_dict_post_hooks": "load_state_dict post-hook",
    "_post_accumulate_grad_hooks": "post-accumulate-grad hook",
    "_optimizer_step_pre_hooks": "optimizer step pre-hook",
    "_optimizer_step_post_hooks": "optimizer step post-hook",
}
_MOST_RELEASES = 16
"""Methods of one class that are named: a class with more has too many ways to tell which is it."""
_OF_QUEUES = ("queue", "_queue")
"""Attributes in which queues have their items."""
_INDEX_FROM = 64  # containers this large get an index, for many of their items may be asked for
_MANY_OF_CLASS = 8
"""Objects of one class: a record may have a few, as one for training and one for testing."""
_MOST_BELOW = 500
"""Objects below the value of a weak key that are looked at for the key itself."""


def _key_text(key: object) -> str:
    if is_one_of(type(key), (str, int, float, bool, type(None))):
        text = repr(key)
        return text if len(text) <= 60 else text[:57] + "...'"
    if type(key) is tuple and len(key) <= 4:
        return "(" + ", ".join(_key_text(one) for one in key) + ")"
    referent = weakref.ref.__call__(key) if type(key) is weakref.ref else None
    return f"<{type(key if referent is None else referent).__name__}>"


_OF_PROGRAMS = (types.ModuleType, types.FunctionType, types.CodeType, types.FrameType, type)
"""Objects that refer to everything in the end."""
_SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


class Naming:
    """Names links of one search; remembers, by id alone, where things are in large containers."""

    def __init__(self, module_names: dict[int, str] | None = None) -> None:
        self._indices: dict[int, dict[int, tuple[LinkKind, object]]] = {}
        self._records: dict[int, bool] = {}
        self._links: dict[tuple[int, int], Link] = {}
        self._attributes: dict[tuple[int, str], Link] = {}
        self._orphaned: dict[int, int] = {}
        self._may_probe: dict[int, bool] = {}
        self._modules = module_names or {}
        self._in_notebook = cell_results() is not None

    def links(self, chain: list[object]) -> list[Link]:
        """One link for every step of ``chain``, from the first object down to the last."""
        chain_links: list[Link] = []
        at = 0
        while at < len(chain) - 1:
            one, used = self._link(chain, at)
            chain_links += one
            at += used
        return chain_links

    def _link(self, chain: list[object], at: int) -> tuple[list[Link], int]:
        owner, value = chain[at], chain[at + 1]
        after = chain[at + 2] if at + 2 < len(chain) else None
        kind = type(owner)
        if type(value) is dict and after is not None and not is_plain_container(owner):
            dict_link = self._through_dict(owner, value, after)
            if dict_link is not None:
                return [dict_link], 2
        if type(value) is types.FrameType and after is not None and is_one_of(kind, _SUSPENDED):
            return [self._direct(owner, after)], 2  # up to Python 3.10 it refers to its frame
        if kind is types.FunctionType:
            return function_link(owner, value, chain[at + 2 : at + 4])  # type: ignore[arg-type]
        return [self._direct(owner, value)], 1

    def _through_dict(
        self, owner: object, variables: dict[str, object], value: object
    ) -> Link | None:
        """The link ``owner.name`` where ``variables`` is the dict of owner's names."""
        if issubclass(type(owner), type):
            if not issubclass(type(variables), dict) or issubclass(type(value), type):
                return None
            return Link(
                LinkKind.CLASS_ATTRIBUTE,
                _variable_name(self._in_container(variables, value)[1]),
                qualified_name(owner),
                _file_of(owner),  # type: ignore[arg-type]
            )
        if type(owner) is LruCache and instance_dict(owner) is not variables:
            return lru_link(owner)
        if type(owner) is types.FunctionType and owner.__globals__ is variables:
            module = variables.get("__name__")
            name = _variable_name(self._in_container(variables, value)[1])
            return Link(LinkKind.GLOBAL, name, module if type(module) is str else "")
        if type(owner) is types.FunctionType and owner.__kwdefaults__ is variables:
            name = _variable_name(self._in_container(variables, value)[1])
            return in_code(LinkKind.DEFAULT_ARGUMENT, name, owner)
        if instance_dict(owner) is variables:
            kind, place = self._in_container(variables, value)
            return self._attribute(owner, _variable_name(place)) if kind is LinkKind.ITEM else None
        return None

    def _direct(self, owner: object, value: object) -> Link:
        """Many chains have their beginning in common: links from small containers are kept."""
        size = size_of(owner)
        if not 0 <= size < _INDEX_FROM:
            return self._make(owner, value, size)
        key = (id(owner), id(value))
        cached = self._links.get(key)
        if cached is None:
            cached = self._links[key] = self._make(owner, value, size)
        return cached

    def _make(self, owner: object, value: object, size: int) -> Link:
        kind = type(owner)
        if size >= 0 and not _has_name(owner, value):
            how, place = self._in_container(owner, value)
            name = _variable_name(place) if self._in_notebook else ""
            if name and keeps_results(name, value):
                return Link(LinkKind.NOTEBOOK, name, kind.__name__)
            if place is not None:
                return Link(
                    how,
                    _place_text(place),
                    kind.__name__,
                    length=size,
                    limit=bound_of(owner),
                    is_record=self._is_record(owner, size),
                    keeps_own_key=how is LinkKind.ITEM and _keeps_own_key(place, value),
                )
        ways = [*PROBES] if self._may_be_probed(kind) else []
        has_more = is_tensor_type(kind) or is_node_type(kind)  # than attributes: told without names
        ways.insert(0 if has_more else len(ways), self._named_attribute)
        for way in ways:
            links = way(owner, value)
            if links is not None:
                return links
        return Link(LinkKind.UNKNOWN, "", kind.__name__)

    def _may_be_probed(self, kind: type) -> bool:
        cached = self._may_probe.get(id(kind))
        if cached is None:
            cached = self._may_probe[id(kind)] = may_apply(kind)
        return cached

    def _attribute(self, owner: object, name: str) -> Link:
        """The same for every instance of a class, but for log records and optimizers' states."""
        key = (id(type(owner)), name)
        cached = self._attributes.get(key)
        if cached is None:
            cached = _attribute(owner, name)
            if cached.kind != LinkKind.LOG_RECORD:
                self._attributes[key] = cached
        if cached.kind == LinkKind.QUEUE:
            return msgspec.structs.replace(cached, limit=_longest_queue(owner))
        if cached.kind == LinkKind.OPTIMIZER_STATE and name == "state":
            if id(owner) not in self._orphaned:
                self._orphaned[id(owner)] = _orphaned_states(owner)
            return msgspec.structs.replace(cached, orphaned=self._orphaned[id(owner)])
        return cached

    def _named_attribute(self, owner: object, value: object) -> Link | None:
        """Attributes kept without a dict of their own: inline values and slots."""
        # reading a tensor's empty ``__dict__`` would make one; from Python 3.14 on what it has
        # may be inline, and then it refers to it itself
        is_inline = not is_tensor_type(type(owner)) or refers(owner, value)
        variables = instance_dict(owner) if is_inline else None
        if variables is not None:
            for name, other in list(variables.items()):
                if other is value:
                    return self._attribute(owner, text_of(name))
        for kind in type_mro(type(owner)):
            for name, descriptor in list(type.__dict__["__dict__"].__get__(kind).items()):
                if (
                    type(descriptor) is types.MemberDescriptorType
                    and _slot(descriptor, owner) is value
                ):
                    return self._attribute(owner, name)
        return None

    def _is_record(self, owner: object, size: int) -> bool:
        if size < _INDEX_FROM:
            return _is_record(owner)
        if id(owner) not in self._records:
            self._records[id(owner)] = _is_record(owner)
        return self._records[id(owner)]

    def _in_container(self, owner: object, value: object) -> tuple[LinkKind, object]:
        """Return how a container holds a value, and where: a position or a `_Key`, else None."""
        if size_of(owner) < _INDEX_FROM:
            for other, kind, place in _items(owner):
                if other is value:
                    return kind, place
            return LinkKind.ITEM, None
        index = self._indices.get(id(owner))
        if index is None:
            index = {}
            for other, kind, place in _items(owner):
                index.setdefault(id(other), (kind, place))
            self._indices[id(owner)] = index
        return index.get(id(value), (LinkKind.ITEM, None))


def _is_record(owner: object) -> bool:
    """Return whether a container is a dict with nothing but strings for keys.

    Objects of one class of the program's, and many of them, are a collection, whatever their names.
    """
    if not issubclass(type(owner), dict):
        return False
    keys: list[object] = list(dict.keys(owner))  # type: ignore[arg-type]
    values: list[object] = list(dict.values(owner))  # type: ignore[arg-type]
    kind = type(values[0]) if len(values) >= _MANY_OF_CLASS else None
    if kind is not None and all(type(one) is kind for one in values) and _file_of(kind):
        return False
    return all(issubclass(type(key), str) for key in keys)


def _variable_name(place: object) -> str:
    """Return the name that a namespace has for what lies there; empty where that is nowhere."""
    return text_of(place.key) if type(place) is _Key else ""


def _place_text(place: object) -> str:
    return str(place) if type(place) is not _Key else _key_text(place.key)


class _Key:
    """A dict key whose text is made only when it is asked for."""

    __slots__ = ("key",)

    def __init__(self, key: object) -> None:
        self.key = key


def _keeps_own_key(place: object, value: object) -> bool:
    """Whether the key of an entry is a weak reference to what the entry's value refers to."""
    if type(place) is not _Key or type(place.key) is not weakref.ref:
        return False
    referent = weakref.ref.__call__(place.key)
    if referent is None:
        return False
    waiting, known = deque([value]), {id(value)}
    while waiting:
        one = waiting.popleft()
        if one is referent:
            return True
        for below in _referents(one):
            if id(below) not in known and len(known) < _MOST_BELOW:
                known.add(id(below))
                waiting.append(below)
    return False


def _referents(one: object) -> list[object]:
    """Return what an object refers to; of a function what it closes over and its defaults alone."""
    if type(one) is types.FunctionType:
        return [one.__closure__, one.__defaults__, one.__kwdefaults__]
    return gc.get_referents(one) if not issubclass(type(one), _OF_PROGRAMS) else []


def _items(owner: object) -> Iterator[tuple[object, LinkKind, object]]:
    kind = type(owner)
    if issubclass(kind, dict):
        pairs: list[tuple[object, object]] = list(dict.items(owner))  # type: ignore[arg-type]
        for key, value in pairs:
            yield value, LinkKind.ITEM, _Key(key)
        for key, _ in pairs:
            if not is_one_of(type(key), (str, int)):
                yield key, LinkKind.KEY, _Key(key)
        return
    for base in SEQUENCES:
        if issubclass(kind, base):
            for position, value in enumerate(_in_order(owner, base)):
                yield value, LinkKind.ITEM, position
    for other in SETS:
        if issubclass(kind, other):
            for value in list(other.__iter__(owner)):  # type: ignore[arg-type]
                yield value, LinkKind.ITEM, "element"


def _goes_from_last() -> bool:
    """Whether the collector is told of a sequence's last item first (``tuple_traverse``)."""
    first, last = object(), object()
    return gc.get_referents((first, last))[0] is last


_FROM_LAST = _goes_from_last()


def _in_order(owner: object, base: type) -> list[object]:
    """The items of a sequence, by what its class inherits from ``base``.

    A tuple or list that C is filling just now has places without an item: ``tuple(parts())`` while
    `parts` runs. Whoever iterates over it crashes; the collector leaves them out.
    """
    if type(owner) is tuple or type(owner) is list:
        items = gc.get_referents(owner)
        return items[::-1] if _FROM_LAST else items
    return list(base.__iter__(owner))  # type: ignore[attr-defined]


def _has_name(owner: object, value: object) -> bool:
    """Whether a subclass of a container holds ``value`` as an attribute."""
    if is_plain_container(owner):
        return False
    variables = instance_dict(owner)
    return variables is not None and any(one is value for one in variables.values())


def _attribute(owner: object, name: str) -> Link:
    kind = type(owner)
    type_name = type(owner).__name__
    if name in _HOOK_DICTS:
        return Link(LinkKind.HOOK, _HOOK_DICTS[name], type_name)
    if is_node_type(type(owner)):
        return Link(LinkKind.CTX_ATTRIBUTE, name, type_name, _file_of(type(owner)))
    if type.__subclasscheck__(logging.LogRecord, kind):
        return _log_record(owner, name)
    return Link(
        _attribute_kind(kind, name),
        name,
        type_name,
        _file_of(type(owner)),
        releases=_releases_of(kind),
    )


def _orphaned_states(optimizer: object) -> int:
    """How many parameters an optimizer has a state of that are in none of its groups."""
    own = instance_dict(optimizer) or {}
    groups, states = own.get("param_groups"), own.get("state")
    if type(groups) is not list or not issubclass(type(states), dict):
        return 0
    lists = [group.get("params") for group in groups if type(group) is dict]
    if not all(type(one) is list for one in lists):
        return 0
    trained = {id(parameter) for one in lists for parameter in one}  # type: ignore[union-attr]
    keys: list[object] = list(dict.keys(states))  # type: ignore[arg-type]
    return sum(is_tensor_type(type(key)) and id(key) not in trained for key in keys)


def _queue_types() -> list[type]:
    """The classes of queues between threads and between tasks; those that the job has imported."""
    modules = (sys.modules.get(name) for name in ("queue", "asyncio.queues"))
    kinds = [getattr(module, "Queue", None) for module in modules]
    return [kind for kind in kinds if isinstance(kind, type)]


def _longest_queue(queue: object) -> int:
    """The most that a queue can hold; -1 where it has no bound."""
    own = instance_dict(queue) or {}
    size = own.get("maxsize", own.get("_maxsize"))
    return size if type(size) is int and size > 0 else -1


def _attribute_kind(kind: type, name: str) -> LinkKind:
    if type.__subclasscheck__(BaseException, kind):
        return LinkKind.EXCEPTION
    if type.__subclasscheck__(threading.Thread, kind):
        return LinkKind.THREAD
    if type.__subclasscheck__(torch.nn.Module, kind):
        return LinkKind.MODULE_ATTRIBUTE
    if name in _OF_QUEUES and any(type.__subclasscheck__(one, kind) for one in _queue_types()):
        return LinkKind.QUEUE
    if type.__subclasscheck__(torch.optim.Optimizer, kind) and name in ("state", "param_groups"):
        return LinkKind.OPTIMIZER_STATE
    return LinkKind.ATTRIBUTE


def _releases_of(kind: type) -> tuple[str, ...]:
    """The public methods of a class that begin with a verb of letting go, of its parents too."""
    names = {
        name
        for one in type_mro(kind)
        for name, value in list(type.__dict__["__dict__"].__get__(one).items())
        if type(value) is types.FunctionType and name.split("_", 1)[0] in RELEASING
    }
    return tuple(sorted(names)) if len(names) <= _MOST_RELEASES else ()


def _file_of(kind: type) -> str:
    """The user's file that defines a class; empty for a library's."""
    name = type.__dict__["__dict__"].__get__(kind).get("__module__")
    module = sys.modules.get(name) if type(name) is str else None
    filename = (
        types.ModuleType.__getattribute__(module, "__dict__").get("__file__")
        if type(module) is types.ModuleType
        else None
    )
    return filename if type(filename) is str and is_user_file(filename) else ""


def _log_record(record: object, name: str) -> Link:
    """The record's link carries the place of the logging call."""
    variables = instance_dict(record) or {}
    logger, filename, line = (variables.get(key) for key in ("name", "pathname", "lineno"))
    return Link(
        LinkKind.LOG_RECORD,
        name,
        f"logger {logger}" if type(logger) is str else "LogRecord",
        filename if type(filename) is str else "",
        line if type(line) is int else 0,
    )


def _slot(descriptor: types.MemberDescriptorType, owner: object) -> object:
    try:
        return descriptor.__get__(owner)
    except (AttributeError, TypeError):  # not set
        return descriptor
