"""What torch was doing when a tensor was made, told by the frames of its stack."""

from __future__ import annotations

import re
from collections.abc import Iterable

from memprof.trace import Frame, Phase

__all__ = ["is_optimizer", "phase_of_stack"]

_OPTIMIZER = re.compile(r"/torch/optim/")
_BACKWARD_PYTHON = re.compile(r"/torch/(?:autograd/(?:graph|__init__)|_tensor)\.py$")
_BACKWARD_NAMES = frozenset({"_engine_run_backward", "backward", "grad", "apply"})
_BACKWARD_NATIVE = re.compile(r"torch::autograd::(?:Engine|python::PythonEngine|Node::operator)")
_FORWARD = frozenset({"_call_impl", "_wrapped_call_impl", "_slow_forward", "forward"})
"""torch's own frames around a module's `forward` are missing from some recordings."""


def phase_of_stack(frames: Iterable[Frame]) -> Phase:
    """The part of a step that a stack belongs to; `Phase.UNKNOWN` without frames."""
    frames = tuple(frames)
    if not frames:
        return Phase.UNKNOWN
    if any(map(is_optimizer, frames)):
        return Phase.OPTIMIZER
    if any(map(_is_backward, frames)):
        return Phase.BACKWARD
    if any(frame.name in _FORWARD for frame in frames):
        return Phase.FORWARD
    return Phase.OTHER


def is_optimizer(frame: Frame) -> bool:
    """Whether it is a function of torch's optimizers that an optimizer's step calls."""
    return frame.name != "zero_grad" and _OPTIMIZER.search(_path(frame)) is not None


def _is_backward(frame: Frame) -> bool:
    if _BACKWARD_NATIVE.search(frame.name):
        return True
    return frame.name in _BACKWARD_NAMES and _BACKWARD_PYTHON.search(_path(frame)) is not None


def _path(frame: Frame) -> str:
    return frame.filename.replace("\\", "/")
