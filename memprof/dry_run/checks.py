"""Lets checks of `torch.distributions` pass in a dry run, whose values nobody computed.

A distribution on the device asks whether all its parameters are allowed, reads "no", as every
condition reads in a dry run, and would raise. In a program that works on a card they are allowed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from memprof.dry_run.wrapped_module import WrappedModule

__all__ = ["DistributionChecks"]

_CHECKS = ("__init__", "_validate_sample")
_MOST = 8
"""As many answers as the library holds ready; no distribution has so many parameters."""


class DistributionChecks(WrappedModule):
    """Answers "yes" to what distributions ask of their parameters while it is open."""

    name = "torch.distributions.distribution"

    def __init__(self) -> None:
        """Find the library, which gives the answers."""
        super().__init__()
        self._assume: Any = ctypes.CDLL(None).memprof_dry_run_assume

    def wrap(self, module: ModuleType) -> None:
        """Every distribution asks in these methods."""
        for name in _CHECKS:
            self.wrap_function(module.Distribution, name, self._answering_yes)

    def _answering_yes(self, original: Callable[..., Any]) -> Callable[..., Any]:
        answers = (ctypes.c_uint64 * _MOST)(*[1] * _MOST)

        @wraps(original)
        def call(*arguments: Any, **keywords: Any) -> Any:
            self._assume(answers, _MOST)
            try:
                return original(*arguments, **keywords)
            finally:
                self._assume(None, 0)

        return call
