"""Lifespans in steps: which tensors outlive the step that made them."""

from __future__ import annotations

import numpy as np

from memprof.trace import SURVIVOR_AGE
from memprof.views.window import Bools, Window

__all__ = ["FEWEST_STEPS", "outlive_steps", "stays_near_peak"]

FEWEST_STEPS = 4
"""Steps in a recording from which on a tensor that stays can be told from one of the warm-up."""


def outlive_steps(window: Window) -> Bools:
    """Whether each lifetime is a survivor's; none is where there are too few steps to tell."""
    long: Bools = window.freed_in - window.made_in >= SURVIVOR_AGE
    return long & (len(window.steps) >= FEWEST_STEPS)


def stays_near_peak(window: Window) -> Bools:
    """What stays over the steps and is no part of a model, of lines that have a part in the peak.

    Parts of it may be the peak, and gone when the rest is there.
    """
    near_peak = np.isin(window.site, np.unique(window.site[window.at_peak]))
    mask: Bools = ~window.has_owner & near_peak & window.stays & outlive_steps(window)
    return mask
