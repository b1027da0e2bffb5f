"""What a rule over a whole run consists of: matches in an examined run, a title, and advice."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from memprof.records import Holder, Site
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.rule import Advice, Rule
from memprof.rules.same_memory import Overlap
from memprof.trace import Frame
from memprof.views.examination import Examination
from memprof.views.peak_without import Saving
from memprof.views.trend import LevelRise

__all__ = ["RunMatch", "RunRule"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunMatch:
    """Memory that a rule is about; rules add their own evidence in a subclass."""

    device: str
    """A device's name, or ``"host"`` for memory of the process that is no CPU tensor's."""
    nbytes: int = 0
    """Bytes concerned at the end; 0 where they were not measured."""
    first_step: int = -1
    last_step: int = -1
    rise: LevelRise | None = None
    """How it grew from step to step; None where it did not, or was not measured in bytes."""
    steps_left: float = -1.0
    """Steps until the device is full; -1 where not known."""
    site: Site = field(default_factory=Site)
    """The line that it is about, where there is one."""
    stack: tuple[Frame, ...] = ()
    holders: tuple[Holder, ...] = ()
    tentative: bool = False
    """It may be meant, or somebody else's."""
    rises: bool = False
    """There is more of it from step to step, as a `Match` says it."""
    saving: Saving | None = None
    """The peak with and without it; None where no replay can tell."""
    in_backward_of: bool = False
    """A backward pass made it: its line is that of the operator, in the forward pass."""


AnyRunMatch = TypeVar("AnyRunMatch", bound=RunMatch)


class RunRule(Rule, Generic[AnyRunMatch]):
    """One kind of finding over a whole run: from counters, readings and the job's own searches."""

    fixes: ClassVar[tuple[str, ...]] = ()
    """Every fix that it may advise; none where a recording of tensors does not show the cause, and
    where causes of growth do."""
    kind: ClassVar[Kind]
    hint: ClassVar[str] = ""
    """What to do where no fix is known: one clause."""
    overlap: ClassVar[Overlap] = Overlap.DEVICE
    """What it has in common with a finding that it yields to, and which is reported instead of it:
    one of a rule in ``yields_to``, where `ANY_GROWTH` and `ANY_WASTE` stand for many."""

    @abstractmethod
    def matches(self, examination: Examination) -> Iterator[AnyRunMatch]:
        """Every occurrence in a run."""

    @abstractmethod
    def title(self, match: AnyRunMatch) -> str:
        """One line that says what grows or is unused, how much it is, and where."""

    def advice(self, match: AnyRunMatch, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - a default
        """Changes that would mend it, the best first; none here, for rules that know of none."""
        yield from ()
