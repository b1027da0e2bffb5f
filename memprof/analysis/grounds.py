"""What changes of a program are read from at its failure, and how they enter the replay.

In a window it is the failure's own trace, between windows the recorded step that is like it. Which
changes are tried, and what comes of them, is for `rescues`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from memprof.allocator import Changes, Program
from memprof.analysis.examination import WindowExamination
from memprof.analysis.failures import Failure
from memprof.analysis.leftovers import Moment, freed
from memprof.analysis.likeness import Likeness
from memprof.analysis.scaling import resized

__all__ = ["Ground", "ground_of"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Ground(Protocol):
    """What changes of the program are read from, and how they are put into its replay."""

    @property
    def moment(self) -> Moment:
        """The recorded window up to the failed request."""

    @property
    def afresh(self) -> bool:
        """Programs of other sizes begin with what was live laid out anew."""

    @property
    def assumes(self) -> str:
        """What every change that is read here takes for granted."""

    def without(self, rows: Ints, after: Ints) -> Changes:
        """Lifetimes freed after an event each."""

    def resized(self, program: Program, factors: Floats) -> Program:
        """Requests that many times as large; a factor for each event of the moment."""


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """A failure in a window: its own trace."""

    moment: Moment
    afresh: bool = False
    assumes: str = ""

    def without(self, rows: Ints, after: Ints) -> Changes:
        return freed(self.moment, rows, after)

    def resized(self, program: Program, factors: Floats) -> Program:
        return resized(program, factors)


@dataclass(frozen=True, slots=True, eq=False)
class _Alike:
    """A failure between windows: the step that was recorded before, and the blocks it knows."""

    alike: Likeness
    afresh: bool = True

    @property
    def moment(self) -> Moment:
        return self.alike.moment

    @property
    def assumes(self) -> str:
        return f"each block was what it was in step {self.alike.step}"

    def without(self, rows: Ints, after: Ints) -> Changes:  # noqa: ARG002 - all are past
        return self.alike.without(rows)

    def resized(self, program: Program, factors: Floats) -> Program:
        return self.alike.resized(program, factors)


def ground_of(failure: Failure, seen: WindowExamination) -> Ground | None:
    """What there is for one failure, ``seen`` being its own trace; None for a lone request."""
    if failure.alike is not None:
        return _Alike(failure.alike)
    return _Recorded(Moment.at(seen, failure.event)) if failure.event > 0 else None
