"""What a rule of waste consists of: matches in a window, a title, and advice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from memprof.advice.case import Case
from memprof.analysis.findings import Kind
from memprof.rules.overlap import ANY_GROWTH, Overlap
from memprof.source_code.program import Place
from memprof.views.peak_without import Saving
from memprof.views.window import Window

__all__ = ["EVERY_OTHER", "Advice", "Match", "WasteRule", "confidence_of"]

Ints = npt.NDArray[np.int64]

EVERY_OTHER = ("*",)
"""For ``yields_to`` of a rule that only says what the bytes are, not what is wrong: to every match
that is larger."""

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
    """It may be meant: never a headline, and any other match about the same tensors is better."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One change that would mend a finding."""

    fix: str
    """A term of `memprof.advice.FIXES`."""
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
    saving: Saving | None = None
    """What this very change saves, where that is not what the match says."""


AnyMatch = TypeVar("AnyMatch", bound=Match)


class WasteRule(ABC, Generic[AnyMatch]):
    """One kind of waste. A rule is a subclass in a file of its own, with one instance, ``RULE``."""

    name: ClassVar[str]
    """What `memprof explain` knows it by; also the name of its page in ``docs/rules``."""
    summary: ClassVar[str]
    """One line for `memprof explain`, as a clause: ``gradients are kept during …``."""
    fixes: ClassVar[tuple[str, ...]]
    """Every fix that it may advise."""
    kind: ClassVar[Kind] = Kind.WASTE
    names_holders: ClassVar[bool] = False
    """Who holds the tensors matters: the job's own search is looked up."""
    yields_to: ClassVar[tuple[str, ...]] = ()
    """Rules that say it better where both match the same tensors, whichever of the two is larger;
    and `EVERY_OTHER`."""

    stands_beside: ClassVar[bool] = False
    """It says something else of the tensors than other rules: it yields to none."""
    yields_beyond: ClassVar[tuple[str, ...]] = (ANY_GROWTH,)
    """Rules beyond the window, of growth or over the whole run, that say it better where their
    finding has `overlap` in common with one of this rule."""
    overlap: ClassVar[Overlap] = Overlap.LINE
    """What it has in common with such a finding."""

    @abstractmethod
    def matches(self, window: Window) -> Iterator[AnyMatch]:
        """Every occurrence in a window."""

    @abstractmethod
    def title(self, match: AnyMatch) -> str:
        """What the bytes are, to complete ``12 MiB (4 % of the peak) …``."""

    @abstractmethod
    def advice(self, match: AnyMatch, case: Case) -> Iterator[Advice]:
        """Changes that would mend it, the best first."""


def confidence_of(*, tentative: bool) -> float:
    """How sure a finding is that has no measured confidence, from 0 to 1."""
    return _UNSURE if tentative else _SURE
