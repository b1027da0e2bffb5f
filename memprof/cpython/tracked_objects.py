"""Lists what the cyclic collector tracks, without disturbing a tuple that a thread is building."""

from __future__ import annotations

import gc
import operator
import sys
import threading
from collections import deque
from collections.abc import Callable
from itertools import chain, compress, count, repeat, starmap
from typing import Any, NamedTuple

__all__ = ["LISTS_UNFINISHED_TUPLES", "Omitted", "TrackedObjects", "tracked_objects"]

LISTS_UNFINISHED_TUPLES = sys.version_info < (3, 14)
"""Whether the collector tracks a tuple that is still being built.

``tuple(generator)`` makes a tuple of a guessed length and changes the length as items come
(``PySequence_Tuple``). That demands that nobody else refers to the tuple: while a list of all
objects does, a thread that goes on with its generator ends with a ``SystemError``. From 3.14 on the
tuple is made when all items are there.
"""

_CALL: Callable[..., Any] = type(len).__call__
_HASH: Callable[..., int] = object.__hash__
"""An object's address, turned by `_TURN` bits (``_Py_HashPointer``). ``id`` is an audited event:
where a library has a hook for those, as ``filelock`` does, it runs Python, and takes ten times as
long."""
_TURN, _BITS = 4, sys.hash_info.width


class Omitted:
    """What stands in a list in place of a tuple that may be unfinished."""

    __slots__ = ()


_OMITTED = Omitted()


class TrackedObjects(NamedTuple):
    """The objects that the collector tracks, at one moment."""

    objects: list[Any]
    """In the collector's order; an `Omitted` stands for each tuple that is left out."""
    omitted_hashes: list[int]
    """Of the tuples that are left out: there was a single reference to each, and nothing here keeps
    them alive."""

    @property
    def omitted_ids(self) -> list[int]:
        """Their addresses."""
        return list(map(_address_of, self.omitted_hashes))


def _hash_of(address: int) -> int:
    """What `_HASH` gives for an object at an address."""
    turned = address >> _TURN | (address & ((1 << _TURN) - 1)) << (_BITS - _TURN)
    return turned - (turned >> (_BITS - 1) << _BITS)


def _address_of(hashed: int) -> int:
    """The address of an object of which `_HASH` gives that."""
    turned = hashed & ((1 << _BITS) - 1)
    return (turned << _TURN | turned >> (_BITS - _TURN)) & ((1 << _BITS) - 1)


def tracked_objects(*generation: int, wanted_ids: frozenset[int] = frozenset()) -> TrackedObjects:
    """Every object that the collector tracks, or those of one of its generations.

    Where another thread of the program's runs, tuples to which there is a single reference are left
    out: whoever builds a tuple has the only reference to it. Those at ``wanted_ids`` are not.
    """
    if not (LISTS_UNFINISHED_TUPLES and _another_thread_runs()):
        return TrackedObjects(gc.get_objects(*generation), [])
    lists: list[list[Any]] = []
    omitted_hashes: list[int] = []
    try:
        # One call of C, from the listing until the tuples are left out: no thread runs in between.
        wanted = frozenset(map(_hash_of, wanted_ids))
        any(starmap(_CALL, _steps(generation, lists, omitted_hashes, wanted)))
        return TrackedObjects(lists[0], omitted_hashes)
    finally:
        lists.clear()  # it is among the objects of the list in it


def _another_thread_runs() -> bool:
    """Whether there is another thread than this one, and than memprof's own.

    None of those builds a tuple from a generator.
    """
    others = sys._current_frames().keys() - {threading.get_ident()}
    if not others:
        return False
    own = {one.ident for one in threading.enumerate() if one.name.startswith("memprof")}
    return not others <= own


def _steps(
    generation: tuple[int, ...],
    lists: list[list[Any]],
    omitted_hashes: list[int],
    wanted: frozenset[int],
) -> list[tuple[Any, ...]]:
    """Calls to be made one after the other, of which each returns None.

    Their lists of rows are filled by one call and read by the next ones.
    """
    tuple_rows: list[int] = []
    single_rows: list[int] = []
    omitted_rows: list[int] = single_rows if not wanted else []
    listed = map(operator.itemgetter(0), repeat(lists))  # again and again: the list
    types = map(type, chain.from_iterable(lists))
    references = map(sys.getrefcount, map(operator.getitem, listed, tuple_rows))
    single = map(_HASH, map(operator.getitem, listed, single_rows))
    omitted = map(operator.getitem, listed, omitted_rows)
    steps: list[tuple[Any, ...]] = [
        (lists.extend, starmap(gc.get_objects, [generation])),
        (tuple_rows.extend, compress(count(), map(operator.is_, types, repeat(tuple)))),
        (
            single_rows.extend,
            compress(tuple_rows, map(operator.le, references, repeat(_SINGLE_REFERENCE))),
        ),
    ]
    if wanted:
        are_unwanted = map(operator.not_, map(wanted.__contains__, single))
        steps.append((omitted_rows.extend, compress(single_rows, are_unwanted)))
    return [
        *steps,
        (omitted_hashes.extend, map(_HASH, omitted)),
        (
            deque[None](maxlen=0).extend,
            map(operator.setitem, listed, omitted_rows, repeat(_OMITTED)),
        ),
    ]


def _references_of_list() -> int:
    """What `_steps` counts for a tuple to which nothing but the list of objects refers."""
    sample: list[Any] = [(object(),)]
    return next(map(sys.getrefcount, map(operator.getitem, repeat(sample), [0])))


_SINGLE_REFERENCE = _references_of_list() + 1
