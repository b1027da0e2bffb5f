"""What a detector of waste hands back: a pattern, the tensors, and how sure it is.

Turning it into a finding is `waste`'s, the remedy is `advice`'s.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from memprof.views.peak_without import Saving

__all__ = ["Pattern", "Suspicion"]


class Pattern(str, enum.Enum):
    """What kind of waste it is; the value is the fact ``pattern`` of the finding's evidence."""

    LINGERING = "lingering"
    """Kept by a name until its replacement exists, or through a pass that does not use it."""
    FROZEN_GRAPH = "frozen_graph"
    """Modules that take no gradient keep activations, because their input takes one."""
    SUMMED_LOSSES = "summed_losses"
    OPTIMIZER_TEMPORARIES = "optimizer_temporaries"
    RETRY = "retry"
    """The retry runs while the exception still holds the tensors of the failed try."""
    ACTIVATIONS = "activations"
    """Activations of repeated blocks make the peak."""
    LARGEST = "largest"
    """One allocation makes much of the peak."""
    UPCAST = "upcast"
    BROADCAST = "broadcast"
    REPEATED = "repeated"
    JOINED = "joined"
    """Parts are there beside the tensor that was joined from them."""
    SECOND_STATES = "second_states"
    """Two optimizers hold state for the same parameters."""
    DOUBLE_PRECISION = "double_precision"
    GROWN_BY_COPY = "grown_by_copy"
    """A tensor is enlarged by copying it, so that old and new are there at once."""
    BUCKETS = "buckets"
    """Gradients are there twice: in ``.grad`` and in the buckets of a reducer."""
    WORKSPACE = "workspace"
    CACHE_EMPTIED = "cache_emptied"
    """``empty_cache`` gives back in every step what the next step asks for again."""
    FRAGMENTATION = "fragmentation"


@dataclass(frozen=True, slots=True, eq=False)
class Suspicion:
    """Waste that the trace shows, before it is put into words for a person."""

    pattern: Pattern
    row: int
    """The lifetime whose site stands for it."""
    rows: npt.NDArray[np.int64]
    certainty: float
    """0 to 1."""
    what: str
    """Completes ``12 MiB (4 %) …`` in the finding's title."""
    nbytes: int
    """Bytes concerned at the peak."""
    saving: Saving | None = None
    """None where no replay can tell."""
    facts: Mapping[str, float | int | str | bool] = field(default_factory=dict)
