"""What can be wrong with a run, as data: findings, their evidence and their remedies."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from memprof.records import Holder, Site
from memprof.trace import Frame

__all__ = ["Evidence", "Growth", "Kind", "Remedy", "RuleFinding", "Series"]

Ints = npt.NDArray[np.int64]


class Kind(str, enum.Enum):
    """The sort of thing that was found; the values are those of ``memprof leaks --json``."""

    LEAK = "leak"
    """Tensors of one step stay alive in later ones, without end."""
    CYCLE = "cycle"
    """The same, but the cyclic garbage collector would free (or has freed) them."""
    WASTE = "waste"
    """Bytes that are there for no use, without growing."""
    FRAGMENTATION = "fragmentation"
    """Reserved bytes that no tensor uses and that grow or are large."""
    NON_TORCH = "non_torch"
    """Growth on the device outside torch's allocator."""
    HOST_GROWTH = "host_growth"
    """Growth on the host without tensor bytes, such as chains of graph nodes."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Live bytes of a site at step ends."""

    steps: Ints
    bytes: Ints


@dataclass(frozen=True, slots=True)
class Growth:
    """What is recorded of tensors that grow, beside their lines and holders; for the rules."""

    kept_itself: float = 0.0
    """Share of the growth that something holds without a graph in between."""
    forward_share: float = 0.0
    """Share of the bytes that a forward pass made which a backward pass followed."""
    is_replaced: bool = False
    """Most of it are tensors that are made anew, and larger, again and again: not ever more."""
    has_parameters: bool = False
    """Parameters are among them: whole models pile up."""
    model_share: float = 0.0
    """Share of the bytes that are parameters and buffers."""
    times: int = 0
    """Recorded steps in which it grew."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Where in the trace the finding stands, for replays and for charts."""

    window: int = -1
    """Index into the device's windows."""
    allocs: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """``ALLOC`` events, in that window, of the tensors that it is about."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that would mend a finding."""

    fix: str
    """A term of `memprof.rules.fixes.FIXES`."""
    why: str
    """One sentence with the evidence."""
    filename: str = ""
    line: int = 0
    code: str = ""
    """The source line that it applies to."""
    saves_bytes: int = 0
    """Bytes that a replay without the tensors saves: off the peak, or in each step."""
    peak_before: int = -1
    peak_after: int = -1
    patch: str = ""
    """A unified diff of the user's file where the change is mechanical."""
    page: str = ""
    """What to type to read about this fix."""
    rule: str = ""
    """The name of the rule that advises it."""
    typed: str = ""
    """What to type there, as code; empty where it depends on the line."""
    saves_per_step: bool = False
    """Whether `saves_bytes` are of each step, as of what grows; a setting saves them once."""


@dataclass(frozen=True, slots=True, eq=False)
class RuleFinding:
    """One finding: what, where, how much, how sure, who holds it, what to do."""

    kind: Kind
    device: str
    site: Site
    title: str
    """One line for a person: ``grows by 24 KiB per step: list `outputs` of LitModel``."""
    bytes_per_step: float = 0.0
    """0 where nothing grows."""
    bytes: int = 0
    """Bytes concerned after the last step, or the most there were if it left none; at the peak for
    waste."""
    confidence: float = 0.0
    """0 to 1."""
    first_step: int = -1
    last_step: int = -1
    steps_left: float = -1.0
    """Steps until the device is full at this rate; -1 where not known."""
    stack: tuple[Frame, ...] = ()
    """Innermost first."""
    module: str = ""
    category: str = ""
    holders: tuple[Holder, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    hint: str = ""
    """What to do where no remedy is known: one clause."""
    series: Series | None = None
    evidence: Evidence = field(default_factory=Evidence)
    growth: Growth = Growth()
    """Of tensors that grow."""
    rule: str = ""
    """The name of the rule that matched, where it is one of `memprof.rules`."""
    match: Any = None
    """What a rule of waste matched, for its words and its advice."""
    minor: bool = False
    """It is no headline (`memprof.rules.floor`): one line, after what is."""

    @property
    def is_tentative(self) -> bool:
        """Whether it may well be meant: a data set on the device, a buffer of fixed size."""
        return self.match is not None and self.match.tentative
