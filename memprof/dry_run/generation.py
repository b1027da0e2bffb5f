"""Lets text generation of `transformers` end at its limit of length in a dry run.

Its loop ends when a tensor on the device says that every sequence has, which no kernel writes here:
it would go on until memory runs out. The limit of length is the host's own, and a generation that
reaches it takes the most memory; what else may end one (a token, a sentence) depends on values.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from memprof.cpython.import_hook import ImportWatch

__all__ = ["GenerationLimit"]

_CRITERIA = "transformers.generation.stopping_criteria"
_LOOP = "transformers.generation.utils"


class GenerationLimit:
    """Watches the limit of length of each thread's generation while it is open."""

    def __init__(self) -> None:
        self._limit_state = threading.local()
        self._watch: ImportWatch | None = None
        self._undo: list[Callable[[], None]] = []

    def open(self) -> None:
        """Begin, now or when `transformers` generates for the first time."""
        if _LOOP in sys.modules:
            self._wrap()
        else:
            self._watch = ImportWatch(_LOOP, self._wrap)
            self._watch.start()

    def close(self) -> None:
        """Leave `transformers` as it was."""
        if self._watch is not None:
            self._watch.stop()
        while self._undo:
            self._undo.pop()()

    def _wrap(self) -> None:
        criterion = getattr(sys.modules.get(_CRITERIA), "MaxLengthCriteria", None)
        loop = getattr(sys.modules[_LOOP], "GenerationMixin", None)
        if criterion is not None and hasattr(loop, "_has_unfinished_sequences"):
            self._wrap_function(criterion, "__call__", self._noting_the_limit)
            self._wrap_function(loop, "_has_unfinished_sequences", self._ending_at_the_limit)

    def _wrap_function(self, owner: Any, name: str, wrapped: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, wrapped(original))
        self._undo.append(lambda: setattr(owner, name, original))

    def _noting_the_limit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(criterion: Any, input_ids: Any, *rest: Any, **keywords: Any) -> Any:
            self._limit_state.now = input_ids.shape[-1] >= criterion.max_length
            return original(criterion, input_ids, *rest, **keywords)

        return call

    def _ending_at_the_limit(self, original: Callable[..., bool]) -> Callable[..., bool]:
        @wraps(original)
        def call(model: Any, *rest: Any, **keywords: Any) -> bool:
            if getattr(self._limit_state, "now", False):
                self._limit_state.now = False
                return False
            return original(model, *rest, **keywords)

        return call
