"""Links of what has no names to look up: functions, frames, errors, tensors and their graphs."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import types

import msgspec

from memprof.cpython.frame_locals import frame_variables
from memprof.reference_chain import Link, LinkKind
from memprof.referrers.introspection import instance_dict, is_one_of, qualified_name
from memprof.referrers.torch_references import is_tensor_type
from memprof.sources.graph_nodes import is_node_type

__all__ = ["PROBES", "LruCache", "function_link", "in_code", "lru_link", "may_apply"]

LruCache = type(functools.lru_cache(maxsize=1)(int))

_MOST_DECORATORS = 8
_branch: object = itertools.tee(())[0]
KEEPING_ITERATORS: tuple[type, ...] = (itertools.cycle, type(_branch))
"""Types of iterators that keep what they have passed on."""
_KEEPING = {
    **dict(zip(map(id, KEEPING_ITERATORS), ("cycle", "tee"), strict=True)),
    **{id(type(one)): "tee" for one in gc.get_referents(_branch) if type(one) is not type},
}
"""By type (its id: a metaclass may define ``__hash__``), iterators that keep what they pass on.

What the branches of a ``tee`` share is a list of a type of its own.
"""
del _branch  # no name that a search follows would lead to it: it would look for one in vain


def in_code(kind: LinkKind, name: str, function: types.FunctionType) -> Link:
    """A link that carries the place where a function is defined."""
    code = function.__code__
    return Link(kind, name, qualified_name(function), code.co_filename, code.co_firstlineno)


def function_link(
    function: types.FunctionType, value: object, further: list[object]
) -> tuple[list[Link], int]:
    """A function's closure cell or default argument; skips the tuple and the cell between."""
    cells = function.__closure__ or ()
    if value is function.__closure__ and len(further) == 2:
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            if cell is further[0]:
                return [in_code(LinkKind.CLOSURE, name, function)], 3
    if value is function.__defaults__ and further:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        for name, default in zip(
            names[-len(function.__defaults__ or ()) :], function.__defaults__ or (), strict=True
        ):
            if default is further[0]:
                return [in_code(LinkKind.DEFAULT_ARGUMENT, name, function)], 2
    return [in_code(LinkKind.ATTRIBUTE, "", function)], 1


def lru_link(cache: object) -> Link:
    """The link to what an ``lru_cache`` keeps, with the function and how full it is."""
    function = _unwrapped(cache)
    if function is not None:
        info = LruCache.cache_info(cache)  # type: ignore[arg-type]
        limit = -1 if info.maxsize is None else info.maxsize
        one = in_code(LinkKind.LRU_CACHE, qualified_name(function), function)
        never_hit = info.misses > 1 and not info.hits and _is_asked_with_tensors(cache)
        return msgspec.structs.replace(
            one, length=info.currsize, limit=limit, was_never_hit=never_hit
        )
    return Link(LinkKind.LRU_CACHE, "", "lru_cache")


def _unwrapped(cache: object) -> types.FunctionType | None:
    """The function below the cache, and below decorators as ``torch.no_grad()`` that wrap it."""
    inner = (instance_dict(cache) or {}).get("__wrapped__")
    function = None
    for _ in range(_MOST_DECORATORS):
        if type(inner) is not types.FunctionType:
            break
        function, inner = inner, inner.__dict__.get("__wrapped__")
    return function


def _is_asked_with_tensors(cache: object) -> bool:
    """Whether a tensor is among the arguments of a call that the cache remembers."""
    for entries in gc.get_referents(cache):
        if type(entries) is dict:
            key = next((key for key in entries if type(key) is tuple), ())
            if any(is_tensor_type(type(argument)) for argument in key):
                return True
    return False


def _probe_lru(owner: object, _value: object) -> Link | None:
    return lru_link(owner) if type(owner) is LruCache else None


def _probe_method(owner: object, value: object) -> Link | None:
    if type(owner) is types.MethodType:
        return (
            in_code(LinkKind.BOUND_METHOD, "__self__", owner.__func__)
            if (type(owner.__func__) is types.FunctionType and owner.__self__ is value)
            else Link(LinkKind.BOUND_METHOD, "__func__", "method")
        )
    if is_one_of(type(owner), (types.BuiltinMethodType, types.MethodWrapperType)):
        return Link(LinkKind.BOUND_METHOD, "__self__", owner.__name__)  # type: ignore[attr-defined]
    return None


def _probe_partial(owner: object, _value: object) -> Link | None:
    if not issubclass(type(owner), functools.partial):
        return None
    function = functools.partial.func.__get__(owner)
    return Link(LinkKind.PARTIAL, "", f"partial of {qualified_name(function)}")


def _probe_traceback(owner: object, _value: object) -> Link | None:
    if type(owner) is not types.TracebackType:
        return None
    code = owner.tb_frame.f_code
    return Link(LinkKind.TRACEBACK, "", code.co_name, code.co_filename, owner.tb_lineno)


def _probe_frame(owner: object, value: object) -> Link | None:
    if type(owner) is not types.FrameType:
        return None
    return _frame_link(LinkKind.FRAME, owner, value)


def _frame_link(kind: LinkKind, frame: types.FrameType, value: object) -> Link:
    names, values = frame_variables(frame)
    name = next((one for one, other in zip(names, values, strict=True) if other is value), "")
    code = frame.f_code
    return Link(kind, name, code.co_name, code.co_filename, frame.f_lineno or code.co_firstlineno)


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
        return Link(parts[1], "", type(owner).__name__)
    return _frame_link(parts[1], frame, value)


def _probe_task(owner: object, _value: object) -> Link | None:
    """A task, or a future that one waits for: its class says which of the two."""
    kinds = (one for one in _task_types() if type.__subclasscheck__(one, type(owner)))
    return next((Link(LinkKind.TASK, "", one.__name__) for one in kinds), None)


def _task_types() -> list[type]:
    """The classes of tasks and futures in C; none where nothing has imported asyncio."""
    module = sys.modules.get("_asyncio")
    kinds = [getattr(module, name, None) for name in ("Task", "Future")]
    return [kind for kind in kinds if isinstance(kind, type)]


def _probe_exception(owner: object, value: object) -> Link | None:
    if not issubclass(type(owner), BaseException):
        return None
    for name in ("__traceback__", "__context__", "__cause__", "args"):
        if BaseException.__dict__[name].__get__(owner) is value:
            return Link(LinkKind.EXCEPTION, name, type(owner).__name__)
    return None


def _probe_tensor(owner: object, value: object) -> Link | None:
    if not is_tensor_type(type(owner)):
        return None
    if issubclass(type(value), dict):
        return Link(LinkKind.HOOK, "tensor hook", type(owner).__name__)
    if is_node_type(type(value)):
        nodes = ((type(value).__name__, 1),)
        return Link(LinkKind.AUTOGRAD_NODE, type_name=type(owner).__name__, nodes=nodes)
    return None


def _probe_node(owner: object, _value: object) -> Link | None:
    if not is_node_type(type(owner)):
        return None
    return Link(LinkKind.CTX_ATTRIBUTE, "", type(owner).__name__)


def _probe_iterator(owner: object, _value: object) -> Link | None:
    name = _KEEPING.get(id(type(owner)))
    return Link(LinkKind.ITERATOR, f"itertools.{name}", name) if name else None


def _probe_cell(owner: object, _value: object) -> Link | None:
    return Link(LinkKind.CLOSURE, "", "cell") if type(owner) is types.CellType else None


_PROBED = (
    LruCache,
    functools.partial,
    BaseException,
    types.MethodType,
    types.BuiltinMethodType,
    types.MethodWrapperType,
    types.TracebackType,
    types.FrameType,
    types.GeneratorType,
    types.CoroutineType,
    types.AsyncGeneratorType,
    types.CellType,
)


def may_apply(kind: type) -> bool:
    """Whether a probe can have something to say of an object of this type."""
    own = any(type.__subclasscheck__(one, kind) for one in (*_PROBED, *_task_types()))
    return own or id(kind) in _KEEPING or is_tensor_type(kind) or is_node_type(kind)


PROBES = (
    _probe_lru,
    _probe_method,
    _probe_partial,
    _probe_traceback,
    _probe_frame,
    _probe_generator,
    _probe_task,
    _probe_exception,
    _probe_tensor,
    _probe_node,
    _probe_cell,
    _probe_iterator,
)
