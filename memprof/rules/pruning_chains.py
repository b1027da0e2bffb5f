"""What torch's pruning keeps of the prunings of a weight, and where a program prunes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from memprof.records import Holder
from memprof.source_code.program import Place, Program, calls_in
from memprof.source_code.scopes import qualified_name

__all__ = ["IN_TURN", "is_made_permanent", "pruned_at", "prunings_in_chain"]

IN_TURN = 'if prune.is_pruned(module): prune.remove(module, "weight")'
"""What makes a pruning permanent before the next one."""
_CHAIN = "_pruning_methods"
"""Of `torch.nn.utils.prune.PruningContainer`: all methods that a parameter was pruned by."""
_MODULE = "torch.nn.utils.prune."
_REMOVE = "remove"
_PRUNING = frozenset(
    (
        *("custom_from_mask", "global_unstructured", "identity", "l1_unstructured"),
        *("ln_structured", "random_structured", "random_unstructured"),
    )
)


def prunings_in_chain(holder: Holder) -> int:
    """How often the parameter was pruned whose masks a chain leads to; 0 for other chains."""
    for link, below in pairwise(holder.links):
        if link.name.rpartition(".")[2] == _CHAIN:
            return max(0, below.length)
    return 0


def pruned_at(programs: Sequence[Program]) -> Place | None:
    """The first statement of a program that prunes."""
    return next((place for name, place in _calls(programs) if name in _PRUNING), None)


def is_made_permanent(programs: Sequence[Program]) -> bool:
    """Whether a statement of a program removes masks again.

    Where it prunes by classes, as ``METHODS[name].apply(…)`` does, any ``x.remove(…)`` may.
    """
    if any(name == _REMOVE for name, _ in _calls(programs)):
        return True
    by_methods = pruned_at(programs) is None
    return by_methods and any(calls_in(program.tree, _REMOVE) for program in programs)


def _calls(programs: Sequence[Program]) -> Iterator[tuple[str, Place]]:
    """The functions of torch's pruning that a program calls, each with its statement."""
    for program in programs:
        for call in calls_in(program.tree):
            place = program.place(call)
            name = qualified_name(place, call.func) if place is not None else ""
            if place is not None and name.startswith(_MODULE):
                yield name.removeprefix(_MODULE), place
