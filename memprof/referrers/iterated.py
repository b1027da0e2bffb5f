"""What a running loop goes through: only the interpreter's own stack refers to it."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Sequence

from memprof.referrers.introspection import type_mro
from memprof.referrers.links_by_type import KEEPING_ITERATORS
from memprof.referrers.roots import Root
from memprof.sources.user_files import is_user_file

__all__ = ["iterated_roots"]

_MOST = 4
"""Iterators that are looked at: each takes a pass or two over all objects."""
_MOST_AROUND = 4
"""Iterators around one another, with a tuple of them in ``zip``."""


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
    # by their places: a variable of this loop would be a reference that no object accounts for
    rows = [
        at
        for at in range(len(own))
        if not is_late() and _is_on_a_stack(own[at : at + 1], _MOST_AROUND)
    ]
    return [_root(own[at]) for at in rows]


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


def _is_on_a_stack(holder: Sequence[object], most_around: int) -> bool:
    """Whether the one item of a list, or an iterator around it, is referred to by no object.

    No variable here may refer to it: that would be such a reference itself.
    """
    referrers = gc.get_referrers(holder[0])
    references = sum(
        sum(referent is holder[0] for referent in gc.get_referents(referrers[at]))
        for at in range(len(referrers))
    )
    if sys.getrefcount(holder[0]) - 1 > references:
        return True
    around = [
        at
        for at in range(len(referrers))
        if type(referrers[at]) is tuple or _is_iterator(type(referrers[at]))
    ]
    return most_around > 0 and any(
        _is_on_a_stack(referrers[at : at + 1], most_around - 1) for at in around
    )
