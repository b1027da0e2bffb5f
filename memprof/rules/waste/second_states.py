"""second-states: two optimizers hold state for the same parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import EVERY_OTHER, Advice, Match, WasteRule
from memprof.source_code.idioms import optimizers_made
from memprof.trace import Category, Frame
from memprof.units import format_bytes
from memprof.views.stacks import made_through
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_LEAST_STATE = 64
"""Bytes of one state; a count of steps is less, and every parameter has one of the same size."""
_LEAST_COMMON = 0.9
"""Of the older states that have a later one of their module and size: almost all, for chance makes
some sizes equal."""
_ON_ITS_WAY_OUT = 0.5
"""Of the later states' bytes: an older one that is smaller is being replaced, tensor by tensor."""
_OPTIMIZER_FILE = re.compile(r"/torch/optim/\w+\.py$")


class SecondStates(WasteRule[Match]):
    """A job goes on with a second optimizer, and something still holds the first."""

    name = "second-states"
    summary = "two optimizers hold state for the same parameters"
    fixes = ("del_ref", "cpu_offload")
    yields_to = EVERY_OTHER  # it does not say who holds the older one

    def matches(self, window: Window) -> Iterator[Match]:
        """State of an optimizer for parameters of which another one has made state later."""
        if window.peak.event < 0:
            return
        state = (window.category == Category.OPTIMIZER_STATE) & window.at_peak
        state &= made_through(window, _is_of_optimizer) & (window.lives.requested > _LEAST_STATE)
        state &= ~made_through(window, _is_lbfgs)
        steps = np.unique(window.made_in[state]).tolist()
        for number, step in enumerate(steps):
            older = state & (window.made_in == step)
            newer = state & np.isin(window.made_in, steps[number + 1 :])
            keys = set(_keys(window, newer))
            twice = np.array([key in keys for key in _keys(window, older)], dtype=bool)
            passing = window.bytes_of(older) < _ON_ITS_WAY_OUT * window.bytes_of(newer)
            if not twice.any() or twice.mean() < _LEAST_COMMON or passing:
                continue
            rows = np.flatnonzero(older)
            taken_over = np.full(len(rows), window.lives.alloc[newer].min())
            yield Match(
                row=window.main_site(older),
                rows=rows,
                nbytes=window.bytes_of(older),
                saving=window.replayed(window.ended_at(rows, taken_over)),
            )
            return

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say whose state it is."""
        return "are state of one optimizer for parameters that a later one has state for as well"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Drop the older optimizer, or keep its state elsewhere."""
        nbytes = format_bytes(match.nbytes)
        constructions = (place for _, place in optimizers_made(case.programs))
        yield Advice(
            "del_ref",
            f"Two optimizers hold state for the same parameters, the older one {nbytes}: drop it "
            "when the other takes over.",
            next(constructions, case.site),
        )
        later = f"If it is needed later, keep its {nbytes} on the host."
        yield Advice("cpu_offload", later, case.site)


def _is_of_optimizer(frame: Frame) -> bool:
    """Whether it is a frame of one of torch's optimizers."""
    return bool(_OPTIMIZER_FILE.search(frame.filename.replace("\\", "/")))


def _is_lbfgs(frame: Frame) -> bool:
    """Whether it is a frame of L-BFGS, whose state is of many steps."""
    return frame.filename.replace("\\", "/").endswith("/torch/optim/lbfgs.py")


def _keys(window: Window, rows: Bools) -> list[tuple[int, int]]:
    """Module and bytes of each row: of its parameter, as a state has its parameter's size."""
    return list(
        zip(window.module[rows].tolist(), window.lives.requested[rows].tolist(), strict=True)
    )


RULE = SecondStates()
