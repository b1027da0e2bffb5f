"""How long a pass over the heap would hold the job up, judged before it is made."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["PauseEstimate"]


@dataclass(slots=True)
class PauseEstimate:
    """What one kind of pass takes, by the number of the interpreter's memory blocks.

    That number is had in a millisecond, whereas counting objects means to list them.
    """

    longest_s: float
    """More is too long."""
    per_block_s: float
    """Seconds of the processor for each block, as the last pass took them."""

    @property
    def expected_s(self) -> float:
        """What a pass would take now."""
        return self.per_block_s * sys.getallocatedblocks()

    def is_short(self, longest_s: float | None = None, *, least_block_s: float = 0.0) -> bool:
        """Whether a pass would be over soon enough; in ``longest_s`` where that is another time.

        ``least_block_s``: what each block is taken to cost, where the last pass took less.
        """
        most_s = self.longest_s if longest_s is None else longest_s
        return max(self.per_block_s, least_block_s) * sys.getallocatedblocks() <= most_s

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Around a pass over everything."""
        blocks = sys.getallocatedblocks()
        began_s = time.thread_time()
        yield
        self.took(time.thread_time() - began_s, blocks)

    def took(self, duration_s: float, blocks: int = 0) -> None:
        """What a pass took, over so many blocks; 0: as many as there are now.

        It counts as half as long again as was thought at most: one pass on a busy machine must not
        keep all later ones from being made.
        """
        measured_s = duration_s / max(1, blocks or sys.getallocatedblocks())
        self.per_block_s = min(measured_s, 1.5 * self.per_block_s)
