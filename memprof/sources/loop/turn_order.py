"""Detection of iterations in loops without a mark: which of the turns that come again ends one."""

from __future__ import annotations

import weakref
from typing import NamedTuple

__all__ = ["TurnOrder"]

_MOST_TURNS = 8
"""More turns than this, each new and with a beginning of its own, are hardly one iteration's:
optimizers that are made anew in every iteration and kept, the cells of a notebook."""
_MOST_PLACES = 4096


class _Turn(NamedTuple):
    ref: weakref.ref[object]
    place: int

    def is_of(self, item: object, place: int) -> bool:
        return self.place == place and self.ref() is item


class TurnOrder:
    """Finds the last of the objects that take turns in an iteration, holding none of them.

    A turn is an object at a place: the line that calls a model, with all that called it. One model
    that two lines call has two turns.

    The turn that ended the last iteration ends the next one. At first that is the very first; once
    the order is known (it comes again after others) the last of them takes over, so that in a GAN
    an iteration ends with its second optimizer. One that comes twice while the one that was waited
    for does not come at all takes its place. An object that was never met before, at a place that
    has had its turn, is the next model of a sweep. Where ever new objects come, each with a
    beginning of its own, and none of them twice, each ends an iteration.
    """

    __slots__ = ("_closer", "_learning", "_places", "_refs", "_strangers", "_turns")

    def __init__(self) -> None:
        self._closer: _Turn | None = None
        self._learning = True
        self._turns: list[_Turn] = []
        self._refs: dict[int, weakref.ref[object]] = {}
        self._places: set[int] = set()
        self._strangers = 0

    def ends(self, item: object, *, anew: bool = False, place: int = 0) -> bool:
        """Note that ``item`` had its turn at ``place``; whether that ends an iteration.

        ``place`` is 0 where only the object counts. ``anew`` says that the program has begun
        something since the turn before: a forward pass.
        """
        closer = self._closer
        if (
            closer is not None
            and not self._turns
            and closer.is_of(item, place)
            and (place == 0 or place in self._places)
        ):  # most loops: one turn that ends each iteration; all that follows comes to this
            self._strangers, self._learning = 0, False
            return True
        stranger = not self._has_met(item)
        elsewhere = place != 0 and not self._has_been_at(place)
        anew = elsewhere or (anew and stranger)
        self._strangers = self._strangers + anew if stranger or elsewhere else 0
        turn = _Turn(weakref.ref(item), place)
        if closer is None or closer.ref() is None:
            return self._close(turn, learning=True)
        if closer.is_of(item, place):
            return self._again(turn)
        if any(sighting.is_of(item, place) for sighting in self._turns):
            return self._close(turn, learning=True)
        if (
            stranger
            and place
            and any(sighting.place == place for sighting in (closer, *self._turns))
        ):
            return self._close(turn, learning=True)
        if anew and self._strangers > _MOST_TURNS:
            return self._close(turn, learning=True)
        self._turns.append(turn)
        return False

    def _has_met(self, item: object) -> bool:
        """Whether ``item`` had a turn before; from now on it had."""
        reference = self._refs.get(id(item))
        self._refs[id(item)] = weakref.ref(item)
        return reference is not None and reference() is item

    def _has_been_at(self, place: int) -> bool:
        """The same of ``place``."""
        is_repeated = place in self._places
        if not is_repeated and len(self._places) < _MOST_PLACES:
            self._places.add(place)
        return is_repeated

    def _again(self, turn: _Turn) -> bool:
        if not (self._learning and self._turns):
            return self._close(turn, learning=False)
        # The iteration began with this turn; the last of those that followed will end it.
        self._closer = self._turns[-1]
        self._learning = False
        self._turns = [turn]
        return False

    def _close(self, turn: _Turn, *, learning: bool) -> bool:
        self._closer = turn
        self._learning = learning
        self._turns = []
        return True
