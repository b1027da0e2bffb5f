"""A job that converts to the types of two tensors, of which one came of NumPy; no test is here."""

from __future__ import annotations

import torch

from tests.rules.frequencies import STATES, typed_as_frequencies

__all__ = ["of_several_types"]


def of_several_types():
    """Which conversion makes the others wide, the source does not say."""
    step, other = typed_as_frequencies(), torch.ones(STATES)

    def both(number):
        torch.zeros(STATES).to(other.dtype)
        step(number)

    return both
