"""Detection of iterations in loops without an optimizer step: which repeated call ends one."""

from __future__ import annotations

import weakref

__all__ = ["IterationDetector"]

_MOST_TURNS = 8
"""More objects than this, each with a beginning of its own, are hardly one iteration's: optimizers
that are made anew in every iteration and kept."""


class IterationDetector:
    """Finds the last of the objects that take turns in an iteration, holding none of them.

    The object that ended the last iteration ends the next one. At first that is the very first
    object; once the order is known (it comes again after others) the last of them takes over, so
    that in a GAN an iteration ends with its second optimizer. An object that comes twice while the
    one that was waited for does not come at all takes its place. Where ever new objects come, each
    with a beginning of its own, and none of them twice, each ends an iteration.
    """

    __slots__ = ("_closer", "_learning", "_met", "_seen", "_strangers")

    def __init__(self) -> None:
        self._closer: weakref.ref[object] | None = None
        self._learning = True
        self._seen: list[weakref.ref[object]] = []
        self._met: dict[int, weakref.ref[object]] = {}
        self._strangers = 0

    def ends(self, item: object, *, anew: bool = False) -> bool:
        """Note that ``item`` had its turn; whether that ends an iteration.

        ``anew`` says that the program has begun something since the turn before: a forward pass.
        """
        stranger = not self._has_met(item)
        self._strangers = self._strangers + anew if stranger else 0
        closer = self._closer() if self._closer is not None else None
        if closer is None:
            return self._close(item, learning=True)
        if item is closer:
            return self._again(item)
        if any(seen() is item for seen in self._seen):
            return self._close(item, learning=True)
        if stranger and anew and self._strangers > _MOST_TURNS:
            return self._close(item, learning=True)
        self._seen.append(weakref.ref(item))
        return False

    def _has_met(self, item: object) -> bool:
        """Whether ``item`` had a turn before; from now on it had."""
        known = self._met.get(id(item))
        self._met[id(item)] = weakref.ref(item)
        return known is not None and known() is item

    def _again(self, item: object) -> bool:
        if not (self._learning and self._seen):
            return self._close(item, learning=False)
        # The iteration began with this object; the last of those that followed will end it.
        self._closer = self._seen[-1]
        self._learning = False
        self._seen = [weakref.ref(item)]
        return False

    def _close(self, item: object, *, learning: bool) -> bool:
        self._closer = weakref.ref(item)
        self._learning = learning
        self._seen = []
        return True
