"""Work that is done only as often as a share of the time allows."""

from __future__ import annotations

from memprof.sources.cpu.throttle import Throttle


def test_work_waits_until_what_it_took_has_become_a_small_share():
    now, done = [100.0], []

    def work():
        done.append(now[0])
        now[0] += 0.5

    at_leisure = Throttle(0.02, lambda: now[0])
    at_leisure(work)
    for _ in range(40):
        at_leisure(work)
        now[0] += 1.0
    assert done == [100.0, 125.5]
    at_leisure.reset()
    at_leisure(work)
    assert len(done) == 3
