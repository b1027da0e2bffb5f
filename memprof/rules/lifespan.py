"""Lifespans in steps: which tensors outlive the step that made them."""

from __future__ import annotations

from memprof.trace import SURVIVOR_AGE
from memprof.views.window import Bools, Window

__all__ = ["FEWEST_STEPS", "outlive_steps"]

FEWEST_STEPS = 4
"""Steps in a recording from which on a tensor that stays can be told from one of the warm-up."""


def outlive_steps(window: Window) -> Bools:
    """Whether each lifetime is a survivor's; none is where there are too few steps to tell."""
    long: Bools = window.freed_in - window.made_in >= SURVIVOR_AGE
    return long & (len(window.steps) >= FEWEST_STEPS)
