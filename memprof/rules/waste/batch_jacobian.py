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
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak, with all that is computed for it: less is what a small batch may take."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchJacobian(Match):
    """The Jacobian, and how it is read."""

    made_at: Place | None = None
    read: str = ""


class BatchJacobianRule(WasteRule[BatchJacobian]):
    """`jacobian(f, x).diagonal(dim1=0, dim2=2)`: how each sample changes with every other one."""

    name = "batch-jacobian"
    summary = "a Jacobian is computed for all pairs of samples, and read for each with itself"
    fixes = ("per_sample_jacobian",)

    def matches(self, window: Window) -> Iterator[BatchJacobian]:
        """What is there at the peak of a statement whose Jacobian is read by its diagonal."""
        unowned, stacks_of = ~window.has_owner, _stacks_by_line(window)
        for frame, stacks in stacks_of.items():
            of_line = unowned & np.isin(window.lives.stack, stacks)
            rows = np.flatnonzero(of_line & window.at_peak)
            nbytes = int(window.lives.size[rows].sum())
            place = place_of(frame) if window.share(nbytes) >= _LEAST_SHARE else None
            read = diagonal_read(place) if place is not None else ""
            if read:
                yield BatchJacobian(
                    row=int(rows[window.lives.size[rows].argmax()]),
                    rows=rows,
                    nbytes=nbytes,
                    saving=window.replayed(window.whole(np.flatnonzero(of_line))),
                    made_at=place,
                    read=read,
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
            typed="torch.func.vmap(torch.func.jacrev(f))(x)",
        )


def _stacks_by_line(window: Window) -> dict[Frame, list[int]]:
    """The stacks of what is made, by each of the program's lines on them."""
    by_line: dict[Frame, list[int]] = {}
    for stack in np.unique(window.lives.stack).tolist():
        for frame in dict.fromkeys(window.user_frames(window.trace.stack(stack))):
            by_line.setdefault(frame, []).append(stack)
    return by_line


RULE = BatchJacobianRule()
