"""batch-jacobian: a Jacobian of all samples by all samples, of which the diagonal is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.jacobians import diagonal_read
from memprof.source_code.program import Place, place_of
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_OF_NUMBERS = "torch.autograd.grad(f(x).sum(), x)"
_LEAST_SHARE = 0.2
"""Of the peak, with all that is computed for it: less is what a small batch may take."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchJacobian(Match):
    """The Jacobian, and how it is read."""

    made_at: Place | None = None
    read: str = ""
    of_numbers: bool = False
    """The function gives one number for each sample."""


class BatchJacobianRule(WasteRule[BatchJacobian]):
    """`jacobian(f, x).diagonal(dim1=0, dim2=2)`: how each sample changes with every other one."""

    name = "batch-jacobian"
    summary = "a Jacobian is computed for all pairs of samples, and read for each with itself"
    fixes = ("per_sample_jacobian",)

    def matches(self, window: Window) -> Iterator[BatchJacobian]:
        """What is there at the peak of a statement whose Jacobian is read by its diagonal."""
        unowned = ~window.has_owner
        there = np.flatnonzero(unowned & window.at_peak)
        weights = window.lives.size[there]
        sizes = np.bincount(window.lives.stack[there], weights=weights).astype(np.int64)
        for frame, stacks in _large_lines(window, sizes).items():
            place = place_of(frame)
            read = diagonal_read(place) if place is not None else None
            if read is None:
                continue
            rows = there[np.isin(window.lives.stack[there], stacks)]
            made = np.flatnonzero(unowned & np.isin(window.lives.stack, _through(window, frame)))
            yield BatchJacobian(
                row=int(rows[window.lives.size[rows].argmax()]),
                rows=rows,
                nbytes=int(window.lives.size[rows].sum()),
                saving=window.replayed(window.whole(made)),
                made_at=place,
                read=read.text,
                of_numbers=read.of_numbers,
            )
            return

    def title(self, match: BatchJacobian) -> str:
        """Say of what they are, and what is read."""
        return (
            "are a Jacobian of all samples by all samples, or computed for it, and only "
            f"`{match.read}` is read"
        )

    def advice(self, match: BatchJacobian, case: Case) -> Iterator[Advice]:
        """Compute one for each sample."""
        yield Advice(
            "per_sample_jacobian",
            f"{format_bytes(match.nbytes)} are there for derivatives of each sample by every other "
            "one, which are 0: compute those of each by itself.",
            match.made_at or case.site,
            typed=_OF_NUMBERS if match.of_numbers else "torch.func.vmap(torch.func.jacrev(f))(x)",
        )


def _large_lines(window: Window, sizes: Ints) -> dict[Frame, list[int]]:
    """Lines of the program below which much of the peak was made, and the stacks of that."""
    by_line: dict[Frame, list[int]] = {}
    for stack in np.flatnonzero(sizes).tolist():
        for frame in dict.fromkeys(window.user_frames(window.trace.stack(stack))):
            by_line.setdefault(frame, []).append(stack)
    least = _LEAST_SHARE * window.peak.bytes
    return {frame: stacks for frame, stacks in by_line.items() if sizes[stacks].sum() >= least}


def _through(window: Window, frame: Frame) -> list[int]:
    """Every stack of the window that has a frame."""
    stacks = np.unique(window.lives.stack).tolist()
    return [stack for stack in stacks if frame in window.trace.stack(stack)]


RULE = BatchJacobianRule()
