"""Lifts the limits of time that a recorder keeps to, for tests of what it finds; no test is here."""

from __future__ import annotations

import operator
from collections.abc import Callable

__all__ = ["lift_limits"]

LONG_S = 60.0


def lift_limits(
    set_attribute: Callable[[object, str, object], None] = setattr,
    set_item: Callable[[dict[str, object], str, object], None] = operator.setitem,
) -> None:
    """Let recording and searches for holders take as long as they do on this machine.

    A slow or busy one makes fewer looks else, climbs to holders instead of searching the whole
    heap, and ends windows early.
    """
    from memprof.record import sampler, tracker, unseen_code
    from memprof.referrers import bounded_search as searches
    from memprof.referrers import search_from_tensors as climbs
    from memprof.referrers import survivors as watch
    from memprof.sources.cpu import large_values
    from memprof.sources.loop import main_thread

    for owner, names in (
        (searches, ("WHOLE_S", "WHOLE_AFTER_S", "BUDGET_S", "NOTICEABLE_S")),
        (watch, ("SCAN_S", "GRAPH_S", "LAST_S", "AT_EXIT_S")),
        (climbs, ("GRAPHS_S",)),
        (large_values, ("FREE_S", "LONGEST_S")),
        (sampler.Sampler, ("PATIENCE_S",)),
        (main_thread.Beat, ("PATIENCE_S",)),
    ):
        for name in names:
            getattr(owner, name)  # it has one of this name
            set_attribute(owner, name, LONG_S)
    set_attribute(watch.Survivors, "has_time", lambda _: True)
    # which code runs when it is asked for, once a second
    set_attribute(unseen_code.UnseenCode, "is_running", lambda *_: False)
    set_item(tracker.track.__kwdefaults__, "allowance_s", 600.0)
