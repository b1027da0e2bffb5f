"""Backward passes that Python asks for: when one begins, and when it is over.

Where operators are watched one by one, a pass is seen by those that run in it. Elsewhere nothing of
Python's need run in one: so the function is wrapped that `torch.autograd.backward` and
`torch.autograd.grad` give their roots to.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from memprof.sources.loop.main_thread import hands_on, passes_on

__all__ = ["BackwardPasses"]

_NAME = "_engine_run_backward"


class BackwardPasses:
    """Tells of every call of autograd's engine, in the thread that makes it, while it is open."""

    def __init__(self, began: Callable[[Any], None], ended: Callable[[], None]) -> None:
        """``began`` is given what the pass begins at: a tuple of tensors, mostly.

        Neither of them may raise; ``ended`` is called too where the pass raises.
        """
        self._began = began
        self._ended = ended
        self._real: Any = None

    def open(self) -> None:
        """Tell from now on; safe to call twice. A torch without that function is left alone."""
        import torch

        if self._real is None:
            self._real = getattr(torch.autograd, _NAME, None)
            if self._real is not None:
                setattr(torch.autograd, _NAME, self._wrapper())

    def close(self) -> None:
        """Tell no more; safe to call twice. A wrapper of somebody else's stays."""
        import torch

        real, self._real = self._real, None
        if getattr(getattr(torch.autograd, _NAME, None), "watcher", None) is self:
            setattr(torch.autograd, _NAME, real)

    @property
    def code(self) -> CodeType:
        """What the frame runs in which the engine is called."""
        code: CodeType = self._wrapper().__code__
        return code

    @passes_on
    def _wrapper(self) -> Any:
        real = self._real

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if self._real is None:  # closed since, and somebody's wrapper calls this one
                return real(*args, **kwargs)
            self._began(args[0] if args else ())
            try:
                return real(*args, **kwargs)
            finally:
                self._ended()

        run_backward.watcher = self  # type: ignore[attr-defined]
        return hands_on(run_backward)
