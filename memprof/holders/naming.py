"""How one object refers to the next, in a person's words; runs no code of the objects it looks at.

Attributes are read from instance dicts and slots through the descriptors that C defines, containers
through the methods of the built-in types, so no property, ``__getattr__`` or ``__repr__`` runs.
"""

from __future__ import annotations

import collections
import functools
import logging
import sys
import threading
import types
from collections.abc import Iterator

import msgspec
import torch

from memprof.holders.autograd import is_node_type, is_tensor_type
from memprof.holders.kinds import LinkKind, link
from memprof.holders.roots import frame_variables, is_user_file
from memprof.records import Link

__all__ = ["Naming", "instance_dict", "qualified_name", "size_of", "type_mro"]

_LruCache = type(functools.lru_cache(maxsize=1)(int))
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
_SEQUENCES = (list, tuple, collections.deque)
_SETS = (set, frozenset)
_INDEX_FROM = 64  # containers this large get an index, for many of their items may be asked for


def _is_one_of(kind: type, kinds: tuple[type, ...]) -> bool:
    """``kind in kinds`` by identity: a metaclass may define ``__eq__``."""
    return any(kind is one for one in kinds)


def type_mro(kind: type) -> tuple[type, ...]:
    """``kind.__mro__`` past any metaclass."""
    mro: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return mro


def instance_dict(one: object) -> dict[str, object] | None:
    """The ``__dict__`` of an object where C provides it; ``None`` where it has none."""
    for kind in type_mro(type(one)):
        found = type.__dict__["__dict__"].__get__(kind).get("__dict__")
        if _is_one_of(type(found), (types.GetSetDescriptorType, types.MemberDescriptorType)):
            variables = found.__get__(one)
            return variables if type(variables) is dict else None
    return None


def size_of(one: object) -> int:
    """The length of a built-in container, -1 for everything else."""
    for kind in (dict, *_SEQUENCES, *_SETS):
        if issubclass(type(one), kind):
            return int(kind.__len__(one))  # type: ignore[arg-type]
    return -1


def _bound_of(one: object) -> int:
    """The most a container can hold; -1 where it has no bound."""
    if not issubclass(type(one), collections.deque):
        return -1
    bound = collections.deque.__dict__["maxlen"].__get__(one)
    return -1 if bound is None else int(bound)


def qualified_name(function: object) -> str:
    """The name of a function or class, without reading its attributes."""
    if type(function) is types.FunctionType:
        return function.__qualname__.replace("<locals>.", "")
    if issubclass(type(function), type):
        return str(type.__dict__["__qualname__"].__get__(function)).replace("<locals>.", "")
    return type(function).__name__


def _key_text(key: object) -> str:
    if type(key) in (str, int, float, bool, type(None)):
        text = repr(key)
        return text if len(text) <= 60 else text[:57] + "...'"
    if type(key) is tuple and len(key) <= 4:  # type: ignore[arg-type]
        return "(" + ", ".join(_key_text(one) for one in key) + ")"  # type: ignore[attr-defined]
    return f"<{type(key).__name__}>"


class Naming:
    """Names links of one search; remembers where things are in large containers (by id, holding nothing)."""

    def __init__(self, module_names: dict[int, str] | None = None) -> None:
        self._indices: dict[int, dict[int, tuple[LinkKind, str]]] = {}
        self._modules = module_names or {}

    def links(self, chain: list[object]) -> list[Link]:
        """One link for every step of ``chain``, from the first object down to the last."""
        found: list[Link] = []
        at = 0
        while at < len(chain) - 1:
            one, used = self._link(chain, at)
            found += one
            at += used
        return found

    def _link(self, chain: list[object], at: int) -> tuple[list[Link], int]:
        owner, value = chain[at], chain[at + 1]
        after = chain[at + 2] if at + 2 < len(chain) else None
        kind = type(owner)
        if type(value) is dict and after is not None and not self._is_plain_container(owner):
            named = self._through_dict(owner, value, after)
            if named is not None:
                return [named], 2
        if kind is types.FunctionType:
            return _function_link(owner, value, chain[at + 2 : at + 4])  # type: ignore[arg-type]
        return [self._direct(owner, value)], 1

    def _is_plain_container(self, owner: object) -> bool:
        return _is_one_of(type(owner), (dict, *_SEQUENCES, *_SETS))

    def _through_dict(
        self, owner: object, variables: dict[str, object], value: object
    ) -> Link | None:
        """The link ``owner.name`` where ``variables`` is the dict in which owner keeps its names."""
        if issubclass(type(owner), type):
            if not issubclass(type(variables), dict) or issubclass(type(value), type):
                return None
            _, name = self._in_container(variables, value)
            return link(
                LinkKind.CLASS_ATTRIBUTE, name.strip("'"), qualified_name(owner), _file_of(owner)
            )
        if type(owner) is _LruCache and instance_dict(owner) is not variables:
            return _lru_link(owner)
        if type(owner) is types.FunctionType and owner.__globals__ is variables:
            _, name = self._in_container(variables, value)
            module = variables.get("__name__")
            return link(LinkKind.GLOBAL, name.strip("'"), module if isinstance(module, str) else "")
        if type(owner) is types.FunctionType and owner.__kwdefaults__ is variables:
            _, name = self._in_container(variables, value)
            return _in_code(LinkKind.DEFAULT_ARGUMENT, name.strip("'"), owner)
        if instance_dict(owner) is variables:
            kind, name = self._in_container(variables, value)
            return _attribute(owner, name.strip("'")) if kind is LinkKind.ITEM else None
        return None

    def _direct(self, owner: object, value: object) -> Link:
        kind = type(owner)
        if size_of(owner) >= 0 and not _has_name(owner, value):
            how, name = self._in_container(owner, value)
            if name:
                one = link(how, name, kind.__name__, length=size_of(owner))
                return msgspec.structs.replace(one, limit=_bound_of(owner))
        for probe in _PROBES:
            found = probe(owner, value)
            if found is not None:
                return found
        return _named_attribute(owner, value) or link(LinkKind.UNKNOWN, "", kind.__name__)

    def _in_container(self, owner: object, value: object) -> tuple[LinkKind, str]:
        if size_of(owner) < _INDEX_FROM:
            for other, kind, name in _items(owner):
                if other is value:
                    return kind, _item_name(kind, name)
            return LinkKind.ITEM, ""
        index = self._indices.get(id(owner))
        if index is None:
            index = {}
            for other, kind, name in _items(owner):
                index.setdefault(id(other), (kind, name))  # type: ignore[arg-type]
            self._indices[id(owner)] = index
        kind, name = index.get(id(value), (LinkKind.ITEM, None))  # type: ignore[assignment]
        return kind, _item_name(kind, name)


def _item_name(kind: LinkKind, name: object) -> str:
    if name is None:
        return ""
    return str(name) if type(name) is not _Key else _key_text(name.key)


class _Key:
    """A dict key whose text is made only when it is asked for."""

    __slots__ = ("key",)

    def __init__(self, key: object) -> None:
        self.key = key


def _items(owner: object) -> Iterator[tuple[object, LinkKind, object]]:
    kind = type(owner)
    if issubclass(kind, dict):
        pairs = list(dict.items(owner))  # type: ignore[arg-type]
        for key, value in pairs:
            yield value, LinkKind.ITEM, _Key(key)
        for key, _ in pairs:
            if not _is_one_of(type(key), (str, int)):
                yield key, LinkKind.KEY, _Key(key)
        return
    for base in _SEQUENCES:
        if issubclass(kind, base):
            for position, value in enumerate(list(base.__iter__(owner))):  # type: ignore[arg-type]
                yield value, LinkKind.ITEM, position
    for other in _SETS:
        if issubclass(kind, other):
            for value in list(other.__iter__(owner)):  # type: ignore[arg-type]
                yield value, LinkKind.ITEM, "element"


def _has_name(owner: object, value: object) -> bool:
    """Whether a subclass of a container holds ``value`` as an attribute."""
    if _is_one_of(type(owner), (dict, *_SEQUENCES, *_SETS)):
        return False
    variables = instance_dict(owner)
    return variables is not None and any(one is value for one in variables.values())


def _attribute(owner: object, name: str) -> Link:
    kind = type(owner)
    type_name = type(owner).__name__
    if name in _HOOK_DICTS:
        return link(LinkKind.HOOK, _HOOK_DICTS[name], type_name)
    if is_node_type(type(owner)):
        return link(LinkKind.CTX_ATTRIBUTE, name, type_name, _file_of(type(owner)))
    if type.__subclasscheck__(logging.LogRecord, kind):
        return _log_record(owner, name)
    return link(_attribute_kind(kind, name), name, type_name, _file_of(type(owner)))


def _attribute_kind(kind: type, name: str) -> LinkKind:
    if type.__subclasscheck__(BaseException, kind):
        return LinkKind.EXCEPTION
    if type.__subclasscheck__(threading.Thread, kind):
        return LinkKind.THREAD
    if type.__subclasscheck__(torch.nn.Module, kind):
        return LinkKind.MODULE_ATTRIBUTE
    if type.__subclasscheck__(torch.optim.Optimizer, kind) and name in ("state", "param_groups"):
        return LinkKind.OPTIMIZER_STATE
    return LinkKind.ATTRIBUTE


def _file_of(kind: type) -> str:
    """The user's file that defines a class; empty for a library's."""
    module = sys.modules.get(str(type.__dict__["__dict__"].__get__(kind).get("__module__")))
    filename = (
        types.ModuleType.__getattribute__(module, "__dict__").get("__file__")
        if type(module) is types.ModuleType
        else None
    )
    return filename if isinstance(filename, str) and is_user_file(filename) else ""


def _log_record(record: object, name: str) -> Link:
    """The record's link carries the place of the logging call."""
    variables = instance_dict(record) or {}
    logger, filename, line = (variables.get(key) for key in ("name", "pathname", "lineno"))
    return link(
        LinkKind.LOG_RECORD,
        name,
        f"logger {logger}" if isinstance(logger, str) else "LogRecord",
        filename if isinstance(filename, str) else "",
        line if isinstance(line, int) else 0,
    )


def _named_attribute(owner: object, value: object) -> Link | None:
    """Attributes kept without a dict of their own: inline values and slots."""
    # reading a tensor's empty ``__dict__`` would make one
    variables = None if is_tensor_type(type(owner)) else instance_dict(owner)
    if variables is not None:
        for name, other in list(variables.items()):
            if other is value:
                return _attribute(owner, str(name))
    for kind in type_mro(type(owner)):
        for name, descriptor in list(type.__dict__["__dict__"].__get__(kind).items()):
            if type(descriptor) is types.MemberDescriptorType and _slot(descriptor, owner) is value:
                return _attribute(owner, name)
    return None


def _slot(descriptor: types.MemberDescriptorType, owner: object) -> object:
    try:
        return descriptor.__get__(owner)
    except (AttributeError, TypeError):  # not set
        return descriptor


def _in_code(kind: LinkKind, name: str, function: types.FunctionType) -> Link:
    code = function.__code__
    return link(kind, name, qualified_name(function), code.co_filename, code.co_firstlineno)


def _function_link(
    function: types.FunctionType, value: object, further: list[object]
) -> tuple[list[Link], int]:
    """A function's closure cell or default argument; skips the tuple and the cell between."""
    cells = function.__closure__ or ()
    if value is function.__closure__ and len(further) == 2:
        for name, cell in zip(function.__code__.co_freevars, cells):
            if cell is further[0]:
                return [_in_code(LinkKind.CLOSURE, name, function)], 3
    if value is function.__defaults__ and further:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        for name, default in zip(
            names[-len(function.__defaults__ or ()) :], function.__defaults__ or ()
        ):
            if default is further[0]:
                return [_in_code(LinkKind.DEFAULT_ARGUMENT, name, function)], 2
    return [_in_code(LinkKind.ATTRIBUTE, "", function)], 1


def _lru_link(cache: object) -> Link:
    function = (instance_dict(cache) or {}).get("__wrapped__")
    if type(function) is types.FunctionType:
        info = _LruCache.cache_info(cache)  # type: ignore[arg-type]
        limit = -1 if info.maxsize is None else info.maxsize
        one = _in_code(LinkKind.LRU_CACHE, qualified_name(function), function)
        return msgspec.structs.replace(one, length=info.currsize, limit=limit)
    return link(LinkKind.LRU_CACHE, "", "lru_cache")


def _probe_lru(owner: object, value: object) -> Link | None:
    return _lru_link(owner) if type(owner) is _LruCache else None


def _probe_method(owner: object, value: object) -> Link | None:
    if type(owner) is types.MethodType:
        return (
            _in_code(LinkKind.BOUND_METHOD, "__self__", owner.__func__)
            if (type(owner.__func__) is types.FunctionType and owner.__self__ is value)
            else link(LinkKind.BOUND_METHOD, "__func__", "method")
        )
    if _is_one_of(type(owner), (types.BuiltinMethodType, types.MethodWrapperType)):
        return link(LinkKind.BOUND_METHOD, "__self__", owner.__name__)  # type: ignore[attr-defined]
    return None


def _probe_partial(owner: object, value: object) -> Link | None:
    if not issubclass(type(owner), functools.partial):
        return None
    function = functools.partial.func.__get__(owner)  # type: ignore[attr-defined]
    return link(LinkKind.PARTIAL, "", f"partial of {qualified_name(function)}")


def _probe_traceback(owner: object, value: object) -> Link | None:
    if type(owner) is not types.TracebackType:
        return None
    code = owner.tb_frame.f_code
    return link(LinkKind.TRACEBACK, "", code.co_name, code.co_filename, owner.tb_lineno)


def _probe_frame(owner: object, value: object) -> Link | None:
    if type(owner) is not types.FrameType:
        return None
    return _frame_link(LinkKind.FRAME, owner, value)


def _frame_link(kind: LinkKind, frame: types.FrameType, value: object) -> Link:
    names, values = frame_variables(frame)
    name = next((one for one, other in zip(names, values) if other is value), "")
    code = frame.f_code
    return link(kind, name, code.co_name, code.co_filename, frame.f_lineno or code.co_firstlineno)


def _probe_generator(owner: object, value: object) -> Link | None:
    parts = {
        types.GeneratorType: ("gi_frame", LinkKind.GENERATOR),
        types.CoroutineType: ("cr_frame", LinkKind.COROUTINE),
        types.AsyncGeneratorType: ("ag_frame", LinkKind.GENERATOR),
    }.get(type(owner) if type(type(owner)) is type else object)
    if parts is None:
        return None
    frame = getattr(owner, parts[0])
    if type(frame) is not types.FrameType:
        return link(parts[1], "", type(owner).__name__)
    return _frame_link(parts[1], frame, value)


def _probe_exception(owner: object, value: object) -> Link | None:
    if not issubclass(type(owner), BaseException):
        return None
    for name in ("__traceback__", "__context__", "__cause__", "args"):
        if BaseException.__dict__[name].__get__(owner) is value:
            return link(LinkKind.EXCEPTION, name, type(owner).__name__)
    return None


def _probe_tensor(owner: object, value: object) -> Link | None:
    if not is_tensor_type(type(owner)):
        return None
    if issubclass(type(value), dict):
        return link(LinkKind.HOOK, "tensor hook", type(owner).__name__)
    if is_node_type(type(value)):
        return link(LinkKind.AUTOGRAD_NODE, type(value).__name__, type(owner).__name__)
    return None


def _probe_node(owner: object, value: object) -> Link | None:
    if not is_node_type(type(owner)):
        return None
    return link(LinkKind.CTX_ATTRIBUTE, "", type(owner).__name__)


def _probe_cell(owner: object, value: object) -> Link | None:
    return link(LinkKind.CLOSURE, "", "cell") if type(owner) is types.CellType else None


_PROBES = (
    _probe_lru,
    _probe_method,
    _probe_partial,
    _probe_traceback,
    _probe_frame,
    _probe_generator,
    _probe_exception,
    _probe_tensor,
    _probe_node,
    _probe_cell,
)
