"""Watches what survives: told of steps and windows, it hands findings on and never raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from memprof.cpython.gc_pause import collector_paused
from memprof.cpython.signal_errors import guarded_errors
from memprof.log import LOG
from memprof.records import Finding
from memprof.referrers.gc_watch import Collections
from memprof.sources.protocol import EventSource
from memprof.sources.tensor_addresses import place_of
from memprof.trace import Label

if TYPE_CHECKING:
    from memprof.referrers.survivors import Announcement, LiveSource, Survivors

__all__ = ["SurvivorWatch"]

_COLLECTIONS = 256
"""Collections of the garbage collector that may wait before they are written."""


class SurvivorWatch:
    """Looks for survivors while a job runs; after an error of its own it is silent, with a note."""

    def __init__(
        self,
        write: Callable[[Finding, str], None],
        note: Callable[[str, str], None],
        *,
        share: float = 0.01,
    ) -> None:
        """``write`` takes a finding and what to log about it, which is empty for most."""
        self._write = write
        self._note = note
        self._share = share
        self._survivors: Survivors | None = None
        self._begin: Callable[[], Survivors] | None = None
        self._collections: Collections | None = None
        self._step = -1

    def open(self, sources: Sequence[EventSource], label_of: Callable[[int], Label]) -> None:
        """Begin to look at those sources that can say what is alive."""
        able: list[Any] = [one for one in sources if hasattr(one, "living")]
        note = partial(self._note, "survivors")
        self._begin = partial(_survivors, lambda: _live(able, label_of), note, self._share)
        if able:
            self._collections = Collections(*_frees_of(able))
            self._collections.open()

    def step_ended(self, step: int, allocated: int = 0) -> None:
        """After every step, with the bytes ``allocated`` then on all devices."""
        self._step = step
        self._guard(lambda survivors: survivors.step_ended(step, allocated), freed=self._is_full())

    @property
    def is_searching(self) -> bool:
        """Whether a search was begun that goes on at the next step's end, in a window or not."""
        return self._survivors is not None and self._survivors.is_searching

    def step_ended_between(self, step: int) -> None:
        """After a step that no window recorded, while a search goes on."""
        self._step = step
        self._guard(lambda survivors: survivors.step_ended_between(step), freed=False)

    def window_ended(self) -> None:
        """When new tensors are not seen any more for a while."""
        self._guard(lambda survivors: survivors.window_ended(self._step), freed=True)

    def close(self, *, quietly: bool = False, is_over: bool = False) -> None:
        """A last look, unless ``quietly``; leaves nothing behind. Safe to call twice.

        ``is_over``: the program is, so that the look holds nobody up.
        """
        if not quietly:
            self._guard(
                lambda survivors: survivors.last_look(self._step, is_over=is_over), freed=True
            )
        if self._collections is not None:
            self._collections.close()
        self._begin = self._survivors = self._collections = None

    def _is_full(self) -> bool:
        return self._collections is not None and len(self._collections) >= _COLLECTIONS

    def _guard(self, look: Callable[[Survivors], Iterable[Announcement]], *, freed: bool) -> None:
        if self._begin is None:
            return
        try:
            if self._survivors is None:
                self._survivors = self._begin()
            for one in look(self._survivors):
                self._write(one.finding, one.message)
            if freed and self._collections is not None:
                collected = self._collections.take(self._step)
                if collected is not None:
                    self._write(collected, "")
        except guarded_errors() as error:  # the job and its recording go on
            LOG.warning("the search for survivors failed and has ended", exc_info=True)
            self._note("survivors", f"the search has ended: {type(error).__name__}: {error}")
            self.close(quietly=True)


def _frees_of(sources: Sequence[Any]) -> tuple[Callable[[], int], Callable[[], bool]]:
    """Events that wait, of sources that count them; whether another records, that would ask torch.

    The garbage collector runs far too often for that.
    """
    asking = [one for one in sources if hasattr(one, "is_recording")]
    counting = [one for one in sources if one not in asking]
    return (
        lambda: sum(one.pending_events() for one in counting),
        lambda: any(one.is_recording() for one in asking),
    )


def _survivors(
    living: Callable[[], list[LiveSource]], note: Callable[[str], None], share: float
) -> Survivors:
    with collector_paused():
        from memprof.referrers.survivors import Survivors  # 20 ms, after recording has begun

    return Survivors(living, note, share=share)


def _live(sources: Sequence[Any], label_of: Callable[[int], Label]) -> list[LiveSource]:
    from memprof.referrers.survivors import LiveSource

    return [
        LiveSource(
            info.device,
            partial(source.living, info.device),
            getattr(source, "label_of", label_of),
            getattr(source, "place", place_of),
        )
        for source in sources
        for info in source.devices()
    ]
