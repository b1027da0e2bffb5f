"""Resolution of records that refer to others, once all of a run file has been read.

The recorder numbers windows over all devices, and knows the owner of some bytes late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, zip_longest

import msgspec
import numpy as np

from memprof.records import Finding, Owners, SourceFiles
from memprof.run import Steps
from memprof.runfile.source_digests import MOST_FILES
from memprof.trace import NOT_RECORDED, Action, Blocks, Events, State

__all__ = ["digests", "in_its_place", "renumbered", "with_owners", "without_repeats"]


def without_repeats(steps: Steps) -> Steps:
    """Each row once: a job that was interrupted while it wrote rows may have written them twice."""
    if not len(steps):
        return steps
    rows = np.unique(np.stack([steps.first, steps.last]), axis=1, return_index=True)[1]
    single: Steps = steps.take(np.sort(rows))
    return single


def renumbered(steps: Steps, windows: list[int]) -> Steps:
    """With the place of each window among the device's; another device may have had more."""
    place = dict(zip(windows, range(len(windows)), strict=True))
    numbers, rows = np.unique(steps.window, return_inverse=True)
    places = np.asarray([place.get(n, NOT_RECORDED) for n in numbers.tolist()], dtype=np.int64)
    numbered: Steps = replace(steps, window=places[rows])
    return numbered


def in_its_place(finding: Finding, windows: list[int]) -> Finding:
    """With the place of its window among the device's; -1 where that is not in the file."""
    if "window" not in finding.details:
        return finding
    number = finding.details["window"]
    place = windows.index(number) if isinstance(number, int) and number in windows else NOT_RECORDED
    return msgspec.structs.replace(finding, details={**finding.details, "window": place})


def with_owners(
    events: Events, start: State | None, owners: list[Owners]
) -> tuple[Events, State | None]:
    """The categories and labels that became known late, put where they belong."""
    if not owners:
        return events, start
    category, label = events.category.copy(), events.label.copy()
    blocks = start.blocks if start else Blocks.build()
    block_category, block_label = blocks.category.copy(), blocks.label.copy()
    row_of = {int(a): i for i, a in enumerate(blocks.address)}
    for record in owners:
        late = zip_longest(record.events, record.categories, record.labels)
        for event, value, row in late:
            if 0 <= event < len(category) and events.action[event] == Action.ALLOC:
                category[event] = value
                if row is not None:
                    label[event] = row
        late = zip_longest(record.blocks, record.block_categories, record.block_labels)
        for address, value, row in late:
            if address in row_of:
                block_category[row_of[address]] = value
                if row is not None:
                    block_label[row_of[address]] = row
    if start is not None:
        start = replace(start, blocks=replace(blocks, category=block_category, label=block_label))
    return replace(events, category=category, label=label), start


def digests(files: Sequence[SourceFiles]) -> dict[str, str]:
    """The digests of all records by the names of the files; the first of each counts."""
    pairs = (pair for one in files for pair in zip(one.names, one.digests, strict=False))
    by_name: dict[str, str] = {}
    for name, digest in islice(pairs, MOST_FILES):
        by_name.setdefault(name, digest)
    return by_name
