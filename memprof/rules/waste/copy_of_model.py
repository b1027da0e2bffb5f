"""copy-of-model: a second set of a model's parameters rests beside the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS
from memprof.rules.references import advice_on_exceptions
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.dataflow import flow_of
from memprof.source_code.lasting_names import Binding, first_binding
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE", "are_copies"]

_TOLERANCE = 0.1
"""Of the parameters' bytes: a state dict also has the buffers, and may lack a head."""
_LEAST_SIZES = 2
"""Different sizes of parameters: a single one is met by chance."""
_RESTING = frozenset(
    ("deepcopy", "is_tensor", "isinstance", "len", "load_state_dict", "print", "save", "type")
)
"""Calls that compute nothing with the weights that they are given."""


class CopyOfModel(WasteRule[Match]):
    """The best weights until now, kept for the end of the training."""

    name = "copy-of-model"
    summary = "a copy of the model's parameters rests on the device"
    fixes = ("cpu_offload", "del_ref", "clear_traceback")
    yields_to = ("idle-copy",)
    names_holders = True

    def matches(self, window: Window) -> Iterator[Match]:
        """Lines whose tensors at a step's end have the sizes of the parameters, one for one.

        Not where the program computes with them: an average or a reference is meant.
        """
        if len(window.steps) < FEWEST_STEPS:
            return
        there = window.lives.alive_at(window.first_event[int(window.steps[-1])] - 1)
        free = there & ~window.has_owner
        requested = window.lives.requested
        parameters = Counter(requested[there & (window.category == Category.PARAMETER)].tolist())
        if len(parameters) < _LEAST_SIZES:
            return
        for site in np.unique(window.site[free]):
            mask = free & (window.site == site)
            if not are_copies(Counter(requested[mask].tolist()), parameters):
                continue
            row = window.largest(mask)
            binding = first_binding(window.stack(row))
            if binding is not None and not _rests(window, binding):
                continue
            every = ~window.has_owner & (window.site == site)
            yield Match(
                row=row,
                rows=np.flatnonzero(mask),
                nbytes=window.bytes_of(mask),
                saving=window.replayed(window.whole(np.flatnonzero(every))),
                # On the host is where a copy should be; elsewhere the source shows its use, or not.
                tentative=binding is None or window.device == "cpu",
            )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what it is a copy of."""
        return "are a copy of the model's parameters"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Keep the copy on the host."""
        nbytes = format_bytes(match.nbytes)
        why = f"A second set of the model's parameters ({nbytes}) rests beside the model"
        yield from advice_on_exceptions(case)
        yield Advice("cpu_offload", f"{why}: keep the copy in host memory.", case.site)
        yield Advice("del_ref", f"{why}: drop it, or save it to a file.", case.site)


def are_copies(sizes: Counter[int], parameters: Counter[int]) -> bool:
    """Whether tensors of these sizes (and numbers) may be one or several sets of the parameters."""
    if any(size not in sizes for size in parameters):
        return False  # activations may well be as large as the largest weights
    total = sum(size * count for size, count in parameters.items())
    shared = sum(size * min(count, parameters[size]) for size, count in sizes.items())
    own = sum(size * count for size, count in sizes.items())
    sets = max(1, round(own / total))
    return shared >= (1 - _TOLERANCE) * total and abs(own - sets * total) <= _TOLERANCE * total


def _rests(window: Window, binding: Binding) -> bool:
    """Whether the program only stores the copy, saves it or loads it back: no arithmetic on it."""
    flow = flow_of(window.programs, binding.place, binding.target, through=False)
    return not flow.used_beyond(_RESTING)


RULE = CopyOfModel()
