"""Chains of references from a name down to a tensor: their links, and what is asked of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import Enum

import msgspec

__all__ = [
    "CYCLES",
    "IN_PATHS",
    "THROUGH_GRAPH",
    "VARIABLES",
    "Link",
    "LinkKind",
    "Unowned",
    "above_graph",
    "breadth",
    "instance_attribute",
    "is_bounded",
    "is_field",
    "largest_container",
    "linked_at",
    "way",
]

_OF_RECORD = 4
"""Times as long as a list that it lies in must a dict of names be, to be what grows."""
_LEAST_LINKED = 4
"""Objects in a row that refer to one another by the same name: no structure is meant to be so."""
_LONGEST_PERIOD = 4
"""Links from one such object to the next: ``node.edges['next']``."""


class LinkKind(str, Enum):
    """How one object keeps the next alive."""

    LOCAL = "local"
    """A variable ``name`` of the running function ``type_name``."""
    GLOBAL = "global"
    """A variable ``name`` of the module ``type_name``."""
    NOTEBOOK = "notebook"
    """A variable in which a notebook keeps the result of a cell."""
    ATTRIBUTE = "attribute"
    """An attribute ``name`` of an object of class ``type_name``."""
    QUEUE = "queue"
    """The items of a queue between threads or tasks, of class ``type_name``; its ``limit`` is
    ``maxsize``."""
    MODULE_ATTRIBUTE = "module_attribute"
    """An attribute of a ``torch.nn.Module``; ``name`` is its path below the module."""
    PARAMETER = "parameter"
    """A parameter of a module, by its path."""
    BUFFER = "buffer"
    """A buffer of a module, by its path."""
    OPTIMIZER_STATE = "optimizer_state"
    """A state of an optimizer of class ``type_name``, or a parameter that it updates."""
    CLASS_ATTRIBUTE = "class_attribute"
    """An attribute ``name`` of the class ``type_name`` itself."""
    ITEM = "item"
    """An item of a container of class ``type_name``; ``name`` is its key or its position."""
    KEY = "key"
    """A key of a dict."""
    CLOSURE = "closure"
    """A variable ``name`` that the function ``type_name`` closes over."""
    DEFAULT_ARGUMENT = "default_argument"
    """The default of the argument ``name`` of the function ``type_name``."""
    BOUND_METHOD = "bound_method"
    """The object of a method that is bound to it."""
    PARTIAL = "partial"
    """An argument of a ``functools.partial``."""
    LRU_CACHE = "lru_cache"
    """A result that ``functools.lru_cache`` keeps, of the function ``type_name``."""
    ATEXIT = "atexit"
    """The function ``type_name`` that is to be called when the process ends."""
    HOOK = "hook"
    """A hook of a module or a tensor of class ``type_name``."""
    AUTOGRAD_NODE = "autograd_node"
    """The autograd graph: the ``nodes`` on the way through it."""
    SAVED_TENSOR = "saved_tensor"
    """A tensor that a node of class ``type_name`` has saved for its backward pass."""
    CTX_ATTRIBUTE = "ctx_attribute"
    """An attribute of the ``ctx`` of a custom autograd function."""
    GRAD = "grad"
    """The ``.grad`` of a tensor."""
    BASE = "base"
    """The tensor that a view, or a NumPy array, shows."""
    EXCEPTION = "exception"
    """An attribute ``name`` of an exception."""
    TRACEBACK = "traceback"
    """A frame of a traceback."""
    FRAME = "frame"
    """A variable of a call that has ended; something keeps its frame."""
    LOG_RECORD = "log_record"
    """An attribute ``name`` of a log record."""
    GENERATOR = "generator"
    """A variable of a suspended generator."""
    COROUTINE = "coroutine"
    """A variable of a suspended coroutine."""
    TASK = "task"
    """The coroutine of a task of asyncio that is not done."""
    ITERATOR = "iterator"
    """What ``itertools.cycle`` or ``tee`` keeps of what it has passed on."""
    THREAD = "thread"
    """A thread, whose running functions or attributes go on."""
    CYCLE = "cycle"
    """A reference cycle, of ``length`` references, that the garbage collector frees."""
    CPP_CYCLE = "cpp_cycle"
    """A reference cycle through C++, which nothing frees."""
    UNKNOWN = "unknown"
    """Nothing more is known: memory that no Python object owns, or a reference of another sort."""

    def __str__(self) -> str:
        """Return the value, in every version of Python."""
        return self.value

    def __format__(self, format_spec: str) -> str:
        """Return the value in a formatted string, as ``str`` does."""
        return format(self.value, format_spec)

    @classmethod
    def _missing_(cls, value: object) -> LinkKind:  # noqa: ARG003 - the signature of enum's own
        """Return what stands for a kind of a newer version of the run file."""
        return cls.UNKNOWN


_TENSOR_IN_KEY = "<Tensor>"
THROUGH_GRAPH = frozenset({LinkKind.AUTOGRAD_NODE, LinkKind.SAVED_TENSOR, LinkKind.CTX_ATTRIBUTE})
"""Links by which autograd's graph keeps a tensor, and no name of the program."""
CYCLES = frozenset({LinkKind.CYCLE, LinkKind.CPP_CYCLE})
"""Links of what holds itself: no name of the program does."""


_CONTAINERS = frozenset({LinkKind.ITEM, LinkKind.KEY, LinkKind.LRU_CACHE})
"""Links whose ``length`` is that of what a tensor lies in."""
_LINKING = frozenset(
    {
        *(LinkKind.ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE, LinkKind.ITEM, LinkKind.CLOSURE),
        *(LinkKind.BOUND_METHOD, LinkKind.PARTIAL, LinkKind.DEFAULT_ARGUMENT),
    }
)
"""Links by which objects of a program refer to one another."""
VARIABLES = frozenset({LinkKind.LOCAL, LinkKind.GLOBAL, LinkKind.NOTEBOOK})
"""Links that begin a path, as one types it."""
IN_PATHS = VARIABLES | {
    LinkKind.ATTRIBUTE,
    LinkKind.QUEUE,
    LinkKind.MODULE_ATTRIBUTE,
    LinkKind.PARAMETER,
    LinkKind.BUFFER,
    LinkKind.EXCEPTION,
    LinkKind.OPTIMIZER_STATE,
    LinkKind.ITEM,
}
"""Links that one types to reach the next object: ``trainer.outputs[3]``."""


class Unowned(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of memory that no Python object was found to own."""

    cut_off: bool = False
    """The search ended before everything was looked at."""
    owner: str = ""
    """Class of the object whose owner is C++ code; empty where there is no object either."""
    autocast: str = ""
    """The device for which autocast is on and caches low-precision weights."""
    workspace: bool = False
    """It has the size of a cuBLAS workspace, of which torch keeps one for every stream."""
    pool: tuple[int, int] = (0, 0)
    """The allocator's pool that it lies in; the first number is that of a CUDA graph."""
    side_stream: bool = False
    """It was allocated on another stream than the default one."""


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reference of a chain: what keeps the next one, or the tensor, alive."""

    kind: LinkKind
    name: str = ""
    type_name: str = ""
    filename: str = ""
    line: int = 0
    length: int = -1
    """Items of the container; -1 where it is none."""
    limit: int = -1
    """The most that a container can hold (``maxlen``, ``maxsize``); -1: without bound."""
    is_record: bool = False
    """The container is a dict and all of its keys are strings, as in a ``state_dict``."""
    nodes: tuple[tuple[str, int], ...] = ()
    """Classes of the graph's nodes on the way, each with how many of it follow one another; an
    empty class stands for so many entries that are left out."""
    shown_bytes: int = -1
    """What a view shows of the storage that it keeps whole; -1: not recorded."""
    storage_bytes: int = -1
    """Size of that storage."""
    is_parameter: bool = False
    """An optimizer refers so to the parameters that it updates; their owner is elsewhere."""
    unowned: Unowned | None = None
    releases: tuple[str, ...] = ()
    """Methods of the object's class that, by their verbs, let go of what it has: ``reset``."""
    grows: bool = False
    """The container was shorter at an earlier look; put in when a recording is read."""
    orphaned: int = 0
    """Of an optimizer: states of parameters that none of its groups has any more."""
    keeps_own_key: bool = False
    """Of an entry under a weak key: its value refers to the key, which so never ends."""
    was_never_hit: bool = False
    """Of a function's cache: it was asked with tensors, and has never had an answer."""

    @property
    def is_keyed_by_tensor(self) -> bool:
        """Whether it is an entry of a dict whose key is a tuple with a tensor: a call's arguments.

        Of such a key the recorder writes the types, ``(<Tensor>, 6)``.
        """
        of_dict = self.kind in (LinkKind.ITEM, LinkKind.KEY) and self.type_name == "dict"
        return of_dict and self.name.startswith("(") and _TENSOR_IN_KEY in self.name

    @property
    def is_under_tensor(self) -> bool:
        """Whether it is an entry of a dict, found under a key that is a tensor itself."""
        of_dict = self.kind == LinkKind.ITEM and self.type_name == "dict"
        return of_dict and self.name == _TENSOR_IN_KEY


def is_field(link: Link) -> bool:
    """Return whether a link is an entry of a dict that serves as a record: ``state["model"]``."""
    return link.kind == LinkKind.ITEM and link.is_record


def breadth(link: Link) -> tuple[bool, int]:
    """Return how large a container counts, where one of several is to be named as what grows.

    One that was seen to grow comes first. A dict with names for keys is as a rule a record, such as
    the weights of one model.
    """
    return link.grows, link.length // _OF_RECORD if link.is_record else link.length


def largest_container(links: Sequence[Link]) -> int | None:
    """Return the position of the link whose container counts as the largest; None without one.

    It is the one that grows, where several lie within one another. One item alone is no container.
    """
    items = [at for at, link in enumerate(links) if link.kind in _CONTAINERS and link.length > 1]
    return max(items, key=lambda at: breadth(links[at]), default=None)


def instance_attribute(links: Sequence[Link]) -> int | None:
    """Return where the attribute stands that has the largest container of a singleton, or None.

    That is of an object that a class has: of its own kind (``cls._instance``), among others (the
    dict of a metaclass), or with tensors themselves in the container. Else what is registered with
    the class is what the container has.
    """
    at = largest_container(links)
    own = [n for n, link in enumerate(links) if link.kind is LinkKind.CLASS_ATTRIBUTE]
    if at is None or not own or at - 1 <= own[-1] or links[at - 1].kind is not LinkKind.ATTRIBUTE:
        return None
    class_name, kind = links[own[-1]].type_name, links[at - 1].type_name
    is_own_kind = class_name.rpartition(".")[2] == kind.rpartition(".")[2]
    is_among_others = links[own[-1] + 1].kind is LinkKind.ITEM
    below = {link.kind for link in links[at + 1 :]}
    has_tensors = below <= {LinkKind.ITEM, LinkKind.BASE, *THROUGH_GRAPH}
    return at - 1 if is_own_kind or is_among_others or has_tensors else None


def is_bounded(links: Sequence[Link]) -> bool:
    """Return whether the largest container can hold so much and no more (``maxlen``).

    Where its items keep those that fell out of it, the bound is none.
    """
    at = largest_container(links)
    if at is None or linked_at(links) is not None:
        return False
    in_queue = at > 0 and links[at - 1].kind == LinkKind.QUEUE
    return links[at].limit > 0 or (in_queue and links[at - 1].limit > 0)


def linked_at(links: Sequence[Link]) -> int | None:
    """Return the position where objects begin that each keep the next by the same name, or None.

    Such a chain has no length that a container would show: ``step.previous.previous…``.
    """
    outlines = [(link.kind, link.type_name, link.name) for link in links]
    for start, link in enumerate(links):
        for period in range(1, _LONGEST_PERIOD + 1) if link.kind in _LINKING else ():
            once = outlines[start : start + period]
            if not all(kind in _LINKING for kind, *_ in once):
                break
            if outlines[start : start + period * _LEAST_LINKED] == once * _LEAST_LINKED:
                return start
    return None


def above_graph(links: Sequence[Link]) -> Sequence[Link]:
    """Return the links that keep the autograd graph through which a tensor is held.

    They are what a person can let go of. None where no graph is in between, or nothing above it.
    """
    kinds = [link.kind for link in links[:-1]]
    return links[: kinds.index(LinkKind.AUTOGRAD_NODE)] if LinkKind.AUTOGRAD_NODE in kinds else ()


def way(links: Sequence[Link]) -> tuple[Hashable, ...]:
    """Return what two chains have in common that hold in the same way.

    That is all but lines, lengths and places in containers, which differ from tensor to tensor.
    """
    return tuple(
        (
            link.kind,
            "" if link.kind == LinkKind.ITEM else link.name,
            link.nodes,
            link.shown_bytes,
            link.storage_bytes,
            link.unowned,
        )
        for link in links
    )
