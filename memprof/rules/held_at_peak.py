"""Tensors at the peak that searches in the job were for, as matches of rules over a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from typing_extensions import Self

from memprof.records import Finding
from memprof.rules.run_rule import RunMatch
from memprof.trace import EMPTY
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.window import Ints, Window

__all__ = ["HeldAtPeak", "last_searches"]

AnyHeld = TypeVar("AnyHeld", bound="HeldAtPeak")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HeldAtPeak(RunMatch):
    """Tensors that a search found to be held in a way that a rule is about."""

    peak: int
    """Bytes at the device's peak."""

    @classmethod
    def of(
        cls,
        device: DeviceExamination,
        window: Window,
        search: Finding,
        there: Ints,
        every: Ints,
        **more: Any,
    ) -> Self:
        """The match of some rows.

        Args:
            device: whose peak it is.
            window: the window with the peak.
            search: the search that came upon the holders.
            there: the lifetimes that are there at the peak, one at least.
            every: all that would not be there, for the saving.
            more: fields of the subclass.
        """
        with_stack = there[window.lives.stack[there] != EMPTY]
        row = int((with_stack if len(with_stack) else there)[-1])
        return cls(
            device=device.name,
            nbytes=int(window.lives.size[there].sum()),
            first_step=int(window.made_in[there].min()),
            last_step=int(window.made_in[there].max()),
            site=window.site_of(row),
            stack=window.stack(row),
            holders=tuple(search.holders),
            saving=window.replayed(window.whole(every)),
            peak=device.peak_allocated,
            **more,
        )


def last_searches(examination: Examination, device: DeviceExamination) -> list[Finding]:
    """The last search for each stack of a device, where it came upon a holder."""
    last: dict[int, Finding] = {}
    for one in examination.run.findings:
        if one.finding == "holders" and one.device == device.name:
            last[one.stack] = one
    return [one for one in last.values() if one.holders]
