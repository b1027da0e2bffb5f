"""What stays for many steps without belonging to a model: copies, caches, old graphs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from memprof.analysis.suspicion import Pattern, Suspicion
from memprof.source_code.bindings import binding_of
from memprof.source_code.dataflow import flow_of
from memprof.trace import Category, Phase
from memprof.views.peak_without import Saving
from memprof.views.window import Bools, Ints, Window

__all__ = ["residents"]

_LONG = 2
"""Step ends that a tensor must outlive to be called resident."""
_FEWEST_STEPS = 4
_GROWS = 1.4
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
    yield from _autocast_cache(window, free & _long(window))
    yield from _old_graphs(window, _long(window))
    yield from _unused_gradients(window)
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


def _autocast_cache(window: Window, free: Bools) -> Iterator[Suspicion]:
    """Half-size copies of parameters, made in their module's forward and kept over steps."""
    parameter = window.category == Category.PARAMETER
    weights = Counter(_keys(window, np.flatnonzero(parameter), 1))
    candidates = np.flatnonzero(free & (window.phase == Phase.FORWARD))
    keys = _keys(window, candidates, 2)
    # The cache has one copy of a weight; more of that size are activations that look like it.
    copies = Counter(keys)
    rows = [
        row
        for row, key in zip(candidates.tolist(), keys, strict=True)
        if 0 < copies[key] <= weights[key]
    ]
    if len(rows) < 2:
        return
    picked = np.array(rows, dtype=np.int64)
    yield Suspicion(
        Pattern.AUTOCAST_CACHE,
        int(picked[np.argmax(window.lives.size[picked])]),
        picked,
        0.9,
        "are low-precision copies of weights that autocast keeps",
        int(window.lives.size[picked].sum()),
        window.replayed(window.whole(picked)),
        {"copies": len(rows)},
    )


def _keys(window: Window, rows: Ints, times: int) -> list[tuple[int, int]]:
    """Module, and so many times the bytes, of each row."""
    requested = times * window.lives.requested[rows]
    return list(zip(window.module[rows].tolist(), requested.tolist(), strict=True))


def _old_graphs(window: Window, long: Bools) -> Iterator[Suspicion]:
    mask = long & (window.category == Category.ACTIVATION)
    if not mask.any() or _grows(window, mask):
        return
    at_peak = mask & window.at_peak
    if len(set(window.module[at_peak].tolist())) < 2:
        return  # results that were kept, not what lies between them
    row = window.main_site(at_peak)
    steps = len(np.unique(window.made_in[at_peak]))
    rows = np.flatnonzero(mask)
    at = np.array(
        [window.first_event.get(int(s) + 1, window.events) - 1 for s in window.made_in[rows]]
    )
    yield Suspicion(
        Pattern.OLD_GRAPHS,
        row,
        np.flatnonzero(at_peak),
        0.8,
        f"are activations of {steps} earlier steps whose graphs are still held",
        window.bytes_of(at_peak),
        window.replayed(window.ended(rows, at)),
        {"steps": steps, **_binding_facts(window, row)},
    )


def _grows(window: Window, mask: Bools) -> bool:
    """True if there is much more of it at the end than in the middle: then it is a leak."""
    steps = window.steps
    middle = window.first_event[int(steps[len(steps) // 2])]
    last = window.first_event[int(steps[-1])]
    half, end = (window.bytes_of(mask & window.lives.alive_at(event)) for event in (middle, last))
    return bool(end > _GROWS * half)


def _unused_gradients(window: Window) -> Iterator[Suspicion]:
    """Gradients that stay while an optimizer clears others, or that lack state as others have."""
    gradient = window.category == Category.GRADIENT
    gradient &= window.phase == Phase.BACKWARD  # else a buffer that gradients are views of
    forever = gradient & window.stays
    if not forever.any():
        return
    cleared = set(window.module[gradient & ~forever].tolist())
    state = set(window.module[window.category == Category.OPTIMIZER_STATE].tolist())
    others = cleared | state
    if not others:
        return
    unused = {int(m) for m in np.unique(window.module[forever]) if int(m) not in others}
    mask = forever & np.isin(window.module, list(unused))
    if not mask.any():
        return
    backward = (window.phase == Phase.BACKWARD) & np.isin(window.module, list(unused))
    row = _forward_site(window, unused, window.largest(mask))
    names = sorted(window.owners.module.names[m] for m in unused)
    yield Suspicion(
        Pattern.UNUSED_GRADIENTS,
        row,
        np.flatnonzero(mask),
        0.8,
        f"are gradients of {_common(names)} that no optimizer here uses or clears",
        window.bytes_of(mask & window.at_peak),
        _without(window, mask | backward),
        {
            "modules": _common(names),
            "same_root": bool({n.split(".")[0] for n in names} & _roots(window, others)),
        },
    )


def _roots(window: Window, modules: set[int]) -> set[str]:
    return {window.owners.module.names[m].split(".")[0] for m in modules if m}


def _forward_site(window: Window, modules: set[int], otherwise: int) -> int:
    """The row of the largest activation of those modules and their neighbours: of their graph."""
    names = window.owners.module.names
    around = _prefix([names[m] for m in modules])
    near = [at for at, name in enumerate(names) if f"{name}.".startswith(f"{around}.")]
    mask = (window.category == Category.ACTIVATION) & np.isin(window.module, near)
    return window.main_site(mask) if around and mask.any() else otherwise


def _prefix(names: list[str]) -> str:
    """The longest module path that all of them lie below or are."""
    shared = []
    for column in zip(*[name.split(".") for name in names], strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    return ".".join(shared)


def _common(names: list[str]) -> str:
    """``Net.encoder`` for all that lie below it; the first name where they share nothing."""
    prefix = _prefix(names)
    return f"`{prefix}`" if prefix else f"`{names[0]}` and {len(names) - 1} other modules"


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
