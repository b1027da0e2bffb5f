"""Lifespans in steps: which tensors outlive the step that made them."""

from __future__ import annotations

from memprof.views.window import Bools, Window

__all__ = ["FEWEST_STEPS", "outlive_steps"]

FEWEST_STEPS = 4
"""Steps in a recording from which on a tensor that stays can be told from one of the warm-up."""
_STEP_ENDS = 2
"""Step ends to outlive: a loop's variable is replaced in the next step, and outlives one."""


def outlive_steps(window: Window) -> Bools:
    """Whether each lifetime outlives two step ends; none does where there are too few steps."""
    long: Bools = window.freed_in - window.made_in >= _STEP_ENDS
    return long & (len(window.steps) >= FEWEST_STEPS)
