"""host-copy: large tensors that stay on the device have twins of the same sizes on the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.units import format_bytes
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_LEAST_BYTES = 1 << 20
"""Smaller tensors have sizes that many share."""


class HostCopy(WasteRule[Match]):
    """The same data on the device and on the host, by the sizes of what stays there."""

    name = "host-copy"
    summary = "the same data lies on the device and on the host"
    fixes = ("del_ref",)
    stands_beside = True

    def matches(self, window: Window) -> Iterator[Match]:
        """Large tensors that stay, for each of which the host has one of its size."""
        if window.host is None:
            return
        sizes = Counter(window.host.lives.requested[_resident(window.host)].tolist())
        rows = []
        for row in np.flatnonzero(_resident(window)).tolist():
            requested = int(window.lives.requested[row])
            if sizes[requested]:
                sizes[requested] -= 1
                rows.append(row)
        if not rows:
            return
        pairs = np.array(rows, dtype=np.int64)
        yield Match(
            row=int(pairs[np.argmax(window.lives.size[pairs])]),
            rows=pairs,
            nbytes=int(window.lives.size[pairs].sum()),
            saving=window.replayed(window.whole(pairs)),
            tentative=True,  # equal sizes are no proof of equal contents
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say where the twins are."""
        return "are there on the host as well, in the same sizes"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Drop one of the two."""
        nbytes = format_bytes(match.nbytes)
        why = f"The same {nbytes} are on the device and on the host: drop one of the two."
        yield Advice("del_ref", why, case.site)


def _resident(window: Window) -> Bools:
    """Large, no part of a model, and there to the end over several steps."""
    resident: Bools = window.stays & ~window.has_owner & (window.lives.requested >= _LEAST_BYTES)
    return resident


RULE = HostCopy()
