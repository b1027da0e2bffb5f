"""Which of several things that happen again and again in a loop ends an iteration of it."""

from __future__ import annotations

import weakref

__all__ = ["Cycle"]


class Cycle:
    """Finds the last of the objects that take turns in an iteration, holding none of them.

    The object that ended the last iteration ends the next one. At first that is the very first
    object; once the order is known (it comes again after others) the last of them takes over, so
    that in a GAN an iteration ends with its second optimizer. An object that comes twice while the
    one that was waited for does not come at all takes its place.
    """

    __slots__ = ("_closer", "_learning", "_seen")

    def __init__(self) -> None:
        self._closer: weakref.ref[object] | None = None
        self._learning = True
        self._seen: list[weakref.ref[object]] = []

    def ends(self, item: object) -> bool:
        """Note that ``item`` had its turn; whether that ends an iteration."""
        closer = self._closer() if self._closer is not None else None
        if closer is None:
            return self._close(item, learning=True)
        if item is closer:
            return self._again(item)
        if any(seen() is item for seen in self._seen):
            return self._close(item, learning=True)
        self._seen.append(weakref.ref(item))
        return False

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
