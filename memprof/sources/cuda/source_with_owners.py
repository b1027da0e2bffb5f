"""The CUDA source with owners: whose each block is, and what lives, beside what was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memprof.sources.cuda.memory_history import HistoryOwner
from memprof.sources.cuda.oom_observer import Exhausted
from memprof.sources.cuda.snapshot_source import CudaSource
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.owners.live_blocks import LiveBlocks, LivingBlocks
from memprof.sources.protocol import Chunk, Interner
from memprof.sources.tensor_addresses import PlaceOf, place_of
from memprof.trace import Label, State

__all__ = ["OwnedCudaSource"]


class OwnedCudaSource(CudaSource):
    """Gives blocks and allocations the categories of those who point at their addresses.

    Modules and optimizers are asked when a window begins and ends and at every drain; gradients and
    inputs, which may be gone by then, as an optimizer or a model begins.
    """

    def __init__(
        self,
        interner: Interner,
        loop_watch: LoopWatch,
        torch: Any = None,
        place: PlaceOf = place_of,
    ) -> None:
        """``torch`` and ``place``, where a tensor lies, may be stand-ins."""
        super().__init__(interner, loop_watch, torch)
        self.place = place
        self._live = LiveBlocks(interner, loop_watch, place)
        self._ready: list[Chunk] = []

    def close(self) -> None:
        """Also listen to nothing any more."""
        self._live.sightings.stop()
        super().close()

    def begin_window(self) -> Mapping[str, State]:
        """The states, with owners."""
        anew = not self._in_window
        if anew:
            self._ready = []
        states = super().begin_window()
        self._live.sightings.start()
        return self._live.begin(states, anew=anew)

    def drain(self) -> Sequence[Chunk]:
        """The entries since the last drain, with owners."""
        self._settle()
        ready, self._ready = self._ready, []
        return ready

    def end_window(self) -> Mapping[str, State]:
        """The states, with owners."""
        self._settle()
        states = super().end_window()
        self._live.sightings.stop()
        return self._live.end(states)

    def is_recording(self) -> bool:
        """Whether torch's recorder writes down what happens; asks nobody."""
        return self._recorder.owner is not HistoryOwner.NOBODY

    def living(self, device: str) -> LivingBlocks:
        """The blocks in use on a device at this moment; columns, they hold nothing.

        None, with a note, where a look at them would hold the job up for too long.
        """
        if self._in_window:
            self._settle()
        elif not self._can_record() or not self._recorder.can_see_blocks():
            return self._live.living("")
        else:
            if self._torch._C._cuda_isHistoryEnabled():
                self._live.forget()  # the program's recording gives new blocks stacks, too
            self._live.refresh(self._start_states())
        return self._live.living(device)

    def label_of(self, row: int) -> Label:
        """The label in a row, also of those that the program named itself."""
        return self._live.labels.of(row)

    def at_failure(self, what: Exhausted) -> None:
        """Also: what a forward pass holds now is waiting for a backward pass that never comes."""
        super().at_failure(what)
        if self._in_window:
            self._live.sightings.failed()

    def with_owners(self, device: str, state: State) -> State:
        """A state between windows, with the labels and categories of the blocks that are known."""
        return self._live.refresh({device: state})[device]

    def notes(self) -> Sequence[str]:
        """What was not seen, since the last call."""
        failure, self._live.sightings.failure = self._live.sightings.failure, ""
        return [*super().notes(), *([failure] if failure else [])]

    def _settle(self) -> None:
        """What was recorded becomes ready to be written."""
        chunks = super().drain()
        if chunks or self._end:
            self._ready += self._live.take(chunks, self._end)
