"""Rules for the caching allocator: settings against holes, private pools, bytes for others."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.allocator import parse_settings
from memprof.errors import MemprofError
from memprof.rules.case import Case, Proposal
from memprof.rules.finding import Kind
from memprof.trace import EMPTY, BlockState, State
from memprof.units import format_bytes
from memprof.views.peak_without import Saving
from memprof.what_if.candidate_settings import brings
from memprof.what_if.replay import replay

__all__ = ["rules", "settings_against_holes"]

_MOST_EVENTS = 200_000
"""A longer recording is replayed by `memprof what-if`, when someone asks."""
_LEAST_SHARE = 0.05
_SETTINGS = (
    (
        "expandable_segments",
        "expandable_segments:True",
        0.9,
        "expandable segments grow in place instead of leaving holes",
    ),
    (
        "max_split_size",
        "max_split_size_mb:128",
        0.5,
        "`max_split_size_mb:128` keeps large blocks whole",
    ),
)
"""Fix, settings, certainty, and how it helps."""
_WORTH_A_CALL = 64 << 20


def rules(case: Case) -> Iterator[Proposal]:
    """``expandable_segments``, ``share_pool`` and their kin."""
    if case.found.kind is Kind.FRAGMENTATION:
        yield from settings_against_holes(case)
    if case.grows:
        yield from _private_pools(case)
    if case.found.kind is Kind.NON_TORCH:
        yield from _needed_elsewhere(case)


def _settings(case: Case) -> tuple[tuple[str, str, float, str], ...]:
    """Those of `_SETTINGS` that the recording does not have; where segments expand, none helps."""
    if case.trace is None:
        return _SETTINGS
    new = [one for one in _SETTINGS if brings(parse_settings(one[1]), [case.trace])]
    return tuple(new) if _SETTINGS[0] in new else ()


def settings_against_holes(case: Case) -> Iterator[Proposal]:
    """Settings of the allocator that leave fewer holes, unless a replay says that they do not."""
    idle = format_bytes(case.found.bytes)
    why = f"{idle} are reserved and in no use"
    settings = _settings(case)
    known = _replayed(case, [text for _, text, _, _ in settings])
    for fix, text, certainty, how in settings:
        saving = known.get(text)
        if saving is not None and saving.bytes < _LEAST_SHARE * saving.before:
            continue  # a replay of the recording says that it does not help here
        shown = f"; a replay reserves {format_bytes(saving.after)}" if saving is not None else ""
        yield Proposal(fix, certainty, f"{why}: {how}{shown}.", case.site, saving=saving)


def _replayed(case: Case, settings: list[str]) -> dict[str, Saving]:
    """Peaks of reserved bytes, as recorded and under each of the settings, by a replay."""
    trace = case.trace
    if trace is None or not settings or not 0 < len(trace.events) <= _MOST_EVENTS:
        return {}
    try:
        (answer,) = replay(trace, settings, workers=1)
    except MemprofError:  # a recording that cannot be replayed has no figure
        return {}
    recorded = answer.rows[0].outcome.peak_reserved
    return {
        row.configuration: Saving(recorded, row.outcome.peak_reserved)
        for row in answer.rows
        if row.configuration in settings
    }


def _private_pools(case: Case) -> Iterator[Proposal]:
    """Growth in memory pools of their own, as every captured CUDA graph has one."""
    allocs = case.found.evidence.allocs
    if case.trace is None or not len(allocs):
        return
    pools = np.unique(case.trace.events.pool[allocs])
    if int((pools > EMPTY).sum()) < 2:
        return
    for call, place in case.calls("graph", "capture_begin", "make_graphed_callables"):
        if "cuda" in ast.unparse(call.func):
            yield Proposal(
                "share_pool",
                0.92,
                f"{len(pools)} graphs were captured, each with a memory pool of its own: pass one "
                "`pool=torch.cuda.graph_pool_handle()` to all.",
                place,
            )
            return
    yield Proposal("share_pool", 0.7, f"It grows over {len(pools)} private pools.", case.site)


def _needed_elsewhere(case: Case) -> Iterator[Proposal]:
    """Memory outside torch grows while torch holds segments that no tensor is in."""
    device = case.run.device(case.found.device)
    if device is None or not device.windows or device.windows[-1].modelled:
        return
    state = device.windows[-1].end
    idle = _whole_free_segments(state) if state is not None else 0
    if idle >= _WORTH_A_CALL:
        yield Proposal(
            "empty_cache",
            0.5,
            f"{format_bytes(idle)} of segments hold no tensor: once before the part outside torch "
            "needs memory, it can be given back.",
            case.site,
        )


def _whole_free_segments(state: State) -> int:
    """Bytes of segments without a block in use: what ``empty_cache`` gives back."""
    blocks = state.blocks
    used = np.unique(blocks.segment[blocks.state != BlockState.INACTIVE])
    free = ~np.isin(np.arange(len(state.segments)), used)
    return int(state.segments.size[free].sum())
