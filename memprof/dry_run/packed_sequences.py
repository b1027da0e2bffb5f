"""Lets `transformers` see in a dry run that a batch has no sequences packed one after another.

A model asks the device at every forward pass without an attention mask whether positions begin anew
within a row. No kernel answers, and what is read says that they do: a mask of every token by every
token would be made, and attention by it, which no card makes for an ordinary batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from types import ModuleType
from typing import Any

from memprof.dry_run.wrapped_module import WrappedModule

__all__ = ["PackedSequences"]

_FUNCTION = "find_packed_sequence_indices"


class PackedSequences(WrappedModule):
    """Answers from the positions that the host copied in; those that a kernel made begin once."""

    name = "transformers.masking_utils"

    def wrap(self, module: ModuleType) -> None:
        """The function that asks; a `transformers` without it is left alone."""
        if hasattr(module, _FUNCTION):
            self.wrap_function(module, _FUNCTION, _by_what_the_host_knows)


def _by_what_the_host_knows(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(original)
    def call(position_ids: Any) -> Any:
        packed = original(position_ids)  # whose tensors a card makes as well
        if packed is None or not position_ids.is_cuda:
            return packed
        # One row that stands for all is read alone: a copy of all rows would be the card's memory.
        rows = position_ids if position_ids.stride(0) else position_ids[:1]
        return packed if any(map(_begins_anew, rows.tolist())) else None

    return call


def _begins_anew(row: list[int]) -> bool:
    """Whether positions are known, and not each one more than the one before."""
    return any(row) and any(later - earlier != 1 for earlier, later in pairwise(row))
