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
from types import ModuleType
from typing import Any

from memprof.dry_run.wrapped_module import WrappedModule

__all__ = ["GenerationLimit"]

_CRITERIA = "transformers.generation.stopping_criteria"


class GenerationLimit(WrappedModule):
    """Watches the limit of length of each thread's generation while it is open."""

    name = "transformers.generation.utils"

    def __init__(self) -> None:
        """No thread has reached a limit yet."""
        super().__init__()
        self._limit_state = threading.local()

    def wrap(self, module: ModuleType) -> None:
        """The loop and its criterion; a `transformers` of another form is left alone."""
        criterion = getattr(sys.modules.get(_CRITERIA), "MaxLengthCriteria", None)
        loop = getattr(module, "GenerationMixin", None)
        if criterion is not None and hasattr(loop, "_has_unfinished_sequences"):
            self.wrap_function(criterion, "__call__", self._noting_the_limit)
            self.wrap_function(loop, "_has_unfinished_sequences", self._ending_at_the_limit)

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
