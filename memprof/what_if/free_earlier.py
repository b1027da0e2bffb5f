"""Changes of a program: what if a site's tensors had been freed at the end of their step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memprof.allocator import Changes, Workload
from memprof.errors import MissingError
from memprof.trace import Action, Frame, Trace
from memprof.views.sites import site_name, sites
from memprof.views.steps import step_of_event

__all__ = ["freed_each_step", "matching_stacks"]

_SUGGESTED = 5


def freed_each_step(trace: Trace, workload: Workload, site: str) -> Changes:
    """Everything allocated at ``site`` is freed at the end of the step it was allocated in.

    Where steps are not known it is freed before the next allocation from the same stack. Blocks of
    the site that were live when the trace began are gone from the start. What was freed earlier
    still stays so.

    Args:
        trace: says where and in which step.
        workload: its workload.
        site: a function, ``file.py`` or ``file.py:12``; any frame of a stack may match.

    Raises:
        MissingError: nothing was allocated there.
    """
    in_site = matching_stacks(trace, site)
    events = trace.events
    rows = np.flatnonzero((events.action == Action.ALLOC) & in_site[events.stack])
    blocks = workload.start.blocks
    start_addresses = blocks.address[(blocks.state > 0) & in_site[blocks.stack]]
    if not len(rows) and not len(start_addresses):
        raise MissingError(f"nothing was allocated at {site!r}", _suggestions(trace))
    steps = step_of_event(trace)
    has_steps = len(steps) > 0 and bool((steps >= 0).any())
    after = _end_of_step(steps, rows) if has_steps else _before_next(events.stack[rows], rows)
    ends = after < len(events) - 1
    return Changes(freed=rows[ends], freed_after=after[ends], freed_initial=start_addresses)


def matching_stacks(trace: Trace, site: str) -> npt.NDArray[np.bool_]:
    """For every stack whether one of its frames is ``site``."""
    matches = [_is_site(frame, site) for frame in trace.tables.frames]
    return np.array([any(matches[i] for i in stack) for stack in trace.tables.stacks], dtype=bool)


def _is_site(frame: Frame, site: str) -> bool:
    path = frame.filename.replace("\\", "/")
    path_end = site.replace("\\", "/")
    if frame.name == path_end:
        return True
    place = f"{path}:{frame.line}"
    return any(p == path_end or p.endswith(f"/{path_end}") for p in (path, place))


def _end_of_step(
    steps: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    last: npt.NDArray[np.int64] = np.searchsorted(steps, steps[rows], side="right") - 1
    return last


def _before_next(
    stacks: npt.NDArray[np.int32], rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The event before the next allocation from the same stack; past the end where none comes."""
    after = np.full(len(rows), np.iinfo(np.int64).max, dtype=np.int64)
    order = np.argsort(stacks, kind="stable")
    same = stacks[order][1:] == stacks[order][:-1]
    after[order[:-1][same]] = rows[order[1:][same]] - 1
    return after


def _suggestions(trace: Trace) -> str:
    site_table = sites(trace.tables)
    rows = np.flatnonzero(trace.events.action == Action.ALLOC)
    sums = np.zeros(len(site_table.frames), dtype=np.int64)
    np.add.at(sums, site_table.of_stack[trace.events.stack[rows]], trace.events.size[rows])
    best = [i for i in np.argsort(-sums)[:_SUGGESTED].tolist() if i and sums[i]]
    names = ", ".join(site_name(site_table.frames[i]) for i in best)
    return f"sites that allocate the most: {names}" if names else "the recording has no stacks"
