"""idle-states: an optimizer has made states for parameters that never get a gradient."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, Program, calls_in
from memprof.trace import EMPTY, Category, Phase
from memprof.units import format_bytes
from memprof.views.stacks import made_through
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_STEP = "step"
_ASKING_FOR_GRADIENTS = ("requires_grad", "requires_grad_")


class IdleStates(WasteRule[Match]):
    """`Ranger(model.parameters())` makes its averages at once, for a frozen backbone as well."""

    name = "idle-states"
    summary = "an optimizer has states for parameters that never get a gradient"
    fixes = ("trained_parameters",)
    yields_to = ("zero-rate", "copied-optimizer", "second-states")

    def matches(self, window: Window) -> Iterator[Match]:
        """States that no step made, of modules without a gradient, beside others that have some."""
        if window.peak.event < 0 or len(window.steps) < FEWEST_STEPS:
            return
        state = (window.category == Category.OPTIMIZER_STATE) & (window.module > 0)
        with_gradient = np.unique(window.module[window.category == Category.GRADIENT])
        idle = state & ~np.isin(window.module, with_gradient)
        if not (state & ~idle).any():
            return  # gradients of this program are known by no module
        idle &= (window.phase != Phase.OPTIMIZER) & (window.lives.stack != EMPTY)
        idle &= ~made_through(window, lambda frame: frame.name.rpartition(".")[2] == _STEP)
        rows = np.flatnonzero(idle & window.at_peak)
        if not len(rows):
            return
        yield Match(
            row=window.main_site(idle & window.at_peak),
            rows=rows,
            nbytes=int(window.lives.size[rows].sum()),
            saving=window.replayed(window.whole(_all_of(window, rows))),
            tentative=not window.reaches_end,  # they may be trained later
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say whose states they are."""
        return "are states of an optimizer for parameters that never get a gradient"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Give the optimizer what is trained alone."""
        if any(_freezes(program) for program in case.everywhere):
            why = "as frozen parameters have no gradient:"
        else:
            why = "as no gradient comes to these: freeze them (`requires_grad_(False)`), and"
        yield Advice(
            "trained_parameters",
            f"{format_bytes(match.nbytes)} are states that no step uses, {why} give the optimizer "
            "those alone that are trained.",
            next(_making(case), case.site),
            typed="[p for p in model.parameters() if p.requires_grad]",
        )


def _freezes(program: Program) -> bool:
    """Whether a file says of anything that it requires gradients, or that it does not."""
    return any(
        isinstance(node, ast.Attribute) and node.attr in _ASKING_FOR_GRADIENTS
        for node in program.nodes
    )


def _all_of(window: Window, rows: Ints) -> Ints:
    """With what their stacks made for the same modules before."""
    lives = window.lives
    alike = np.isin(lives.stack, np.unique(lives.stack[rows])) & (
        window.category == Category.OPTIMIZER_STATE
    )
    return np.flatnonzero(alike & np.isin(window.module, np.unique(window.module[rows])))


def _making(case: Case) -> Iterator[Place]:
    """Statements on the way to the states that hand over a model's parameters."""
    for _, place in case.frames:
        for call in calls_in(place.statement):
            if any(_has_parameters(one) for one in call.args):
                yield place


def _has_parameters(value: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters")
        for node in ast.walk(value)
    )


RULE = IdleStates()
