"""Temporaries of an optimizer that works on all parameters at once (``foreach``)."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import Frame, Phase
from memprof.views.stacks import made_through
from memprof.views.window import Bools, Window

__all__ = ["beyond_one_parameter", "multi_tensor_temporaries"]

_MULTI_TENSOR = re.compile(r"_multi_tensor|_foreach|foreach_tensor")
"""What torch calls these functions: ``_multi_tensor_adam``, ``_foreach_add_``, and in C++
``foreach_tensor_add_list_kernel_cuda``."""
_NEEDED_AT_ONCE = 2
"""Temporaries of one parameter, when an optimizer goes through them one by one."""


def multi_tensor_temporaries(window: Window) -> Bools:
    """Whether each lifetime is one: made by such a function in the step, and nobody's to keep."""
    temporary: Bools = (window.phase == Phase.OPTIMIZER) & ~window.has_owner
    return temporary & made_through(window, _is_multi_tensor)


def beyond_one_parameter(
    window: Window, rows: npt.NDArray[np.int64], made_in: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Those of ``rows``, each made in a step, that one parameter after another does without.

    The largest of each step stay: as many as one parameter needs.
    """
    order = np.lexsort((-window.lives.size[rows], made_in))
    steps = made_in[order]
    place = np.arange(len(rows)) - np.searchsorted(steps, steps)
    return rows[order][place >= _NEEDED_AT_ONCE]


def _is_multi_tensor(frame: Frame) -> bool:
    users = frame_kind(frame.filename) is FrameKind.USER  # any function of theirs may be called so
    return not users and _MULTI_TENSOR.search(frame.name) is not None
