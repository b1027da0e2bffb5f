"""A CPU source with boundaries of its own, for tests of what it records; no test is here."""

from __future__ import annotations

from memprof.sources.cpu.dispatch_source import CpuSource
from memprof.sources.loop.boundaries import Boundaries
from memprof.sources.protocol import Interner


class CpuRecording:
    """Open from the start; windows are the test's to begin and end."""

    def __init__(self) -> None:
        self.interner = Interner()
        self.boundaries = Boundaries(self.interner)
        self.boundaries.open(lambda _: None)
        self.source = CpuSource(self.interner, self.boundaries)
        self.source.open()

    def close(self) -> None:
        """Undo everything; nothing may have been said that the test did not ask for."""
        notes = [*self.source.notes(), *self.boundaries.notes()]
        self.source.close()
        self.boundaries.close()
        assert notes == []
