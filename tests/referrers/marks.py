"""What tests of holders are skipped for."""

from __future__ import annotations

import pytest
import torch

__all__ = ["reads_saved"]

reads_saved = pytest.mark.skipif(
    not hasattr(torch._C._autograd.SavedTensor, "data"),
    reason="before torch 2.8 a SavedTensor does not tell whether reading it runs a hook",
)
