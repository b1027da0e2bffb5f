"""A CPU source with a loop watch of its own, for tests of what it records; no test is here."""

from __future__ import annotations

from memprof.sources.cpu.dispatch_source import CpuSource
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.protocol import Interner


class CpuRecording:
    """Open from the start; windows are the test's to begin and end."""

    def __init__(self) -> None:
        self.interner = Interner()
        self.loop_watch = LoopWatch(self.interner)
        self.loop_watch.open(lambda _: None)
        self.source = CpuSource(self.interner, self.loop_watch)
        self.source.open()

    def close(self) -> None:
        """Undo everything; nothing may have been said that the test did not ask for."""
        notes = [*self.source.notes(), *self.loop_watch.notes()]
        self.source.close()
        self.loop_watch.close()
        assert notes == []
