"""What stays for many steps without belonging to a model: copies, caches, old graphs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from memprof.analysis.suspicion import Pattern, Suspicion
from memprof.source_code.bindings import binding_of
from memprof.source_code.dataflow import flow_of
from memprof.trace import Category
from memprof.views.peak_without import Saving
from memprof.views.window import Bools, Window

__all__ = ["residents"]

_LONG = 2
"""Step ends that a tensor must outlive to be called resident."""
_FEWEST_STEPS = 4
_LARGE_RESIDENT_SHARE = 0.3
_LOADING = re.compile(r"/torch/serialization\.py$|/safetensors/")
_RESTING = frozenset(
    ("deepcopy", "is_tensor", "isinstance", "len", "load_state_dict", "print", "save", "type")
)
"""Calls that compute nothing with the weights that they are given."""


def residents(window: Window) -> Iterator[Suspicion]:
    """Long-lived bytes that no category explains."""
    if len(window.steps) < _FEWEST_STEPS:
        return
    free = ~window.owned & window.at_peak & (window.freed_in > window.made_in)
    yield from _loaded(window)
    yield from _copies(window)
    yield from _unexplained(window, free & _long(window))


def _long(window: Window) -> Bools:
    long: Bools = window.freed_in - window.made_in >= _LONG
    return long


def _without(window: Window, mask: Bools) -> Saving:
    return window.replayed(window.whole(np.flatnonzero(mask)))


def _loaded(window: Window) -> Iterator[Suspicion]:
    """Tensors loaded from files and no model's own: kept for the whole run, or for the peak."""
    stacks = window.trace.tables.stacks
    loading = np.array(
        [any(_LOADING.search(window.trace.tables.frames[i].filename.replace("\\", "/")) for i in s)
         for s in stacks]
    )  # fmt: skip
    loaded = ~window.owned & window.at_peak & loading[window.lives.stack]
    mask = loaded & _long(window) & (window.freed_in > window.made_in)
    passing = not mask.any()
    mask = loaded if passing else mask
    if not mask.any():
        return
    row = window.main_site(mask)
    yield Suspicion(
        Pattern.LOADED,
        row,
        np.flatnonzero(mask),
        0.7 if passing else 0.9,
        "were loaded from files and are there at once"
        if passing
        else "were loaded from a file and are still there beside the model",
        window.bytes_of(mask),
        _without(window, mask),
        {**_binding_facts(window, row), "passing": passing},
    )


def _binding_facts(window: Window, row: int) -> dict[str, float | int | str | bool]:
    binding = binding_of(window.stack(row))
    if binding is None:
        return {}
    place = binding.place
    return {
        "target": binding.target,
        "binding_file": place.program.filename,
        "binding_line": place.line,
    }


def _copies(window: Window) -> Iterator[Suspicion]:
    """Sites whose tensors at a step's end have the sizes of the parameters, one for one."""
    requested = window.lives.requested
    there = window.lives.alive_at(window.first_event[int(window.steps[-1])] - 1)
    free = there & ~window.owned
    wanted = Counter(requested[there & (window.category == Category.PARAMETER)].tolist())
    total = sum(size * count for size, count in wanted.items())
    if len(wanted) < 2 or not total:
        return
    for site in np.unique(window.site[free]):
        mask = free & (window.site == site)
        sizes = Counter(requested[mask].tolist())
        if any(size not in sizes for size in wanted):
            continue  # activations may well be as large as the largest weights
        common = sum(size * min(n, wanted[size]) for size, n in sizes.items())
        own = sum(size * n for size, n in sizes.items())
        copies = max(1, round(own / total))
        if common < 0.9 * total or abs(own - copies * total) > 0.1 * total:
            continue
        row = window.largest(mask)
        facts = _binding_facts(window, row)
        facts["rests"] = _rests(window, row)
        if "target" in facts and not facts["rests"]:
            continue  # an average or a reference that the program computes with
        yield Suspicion(
            Pattern.COPY_OF_MODEL,
            row,
            np.flatnonzero(mask),
            0.8 if facts["rests"] else 0.35,
            "are a copy of the model's parameters",
            window.bytes_of(mask),
            _without(window, ~window.owned & (window.site == site)),
            facts,
        )


def _rests(window: Window, row: int) -> bool:
    """True if the program only stores the copy, saves it or loads it back: no arithmetic on it."""
    binding = binding_of(window.stack(row))
    if binding is None:
        return False
    flow = flow_of(window.programs, binding.place, binding.target, through=False)
    return not flow.used_beyond(_RESTING)


def _unexplained(window: Window, free: Bools) -> Iterator[Suspicion]:
    """Much that is no part of a model and stays for the whole run: data, results, old values."""
    mask = free & window.stays & (window.category != Category.ACTIVATION)
    if window.share(window.bytes_of(mask)) < _LARGE_RESIDENT_SHARE:
        return
    row = window.main_site(mask)
    yield Suspicion(
        Pattern.RESIDENT,
        row,
        np.flatnonzero(mask),
        0.3,
        "stay over the steps and are no part of a model",
        window.bytes_of(mask),
        _without(window, mask),
        _binding_facts(window, row),
    )
