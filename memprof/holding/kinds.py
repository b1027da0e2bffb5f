"""The kinds of links between a name and a tensor, and how telling each of them is."""

from __future__ import annotations

from enum import Enum

from memprof.records import Link

__all__ = ["LinkKind", "is_field", "link", "most_telling"]


class LinkKind(str, Enum):
    """How one object keeps the next alive; the value is what ``Link.kind`` holds."""

    LOCAL = "local"
    GLOBAL = "global"
    ATTRIBUTE = "attribute"
    MODULE_ATTRIBUTE = "module_attribute"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    ITEM = "item"
    KEY = "key"
    CLOSURE = "closure"
    DEFAULT_ARGUMENT = "default_argument"
    BOUND_METHOD = "bound_method"
    PARTIAL = "partial"
    LRU_CACHE = "lru_cache"
    CLASS_ATTRIBUTE = "class_attribute"
    HOOK = "hook"
    AUTOGRAD_NODE = "autograd_node"
    SAVED_TENSOR = "saved_tensor"
    CTX_ATTRIBUTE = "ctx_attribute"
    GRAD = "grad"
    BASE = "base"
    EXCEPTION = "exception"
    TRACEBACK = "traceback"
    FRAME = "frame"
    LOG_RECORD = "log_record"
    GENERATOR = "generator"
    COROUTINE = "coroutine"
    ITERATOR = "iterator"
    THREAD = "thread"
    NOTEBOOK = "notebook"
    OPTIMIZER_STATE = "optimizer_state"
    CYCLE = "cycle"
    CPP_CYCLE = "cpp_cycle"
    UNKNOWN = "unknown"


_TELLING = (
    LinkKind.CYCLE,
    LinkKind.CPP_CYCLE,
    LinkKind.NOTEBOOK,
    LinkKind.LOG_RECORD,
    LinkKind.LRU_CACHE,
    LinkKind.EXCEPTION,
    LinkKind.TRACEBACK,
    LinkKind.CTX_ATTRIBUTE,
    LinkKind.SAVED_TENSOR,
    LinkKind.HOOK,
    LinkKind.GRAD,
    LinkKind.CLASS_ATTRIBUTE,
    LinkKind.CLOSURE,
    LinkKind.DEFAULT_ARGUMENT,
    LinkKind.PARTIAL,
    LinkKind.GENERATOR,
    LinkKind.COROUTINE,
    LinkKind.ITERATOR,
    LinkKind.THREAD,
    LinkKind.ITEM,
    LinkKind.OPTIMIZER_STATE,
    LinkKind.PARAMETER,
    LinkKind.BUFFER,
    LinkKind.KEY,
    LinkKind.BASE,
    LinkKind.MODULE_ATTRIBUTE,
    LinkKind.ATTRIBUTE,
    LinkKind.BOUND_METHOD,
    LinkKind.FRAME,
    LinkKind.AUTOGRAD_NODE,
    LinkKind.GLOBAL,
    LinkKind.LOCAL,
    LinkKind.UNKNOWN,
)
_RANK = {kind.value: rank for rank, kind in enumerate(_TELLING)}


def link(
    kind: LinkKind,
    name: str = "",
    type_name: str = "",
    filename: str = "",
    line: int = 0,
    length: int = -1,
) -> Link:
    """A link whose kind is a plain string, as a run file holds it."""
    return Link(kind.value, name, type_name, filename, line, length)


def most_telling(links: list[Link]) -> str:
    """The kind of the link that says most about why the tensor is alive."""
    telling = [
        one.kind for at, one in enumerate(links) if at == len(links) - 1 or not is_field(one)
    ]
    return min(telling, key=lambda kind: _RANK.get(kind, len(_RANK)), default="unknown")


def is_field(one: Link) -> bool:
    """Whether a link is an entry of a dict that serves as a record, as ``state["model"]``."""
    return one.kind == LinkKind.ITEM and one.name.startswith("'")
