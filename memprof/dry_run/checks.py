"""Lets checks of `torch.distributions` pass in a dry run, whose values nobody computed.

A distribution on the device asks whether all its parameters are allowed, reads "no", as every
condition reads in a dry run, and would raise. In a program that works on a card they are allowed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from memprof.cpython.import_hook import ImportWatch

__all__ = ["DistributionChecks"]

_MODULE = "torch.distributions.distribution"
_CHECKS = ("__init__", "_validate_sample")
_MOST = 8
"""As many answers as the library holds ready; no distribution has so many parameters."""


class DistributionChecks:
    """Answers "yes" to what distributions ask of their parameters while it is open."""

    def __init__(self) -> None:
        self._assume: Any = ctypes.CDLL(None).memprof_dry_run_assume
        self._watch: ImportWatch | None = None
        self._undo: list[Callable[[], None]] = []

    def open(self) -> None:
        """Begin, now or when distributions are imported."""
        if _MODULE in sys.modules:
            self._wrap()
        else:
            self._watch = ImportWatch(_MODULE, self._wrap)
            self._watch.start()

    def close(self) -> None:
        """Leave torch as it was."""
        if self._watch is not None:
            self._watch.stop()
        while self._undo:
            self._undo.pop()()

    def _wrap(self) -> None:
        owner = sys.modules[_MODULE].Distribution
        for name in _CHECKS:
            original = getattr(owner, name)
            setattr(owner, name, self._answering_yes(original))
            self._undo.append(partial(setattr, owner, name, original))

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
