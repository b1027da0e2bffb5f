"""What a rule consists of: what it matches, in a window or in what grows, and its advice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.same_memory import ANY_GROWTH, Overlap
from memprof.source_code.program import Place
from memprof.trace import Frame
from memprof.views.peak_without import Saving
from memprof.views.window import Window

__all__ = [
    "EVERY_OTHER",
    "Advice",
    "Cause",
    "GrowthRule",
    "Match",
    "Rule",
    "WasteRule",
    "confidence_of",
]

Ints = npt.NDArray[np.int64]

EVERY_OTHER = ("*",)
"""For ``yields_to`` of a rule that only says what the bytes are or what holds them, not what is
wrong: of waste to every match that is larger, of growth to every rule that does not yield so."""

_SURE, _UNSURE = 0.8, 0.4
"""Confidence of what is surely so, and of what may be meant; only growth of tensors has a measured
one."""


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Tensors that a rule is about; rules add their own evidence in a subclass."""

    row: int
    """The lifetime whose line and stack stand for all."""
    rows: Ints
    """Every lifetime that is meant."""
    nbytes: int
    """Bytes concerned at the peak."""
    saving: Saving | None = None
    """The peak with and without them; None where no replay can tell."""
    tentative: bool = False
    """It may be meant: never a report's verdict; another match about the same tensors is better."""
    rises: bool = False
    """There is more of it from step to step, to the end: no set that was filled once."""
    in_backward_of: bool = False
    """A backward pass made it: line and stack are those of the operator in the forward pass."""
    made_alike: tuple[int, ...] = ()
    """Stacks of what is made and freed in the same steps as these: who has that has these, where
    the job's search has not found who does."""
    look_at: Frame | None = None
    """The line that is to be looked at, where that is not the one that made it."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One change that would mend a finding."""

    fix: str
    """A term of `memprof.rules.fixes.FIXES`."""
    why: str
    """One sentence with the evidence."""
    place: Place | None = None
    """The statement to change; None for the line that made the tensors."""
    line: int = 0
    """A line of the place's file, where that is not the statement's first."""
    patch: str = ""
    """A unified diff where the change is mechanical and surely right."""
    remains: float = 0.0
    """Share of the bytes that are there all the same after the change."""
    stays: float = 0.0
    """Share of what had grown that is there after it, but grows no more: what a bound admits."""
    saving: Saving | None = None
    """What this very change saves, where that is not what the match says."""
    peaks: Saving | None = None
    """The peaks with and without this very change of growth, whose rate stays that of a step."""
    typed: str = ""
    """What to type, where that is not what the fix says of every program."""
    otherwise: bool = False
    """It is another way, for where the first does not fit: of growth it comes after what the other
    rules that match advise first."""
    above_all: bool = False
    """It comes before what rules that say better what is wrong advise of growth."""


class Rule(ABC):
    """One kind of finding: a subclass in a file of its own, with one instance, ``RULE``."""

    name: ClassVar[str]
    """What `memprof explain` knows it by; also the name of its page in ``docs/rules``."""
    summary: ClassVar[str]
    """One line for `memprof explain`, as a clause: ``gradients are kept during …``."""
    fixes: ClassVar[tuple[str, ...]]
    """Every fix that it may advise."""
    yields_to: ClassVar[tuple[str, ...]] = ()
    """Rules that say it better where both match; and `EVERY_OTHER`.

    Of two kinds of waste about the same tensors only the other is reported, whichever is larger. Of
    two causes of growth the other comes first, and both give advice.
    """


AnyMatch = TypeVar("AnyMatch", bound=Match)


class WasteRule(Rule, Generic[AnyMatch]):
    """One kind of waste: bytes that are there at the peak for no use."""

    kind: ClassVar[Kind] = Kind.WASTE
    names_holders: ClassVar[bool] = False
    """Who holds the tensors matters: the job's own search is looked up."""
    needed: ClassVar[bool] = False
    """The program as it is needs the bytes: only another way of computing spares them."""
    other_operators: ClassVar[bool] = False
    """Its change has other operators compute the same: what is there for no use comes first where
    it comes to nearly as much."""
    is_general: ClassVar[bool] = False
    """It says that bytes are there for no use, and not why: a rule that does comes first where it
    comes to half as much."""
    stands_beside: ClassVar[bool] = False
    """It says something else of the tensors than other rules: it yields to none."""
    yields_beyond: ClassVar[tuple[str, ...]] = (ANY_GROWTH,)
    """Rules beyond the window, of growth or over the whole run, that say it better where their
    finding has `overlap` in common with one of this rule."""
    overlap: ClassVar[Overlap] = Overlap.LINE
    """What it has in common with such a finding."""

    accumulates: ClassVar[bool] = False
    """Its tensors become more until a loop of the program is over: that they rise is no leak."""
    proven_by: ClassVar[frozenset[LinkKind]] = frozenset()
    """Links of a holder's chain that make sure of a tentative match: nobody keeps tensors so on
    purpose."""

    @abstractmethod
    def matches(self, window: Window) -> Iterator[AnyMatch]:
        """Every occurrence in a window."""

    @abstractmethod
    def title(self, match: AnyMatch) -> str:
        """What the bytes are, to complete ``12 MiB (4 % of the peak) …``."""

    @abstractmethod
    def advice(self, match: AnyMatch, case: Case) -> Iterator[Advice]:
        """Changes that would mend it, the best first."""

    def is_meant(self, holders: Sequence[Holder], window: Window) -> bool:  # noqa: ARG002
        """Whether the program has a use for what ``holders`` keep: no headline then."""
        return False

    def is_unfounded(
        self,
        match: AnyMatch,  # noqa: ARG002
        holders: Sequence[Holder],  # noqa: ARG002
        window: Window,  # noqa: ARG002
    ) -> bool:
        """Whether ``holders`` show that what a match says is not so: nothing is said then."""
        return False

    def is_proven(self, holders: Sequence[Holder]) -> bool:
        """Whether a tentative match is none, as nobody keeps what ``holders`` do on purpose."""
        return any(link.kind in self.proven_by for one in holders[:1] for link in one.links)


@dataclass(frozen=True, slots=True, eq=False)
class Cause:
    """Why something grows; rules add what they saw of it in a subclass."""


AnyCause = TypeVar("AnyCause", bound=Cause)


class GrowthRule(Rule, Generic[AnyCause]):
    """One cause of growth.

    What grows, how fast and who holds it is found once for all rules; a rule is asked about one
    such finding, and says whether it is of its kind.
    """

    precedes: ClassVar[tuple[str, ...]] = ()
    """Rules that say less where both match: the same as if they yielded to this one."""

    @abstractmethod
    def match(self, case: Case) -> AnyCause | None:
        """What makes it grow; None where this rule does not explain it."""

    @abstractmethod
    def advice(self, cause: AnyCause, case: Case) -> Iterator[Advice]:
        """Changes that would mend it, the best first; at least one."""


def confidence_of(*, tentative: bool) -> float:
    """How sure a finding is that has no measured confidence, from 0 to 1."""
    return _UNSURE if tentative else _SURE
