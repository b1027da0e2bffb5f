"""The optimizers that have stepped, and steps that a gradient scaler leaves out."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["KnownOptimizers", "watch_scalers"]

_METHOD = "_maybe_opt_step"
"""Of `GradScaler`: steps the optimizer unless its gradients hold infinities or NaNs."""


class KnownOptimizers:
    """Optimizers in the order in which they first stepped, as long as they live; it holds none."""

    def __init__(self) -> None:
        """None has stepped."""
        self._refs: dict[int, weakref.ref[Any]] = {}

    def add(self, optimizer: Any) -> None:
        """Note one that steps; it may be known."""
        key = id(optimizer)
        known = self._refs.get(key)
        if known is None or known() is None:
            self._refs[key] = weakref.ref(optimizer, functools.partial(self._forget, key))

    def living(self) -> list[Any]:
        """Those that are alive."""
        found = [ref() for ref in list(self._refs.values())]
        return [optimizer for optimizer in found if optimizer is not None]

    def _forget(self, key: int, ref: object) -> None:
        if self._refs.get(key) is ref:
            del self._refs[key]


def watch_scalers(stepped: Callable[[], int], skipped: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``skipped(optimizer)`` for every step that a scaler leaves out; returns what undoes it.

    No hook of torch tells of them. ``stepped`` counts the steps that optimizers have ended.
    """
    from torch.optim import Optimizer

    kind = _scaler_class()
    original = vars(kind).get(_METHOD) if kind is not None else None
    if original is None:
        return lambda: None
    watching = [True]

    @functools.wraps(original)
    def maybe_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = stepped()
        result = original(self, optimizer, *args, **kwargs)
        # A wrapper that is no optimizer hands on to one that has its own turn.
        if watching and stepped() == before and isinstance(optimizer, Optimizer):
            skipped(optimizer)
        return result

    def undo() -> None:
        watching.clear()
        if vars(kind).get(_METHOD) is maybe_step:  # else somebody wrapped it anew
            setattr(kind, _METHOD, original)

    setattr(kind, _METHOD, maybe_step)
    return undo


def _scaler_class() -> Any:
    """The class below all scalers; before torch 2.3 it was the one of ``torch.cuda.amp``."""
    try:
        from torch.amp import grad_scaler
    except ImportError:
        from torch.cuda.amp import grad_scaler  # type: ignore[no-redef]
    return getattr(grad_scaler, "GradScaler", None)
