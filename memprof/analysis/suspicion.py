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

    OLD_GRAPHS = "old_graphs"
    """Graphs of steps long past are still there, a bounded number of them."""
    COPY_OF_MODEL = "copy_of_model"
    LOADED = "loaded"
    """What ``torch.load`` made was copied into the model and is still there."""
    AUTOCAST_CACHE = "autocast_cache"
    LARGE_BUFFER = "large_buffer"
    UNREAD_BUFFER = "unread_buffer"
    RESIDENT = "resident"
    """Kept over many steps without being part of a model."""
    UNUSED_GRADIENTS = "unused_gradients"
    """Gradients that no optimizer reads and nothing clears."""


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
