"""The verbs of Python's containers, of torch and of numpy, by what a call of them does.

The one table that every reader of the user's source asks. Names alone stand here, no syntax: it is
used inside the job as well, where nothing may be imported for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = [
    "ALSO_OF_TENSORS",
    "CONTAINERS",
    "CONTAINER_METHODS",
    "CONVERTING",
    "COPYING",
    "CUTTING",
    "EMPTYING",
    "FACTORIES",
    "FILLING",
    "FILLING_BY_KEY",
    "FILLING_FUNCTIONS",
    "HANDING_OUT",
    "JOINING",
    "LEARNING",
    "NUMBER_FUNCTIONS",
    "OF_MODULES",
    "OF_NO_BUILTIN",
    "OPPOSITES",
    "RELEASING",
    "REPEATING",
    "SAME_MODULE",
    "SAME_VALUES",
    "SAVING",
    "TAKING",
    "TEXT_FUNCTIONS",
    "TO_NUMBER",
    "VIEWING",
    "adds_in_place",
]

CONTAINERS = frozenset(("Counter", "OrderedDict", "defaultdict", "deque", "dict", "list", "set"))
"""Classes of Python's containers that can be filled."""

FILLING_BY_KEY = frozenset(("setdefault", "update"))
"""Methods that put entries into a mapping."""

FILLING = FILLING_BY_KEY | {
    *("add", "append", "appendleft", "extend", "extendleft", "insert", "push"),
    *("put", "put_nowait"),
    *("add_module", "register_module"),
}
"""Methods that put something into a container: a list, a deque, a set, a queue, a mapping, a module
of modules."""

FILLING_FUNCTIONS = frozenset(
    ("heappush", "heappushpop", "heapreplace", "insort", "insort_left", "insort_right")
)
"""Functions of `heapq` and `bisect` that put their second argument into the list that is the
first."""

ALSO_OF_TENSORS = frozenset(("add", "put"))
"""Those of them that tensors have as well, where they compute a new tensor."""

OF_NO_BUILTIN = frozenset(("push",))
"""Those of them that no class of Python's has: what others do with a value is not known."""

EMPTYING = frozenset(("clear", "discard", "get_nowait", "pop", "popitem", "popleft", "remove"))
"""Methods that take something out of a container."""

OPPOSITES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "acquire": ("release",),
        "add": ("remove", "delete", "discard", "drop", "clear", "reset"),
        "allocate": ("free", "deallocate", "release"),
        "append": ("clear", "reset", "pop", "truncate"),
        "attach": ("detach", "remove"),
        "begin": ("end", "stop"),
        "cache": ("uncache", "clear", "reset", "empty", "evict"),
        "collect": ("clear", "reset", "flush", "drain"),
        "connect": ("disconnect",),
        "create": ("delete", "destroy", "remove"),
        "enable": ("disable",),
        "extend": ("clear", "reset", "truncate", "crop"),
        "insert": ("remove", "delete", "clear", "reset"),
        "install": ("uninstall", "remove"),
        "load": ("unload", "delete", "remove", "release", "free"),
        "log": ("clear", "reset", "flush"),
        "open": ("close",),
        "prepare": ("release", "free", "unprepare", "clear", "reset"),
        "push": ("pop", "clear", "reset"),
        "put": ("clear", "reset", "evict"),
        "record": ("clear", "reset", "flush"),
        "register": ("unregister", "deregister", "remove", "delete"),
        "save": ("delete", "remove", "clear"),
        "set": ("unset", "delete", "remove", "clear"),
        "setup": ("cleanup", "teardown", "shutdown", "close"),
        "start": ("stop", "end", "finish", "shutdown"),
        "store": ("delete", "remove", "clear", "reset"),
        "submit": ("cancel", "remove", "clear"),
        "subscribe": ("unsubscribe",),
        "track": ("untrack", "clear", "reset"),
        "update": ("reset", "clear", "crop"),
        "watch": ("unwatch",),
        "write": ("clear", "reset", "truncate"),
    }
)
"""By the verb of a method that puts something in, the verbs of those that take it out again, the
likeliest first."""

RELEASING = frozenset(verb for verbs in OPPOSITES.values() for verb in verbs)
"""Verbs of methods by which an object lets go of something."""

TAKING = EMPTYING | {"get"}
"""Methods that take something out, or ask first whether it is there."""

HANDING_OUT = frozenset(
    ("copy", "get", "get_nowait", "items", "pop", "popitem", "popleft", "setdefault", "values")
)
"""Methods that return what a container holds."""

OF_MODULES = frozenset(("named_parameters", "parameters", "state_dict"))
"""Methods of modules that return the tensors which they hold."""

CONTAINER_METHODS = (
    (FILLING - ALSO_OF_TENSORS)
    | EMPTYING
    | HANDING_OUT
    | {
        *("count", "index", "keys", "reverse", "sort"),
    }
)
"""Methods that containers have and tensors do not, or not for a tensor of one number."""

TO_NUMBER = frozenset(("item", "tolist"))
"""Methods of tensors that return Python numbers."""

CUTTING = TO_NUMBER | {"detach", "detach_", "numpy"}
"""Methods whose result hangs on no autograd graph."""

NUMBER_FUNCTIONS = frozenset(("bool", "complex", "float", "int", "len"))
"""Builtin functions that return a number, of a tensor too."""

TEXT_FUNCTIONS = frozenset(("format", "print", "repr", "str"))
"""Builtin functions that make a text, or show one."""

LEARNING = frozenset(("backward", "grad"))
"""Calls from which a backward pass starts."""

JOINING = frozenset(
    (
        *("cat", "concat", "concatenate", "stack", "vstack", "hstack", "dstack"),
        *("column_stack", "row_stack"),
    )
)
"""Functions of torch and numpy that copy several tensors into one."""

COPYING = frozenset(("clone", "copy", "deepcopy"))
"""Calls that return a copy of what they are given, or called on."""

REPEATING = frozenset(("repeat", "repeat_interleave", "tile"))
"""Calls that copy one tensor several times."""

CONVERTING = frozenset(("double", "float", "to", "type"))
"""Methods of tensors that may return a copy in a wider type."""

VIEWING = frozenset(
    ("chunk", "diagonal", "narrow", "select", "split", "tensor_split", "unbind", "unfold")
)
"""Calls that return a part of a tensor without copying it."""

FACTORIES = frozenset(
    (
        *("arange", "as_tensor", "empty", "empty_like", "eye", "from_numpy", "full", "full_like"),
        *("linspace", "ones", "ones_like", "rand", "rand_like", "randint", "randn", "randn_like"),
        *("randperm", "tensor", "zeros", "zeros_like"),
    )
)
"""Functions of torch that return a tensor without a graph."""

SAME_VALUES = frozenset(
    (
        *("bfloat16", "bool", "clone", "contiguous", "cpu", "cuda", "double", "expand", "flatten"),
        *("float", "half", "int", "long", "permute", "repeat", "reshape", "squeeze", "to"),
        *("transpose", "unsqueeze", "view"),
    )
)
"""Methods of tensors whose result is a tensor of the same values."""

SAME_MODULE = frozenset(
    (
        *("apply", "bfloat16", "cpu", "cuda", "double", "eval", "float", "half"),
        *("requires_grad_", "share_memory", "to", "to_empty", "train", "type", "xpu"),
    )
)
"""Methods of modules that return the module that they are called on."""

SAVING = frozenset(
    ("load_state_dict", "push_to_hub", "save", "save_model", "save_pretrained", "state_dict")
)
"""Calls for which the best model until now is kept, though nothing calls it."""


def adds_in_place(method: str) -> bool:
    """True if a method adds to the tensor that it is called on."""
    return method in ("add_", "sub_")
