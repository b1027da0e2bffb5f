"""What a running loop goes through: only the interpreter's own stack refers to it."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from memprof.cpython.object_addresses import addresses
from memprof.referrers.introspection import type_mro
from memprof.referrers.links_by_type import KEEPING_ITERATORS
from memprof.referrers.roots import Root
from memprof.sources.user_files import is_user_file

__all__ = ["iterated_roots"]

_MOST = 4
"""Iterators that are looked at."""
_MOST_AROUND = 4
"""Iterators around one another, with a tuple of them in ``zip``: each takes a pass over all
objects."""


def iterated_roots(
    iterators: Sequence[object],
    is_late: Callable[[], bool] = lambda: False,
) -> list[Root]:
    """The user's generators and iterators of itertools, without a name, that a loop goes through.

    ``for batch in batches():`` has no variable for the generator. Whoever has a reference that no
    object accounts for is the interpreter, which runs a loop over it. Where ``is_late`` says that
    there is no more time, the rest is not looked at.
    """
    own = [one for one in iterators if issubclass(type(one), KEEPING_ITERATORS) or _is_of_user(one)]
    del own[_MOST:]
    return [_root(own[at]) for at in sorted(_rows_on_a_stack(own, is_late))]


def _rows_on_a_stack(own: list[object], is_late: Callable[[], bool]) -> set[int]:
    """Which of a list's items, or an iterator around it, no object accounts for."""
    on_stack: set[int] = set()
    around, rows_of = own, [{at} for at in range(len(own))]
    for _ in range(_MOST_AROUND + 1):
        if not around or is_late():
            break
        unaccounted, referrers, referring = _referrers_of(around)
        on_stack.update(*(rows_of[at] for at in unaccounted))
        outer = [
            (number, left)
            for number, items in sorted(referring.items())
            if (left := set().union(*(rows_of[at] for at in items)) - on_stack)
        ]
        around, rows_of = [referrers[number] for number, _ in outer], [left for _, left in outer]
    return on_stack


def _root(one: object) -> Root:
    if type(one) is types.GeneratorType:
        return Root("iterated", one.gi_code.co_name, [""], [one], one.gi_code.co_filename)
    return Root("iterated", type(one).__name__, [""], [one])


def _is_of_user(one: object) -> bool:
    """Whether it is a generator of the user's that waits: begun, not over, and not running.

    While it runs its variables are a frame's.
    """
    if type(one) is not types.GeneratorType or one.gi_running or one.gi_frame is None:
        return False
    return is_user_file(one.gi_code.co_filename)


def _is_iterator(kind: type) -> bool:
    """Whether a class defines ``__next__``; a metaclass of the program's is not asked."""
    return any("__next__" in type.__dict__["__dict__"].__get__(one) for one in type_mro(kind))


def _referrers_of(items: list[object]) -> tuple[list[int], list[object], dict[int, list[int]]]:
    """What refers to some objects, in one pass over all of them.

    Returns the places of those that have more references than objects account for; all that refer
    to one; and of the iterators and tuples among these, by their places, which items they have.
    No variable here or above may refer to one of the items: that would be such a reference itself.
    """
    referrers = gc.get_referrers(*items)
    counts = _references(referrers, items)  # one item may refer to another
    referring: dict[int, list[int]] = {}
    for number in range(len(referrers)):
        references = _references(gc.get_referents(referrers[number]), items)
        counts += references
        if type(referrers[number]) is tuple or _is_iterator(type(referrers[number])):
            referring[number] = np.flatnonzero(references).tolist()
    unaccounted = [at for at in range(len(items)) if sys.getrefcount(items[at]) - 1 > counts[at]]
    return unaccounted, referrers, referring


def _references(referents: list[object], items: list[object]) -> npt.NDArray[np.int64]:
    """How often each of a few objects is in a list, which may be of all objects that there are."""
    ids, at = addresses(items), addresses(referents)
    counts: npt.NDArray[np.int64] = (at[np.isin(at, ids)][:, None] == ids).sum(axis=0)
    return counts
