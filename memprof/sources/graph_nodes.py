"""How many nodes of autograd graphs may be looked at from Python without harm to the program.

From torch 2.13 on the Python object of a node, once somebody has asked for it, lives as long as the
node does, and the node is freed through it. A chain of such nodes is freed by a recursion: five
frames of C++ for each, 220 bytes of the thread's stack (measured with torch 2.13.0: 38,000 nodes
fill 8 MiB). A program would crash where it lets go of a long graph that was walked from its
beginning to its end.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import Counter

from memprof.cpython.tracked_objects import tracked_objects

__all__ = ["is_node_type", "keeps_node_objects", "longest_walk", "most_nodes", "note_nodes"]

_KEEPS_SINCE = "2.12"
"""2.11 makes an object for each look and 2.13 keeps it; what lies between counts as the latter."""
_STACK_BYTES_A_NODE = 220
_SHARE = 4
"""Of a stack a recursion may take one part of so many in a walk, and twice that in all."""
_DEFAULT_STACK_BYTES = 1 << 20
"""Where nothing is known of stacks, as on Windows."""
_UNLIMITED_STACK_BYTES = 2 << 20
"""glibc's for threads where the limit is none."""

_COUNTS_EVERY_S = 1.0
"""While too many live: counting lists every object of the program."""

_count = 0
"""Nodes whose objects may be alive: those of the last count, and all looked at since."""
_count_again_s = 0.0


def is_node_type(kind: type) -> bool:
    """Whether instances are nodes of an autograd graph, C++ ones or a custom Function's ``ctx``."""
    import torch

    if type.__subclasscheck__(torch._C._FunctionBase, kind):
        return True
    own = type.__dict__["__dict__"].__get__(kind)
    return "next_functions" in own and "register_prehook" in own and "__module__" not in own


@functools.cache
def keeps_node_objects() -> bool:
    """Whether torch keeps the Python object of a node for as long as the node."""
    import torch

    return bool(torch.__version__ >= _KEEPS_SINCE)


def most_nodes(wanted: int) -> int:
    """How many of ``wanted`` nodes may be looked at now; 0 where too many were, and live still.

    The more there were, the fewer may be: a later walk is left something by an earlier one.
    """
    global _count, _count_again_s  # noqa: PLW0603 - objects of nodes are a process's
    if not keeps_node_objects():
        return wanted
    longest = longest_walk()
    if _count >= longest and time.monotonic() >= _count_again_s:
        _count = _living_nodes()
        if _count >= longest:
            _count_again_s = time.monotonic() + _COUNTS_EVERY_S
    left = max(0, 2 * longest - _count)
    return min(wanted, (left + 1) // 2)


def note_nodes(count: int) -> None:
    """So many nodes were looked at."""
    global _count  # noqa: PLW0603
    _count += count


def longest_walk() -> int:
    """Nodes of which Python may see one after another, where it keeps them."""
    return _stack_bytes() // (_SHARE * _STACK_BYTES_A_NODE)


def _stack_bytes() -> int:
    """Of the smallest stack that a thread of the program is likely to have."""
    own = threading.stack_size() or sys.maxsize
    try:
        import resource
    except ImportError:
        return min(own, _DEFAULT_STACK_BYTES)
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return min(own, _UNLIMITED_STACK_BYTES if limit == resource.RLIM_INFINITY else limit)


def _living_nodes() -> int:
    # By id: a metaclass of the program's may define how its classes are compared.
    kinds = list(map(type, tracked_objects().objects))
    counts = Counter(map(id, kinds))
    by_id = dict(zip(map(id, kinds), kinds, strict=True))
    return sum(counts[number] for number, kind in by_id.items() if is_node_type(kind))
