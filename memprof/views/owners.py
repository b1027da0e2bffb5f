"""Whose bytes they are: lifetimes grouped by category, module path, site, phase or stack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.trace import Category, Phase, Trace
from memprof.views.infer_category import infer
from memprof.views.lifetimes import Lifetimes
from memprof.views.sites import Sites, site_name, sites

__all__ = [
    "CATEGORY_NAMES",
    "NO_MODULE",
    "OWNED",
    "PHASE_NAMES",
    "UNKNOWN_CATEGORY",
    "UNKNOWN_PHASE",
    "Group",
    "Grouping",
    "OwnerGroupings",
    "common_module",
    "owners",
    "top",
]

OWNED = tuple(
    int(c)
    for c in (
        Category.PARAMETER,
        Category.BUFFER,
        Category.GRADIENT,
        Category.OPTIMIZER_STATE,
        Category.GRADIENT_BUCKET,
        Category.GATHERED_PARAMETER,
        Category.COMMUNICATION_BUFFER,
    )
)
"""Categories of what a model and its optimizer are made of, and of what parallel training adds."""

Bytes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """A name for every lifetime: ``names[of[row]]``."""

    names: tuple[str, ...]
    of: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """The part of a sum that one name has."""

    name: str
    bytes: int
    count: int
    index: int
    """In the grouping's names; -1 for what was lumped together."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnerGroupings:
    """The lifetimes of a trace under every grouping that reports show."""

    category: Grouping
    """``names`` are those of `Category`, in order, in words."""
    module: Grouping
    site: Grouping
    phase: Grouping
    inferred: bool
    """Categories and phases were guessed from stacks, not recorded."""
    sites: Sites
    origin: Bytes
    """Row in ``sites.frames`` of the forward line whose backward pass made each; 0 elsewhere."""
    line: Grouping
    """For people: the site, and of a backward pass the forward line that it is of, where known."""


CATEGORY_NAMES = tuple(c.name.lower().replace("_", " ") for c in Category)
PHASE_NAMES = tuple(p.name.lower() for p in Phase)
UNKNOWN_CATEGORY = CATEGORY_NAMES[Category.UNKNOWN]
UNKNOWN_PHASE = PHASE_NAMES[Phase.UNKNOWN]
NO_MODULE = "(no module)"
"""The name of the group of what no module made."""


def owners(trace: Trace, lives: Lifetimes) -> OwnerGroupings:
    """The groupings of ``lives``, recorded where the trace says and inferred where it does not."""
    labels = trace.tables.labels
    category = lives.category.astype(np.int64)
    phase = np.array([int(label.phase) for label in labels], dtype=np.int64)[lives.label]
    is_inferred = not category.any() and not phase.any()
    if is_inferred:
        guess = infer(trace, lives)
        category, phase = guess.category.astype(np.int64), guess.phase.astype(np.int64)
    places = sites(trace.tables)
    site = places.of_stack[lives.stack].astype(np.int64)
    names = tuple(site_name(frame) for frame in places.frames)
    origin = _origins(trace, lives, places)
    passes = tuple(f"{name} (backward pass)" for name in names)
    return OwnerGroupings(
        category=Grouping(CATEGORY_NAMES, category),
        module=_by_module(trace, lives),
        site=Grouping(names, site),
        phase=Grouping(PHASE_NAMES, phase),
        inferred=is_inferred,
        sites=places,
        origin=origin,
        line=Grouping(names + passes, np.where(origin > 0, origin + len(names), site)),
    )


def _origins(trace: Trace, lives: Lifetimes, places: Sites) -> Bytes:
    stack = np.zeros(len(lives), dtype=np.int64)
    made = lives.alloc >= 0
    stack[made] = trace.events.origin[lives.alloc[made]]
    return places.of_stack[stack].astype(np.int64)


def _by_module(trace: Trace, lives: Lifetimes) -> Grouping:
    index: dict[str, int] = {NO_MODULE: 0}
    rows = [
        index.setdefault(label.module, len(index)) if label.module else 0
        for label in trace.tables.labels
    ]
    return Grouping(tuple(index), np.array(rows, dtype=np.int64)[lives.label])


def top(grouping: Grouping, sizes: Bytes, mask: npt.NDArray[np.bool_], most: int) -> list[Group]:
    """The ``most`` largest groups of the lifetimes in ``mask``, and the rest as one, by bytes."""
    count = len(grouping.names)
    total = np.bincount(grouping.of[mask], weights=sizes[mask], minlength=count).astype(np.int64)
    number = np.bincount(grouping.of[mask], minlength=count)
    order = [int(i) for i in np.argsort(-total, kind="stable") if number[i]]
    groups = [Group(grouping.names[i], int(total[i]), int(number[i]), i) for i in order[:most]]
    rest = order[most:]
    if rest:
        sum_of_rest = int(total[rest].sum()), int(number[rest].sum())
        groups.append(Group(f"({len(rest)} others)", *sum_of_rest, index=-1))
    return groups


def common_module(names: Sequence[str]) -> str:
    """The longest module path that all of them are or lie below; empty where there is none."""
    shared: list[str] = []
    for parts in zip(*(name.split(".") for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)
