"""Why a device ran out of memory, what filled it, what was asked, and what would have helped.

What happened is read in `failures`, changes are replayed in `rescues`; here it is weighed and told.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.allocator.settings import recorded_settings, segment_reserve
from memprof.errors import MissingError
from memprof.oom import other_libraries as beside
from memprof.oom.block_callers import blocks_by_size, callers
from memprof.oom.failed_allocation import Failure, failures
from memprof.oom.layouts import Layout, idle_bytes, layouts
from memprof.oom.remedies import Rescues, rescues
from memprof.oom.stale_blocks import Moment, left_behind, main_site
from memprof.records import is_out_of_memory
from memprof.run import Run
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import NOT_RECORDED, Frame
from memprof.units import format_bytes, format_count
from memprof.views.examination import Examination
from memprof.views.owners import NO_MODULE, Group, top
from memprof.views.sites import NO_SITE, site_name
from memprof.views.steps import allocated_trend
from memprof.views.trend import Trend
from memprof.what_if.changed_run import OUTSIDE_TORCH

__all__ = ["OomCause", "PostMortem", "Weight", "in_a_line", "post_mortems"]

_TOP = 8
_SCATTERED = 0.05
"""Unused share of what torch could have, below which the device was just full."""
_MOST = 0.5
"""Share of the live bytes that a leak must have made, where what was missing is not known."""
_RISING = 0.9
"""Share of pairs of steps between which bytes rose, from which counters alone tell of a leak."""


class OomCause(str, enum.Enum):
    """Why the request could not be served; the values are those of ``memprof oom --json``."""

    LEAK = "leak"
    """What steps long over left behind would have been enough."""
    FRAGMENTATION = "fragmentation"
    """Enough bytes were unused, but in no piece that was large enough and the request's to have."""
    PEAK = "peak"
    """The step itself needs more than there is."""
    OTHERS = "others"
    """Other processes, or other libraries of this one, held what was missing."""
    RESERVED = "reserved"
    """torch held, without using it, what a library beside it needed."""
    LIMIT = "limit"
    """``set_per_process_memory_fraction`` kept torch from memory that was free, or the request is
    larger than ``expandable_segments_reserve`` lets one segment be."""
    UNKNOWN = "unknown"
    """Too little was recorded to tell."""


@dataclass(frozen=True, slots=True)
class Weight:
    """How many bytes speak for a cause."""

    cause: OomCause
    bytes: int
    enough: bool
    """Without them the request would have been served, as far as bytes alone tell."""
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class PostMortem:
    """One device's last failed allocation, explained."""

    failure: Failure
    cause: OomCause
    line: str
    why: str
    weights: tuple[Weight, ...]
    """Every cause that has bytes for it, the heaviest first."""
    asked_by: str
    """``train.py:31 in forward``; empty where not known."""
    shortage: int
    """Bytes that were missing; 0 where enough were there in pieces, -1 where not known."""
    categories: tuple[Group, ...]
    modules: tuple[Group, ...]
    sites: tuple[Group, ...]
    blocks: tuple[Group, ...]
    """By size, where most bytes have no line; else empty."""
    callers: tuple[Group, ...]
    """By the line that called the one above; empty where each line has one caller."""
    inferred: bool
    """Categories were guessed from stacks, or taken from a step that was recorded before."""
    growth: Trend | None
    """Of allocated bytes at step ends before it happened."""
    rescues: Rescues
    advice: tuple[str, ...]
    """What would have left room to a library or the driver, the surest first; or which setting
    refuses the request. Not replayed."""
    layouts: tuple[Layout, ...]
    """Of a final state alone: what its tensors would take otherwise."""


def post_mortems(
    run: Run, workers: int | None = None, examination: Examination | None = None
) -> tuple[PostMortem, ...]:
    """The post-mortem of every device that ran out of memory, the latest first.

    ``examination`` is that of the run, if it is there already.

    Raises:
        MissingError: the recording has events, and none of them is a failed allocation.
    """
    all_failures = failures(run, examination)
    if not all_failures:
        raise MissingError(f"{run.source or 'the run'} records no out-of-memory error", _hint(run))
    return tuple(_explain(run, failure, workers) for failure in all_failures)


def _hint(run: Run) -> str:
    status = run.footer.status if run.footer is not None else ""
    if is_out_of_memory(status):
        return f"the program did end by it ({status}), but what memory held then was not recorded"
    if any(device.windows or len(device.steps) for device in run.devices):
        return "`memprof report` shows its peak; `memprof what-if FILE --gpu 8GiB` tries a card"
    return "it holds no memory of any device; record with `memprof run train.py`"


def _explain(run: Run, failure: Failure, workers: int | None) -> PostMortem:
    steps = next(d.steps for d in run.devices if d.device == failure.device)
    trend = allocated_trend(steps)
    weights = tuple(sorted(_weights(failure, trend), key=lambda w: (not w.enough, -w.bytes)))
    cause, why = _judge_cause(failure, weights)
    window = failure.window
    alive = window.lives.alive_at(failure.event) if window else np.zeros(0, dtype=bool)
    sizes = window.lives.size if window else np.zeros(0, dtype=np.int64)
    groupings = (window.owners.category, window.owners.module, window.owners.line) if window else ()
    groups = [tuple(top(grouping, sizes, alive, _TOP)) for grouping in groupings]
    categories, modules, lines = groups or _recorded_groups(failure)
    return PostMortem(
        failure=failure,
        cause=cause,
        line=_line(failure, cause),
        why=why,
        weights=weights,
        asked_by=asked_by(failure.stack),
        shortage=_shortage(failure),
        categories=categories,
        modules=modules if any(m.name != NO_MODULE for m in modules) else (),
        sites=lines,
        blocks=blocks_by_size(failure, alive),
        callers=callers(failure, alive),
        inferred=bool(window and window.owners.inferred),
        growth=trend,
        rescues=rescues(failure, workers),
        advice=tuple(_advice(failure)),
        layouts=layouts(window.trace) if window and failure.recorded == "state" else (),
    )


def _recorded_groups(failure: Failure) -> list[tuple[Group, ...]]:
    """Live bytes by owner as the job itself wrote them down: categories, modules, lines."""
    lines: dict[str, int] = {}
    for stack, size in failure.live_stacks:
        name = asked_by(stack) or site_name(NO_SITE)
        lines[name] = lines.get(name, 0) + size
    return [_largest_groups(failure.live_categories), (), _largest_groups(lines)]


def _largest_groups(sums: Mapping[str, int]) -> tuple[Group, ...]:
    order = sorted(sums, key=lambda name: -sums[name])[:_TOP]
    return tuple(Group(name, int(sums[name]), 0, i) for i, name in enumerate(order))


# -- the cause ---------------------------------------------------------------------------------


def _shortage(failure: Failure) -> int:
    if min(failure.requested, failure.limit, failure.allocated) < 0:
        return -1
    needed = failure.allocated + max(failure.pending, 0) + failure.requested
    return max(needed - failure.limit, 0)


def _weights(failure: Failure, trend: Trend | None) -> Iterator[Weight]:
    shortage = _shortage(failure)
    if failure.requested >= 0 and failure.unused >= 0:
        room = failure.unused + failure.attainable
        is_scattered = failure.unused >= _SCATTERED * failure.limit
        enough = shortage == 0 and room >= failure.requested and is_scattered
        unused, requested = format_bytes(room), format_bytes(failure.requested)
        why = f"{unused} were unused or free when {requested} were asked"
        if enough:
            why += f": enough, but {_in_pieces(failure)}"
        yield Weight(OomCause.FRAGMENTATION, failure.unused, enough, why)
    yield from _leak_weights(failure, trend, shortage)
    yield from _foreign_weights(failure, shortage)


def _in_pieces(failure: Failure) -> str:
    largest = max(failure.largest_free, failure.attainable)
    piece = "of that size" if largest < failure.requested else "that such a request is given"
    apart = f"; {format_bytes(failure.apart)} of it belong to other streams or pools"
    sentence = f"in no piece {piece} (largest {format_bytes(largest)})"
    return sentence + apart * (failure.apart > 0)


def _leak_weights(failure: Failure, trend: Trend | None, shortage: int) -> Iterator[Weight]:
    traced_bytes = 0
    if failure.window is not None and failure.recorded == "event":
        moment = Moment.at(failure.window, failure.event)
        rows = left_behind(moment)
        traced_bytes = int(failure.window.lives.size[rows].sum())
        if traced_bytes:
            steps = len(np.unique(moment.made_in[rows]))
            yield Weight(
                OomCause.LEAK,
                traced_bytes,
                0 <= shortage <= traced_bytes,
                f"{format_bytes(traced_bytes)} were left behind by {format_count(steps)} earlier "
                f"steps, at {main_site(moment, rows)}",
            )
    if trend is not None and trend.bytes_per_step > 0 and trend.rising >= _RISING:
        growth = int(trend.bytes_per_step * (trend.last_step - trend.first_step))
        if growth > traced_bytes:
            yield Weight(
                OomCause.LEAK,
                growth,
                0 <= shortage <= growth,
                f"allocated bytes rose by {trend}, {format_bytes(growth)} in all",
            )


def _foreign_weights(failure: Failure, shortage: int) -> Iterator[Weight]:
    foreign = failure.outside - OUTSIDE_TORCH if failure.outside >= 0 else -1
    if foreign > 0:
        others = failure.others
        whose = (
            f"{format_bytes(others)} of it by other processes{_names(failure)}"
            if others >= 0
            else "by other processes, or by libraries of this one beside torch"
        )
        yield Weight(
            OomCause.OTHERS,
            foreign,
            0 < shortage <= _gain(failure, foreign),
            f"{format_bytes(failure.outside)} of the device were held outside torch, {whose}",
        )
    barred_bytes = failure.reserved + failure.free - failure.limit if failure.limit >= 0 else 0
    if barred_bytes > 0:
        yield Weight(
            OomCause.LIMIT,
            barred_bytes,
            0 < shortage <= barred_bytes,
            f"set_per_process_memory_fraction({failure.fraction:g}) kept "
            f"{format_bytes(barred_bytes)} of free memory from torch",
        )


def _gain(failure: Failure, foreign: int) -> int:
    """What torch could have had more, had others not held ``foreign`` bytes."""
    most = failure.reserved + failure.free + foreign
    return (min(most, failure.allowed) if failure.allowed >= 0 else most) - failure.limit


def _names(failure: Failure) -> str:
    most = sorted(failure.neighbours, key=lambda n: -n.bytes)[:3]
    processes = [f"{n.name or 'process'} {n.pid}" for n in most]
    return f" ({', '.join(processes)})" if processes else ""


def _judge_cause(failure: Failure, weights: Sequence[Weight]) -> tuple[OomCause, str]:
    if failure.recorded == "state":
        return OomCause.UNKNOWN, _of_a_state(failure)
    if failure.beside:
        return _judged_beside(failure)
    if _exceeds_reserve(failure):  # whatever else was short, it could not have been served
        reserve, requested = _reserve(failure), format_bytes(failure.requested)
        return OomCause.LIMIT, (
            f"expandable_segments_reserve lets a segment have {format_bytes(reserve)}, and no "
            f"request spans two: one of {requested} is refused whatever is free"
        )
    enough = [weight for weight in weights if weight.enough]
    if enough:
        return enough[0].cause, enough[0].why
    if _shortage(failure) < 0:
        return _without_a_limit(failure, weights)
    if not _shortage(failure):
        return OomCause.PEAK, (
            f"tensors filled the device but for {format_bytes(max(failure.unused, 0))} in pieces"
        )
    if failure.requested > failure.limit:
        return OomCause.PEAK, (
            f"the request alone is larger than the {format_bytes(failure.limit)} that torch could "
            "have had: look for a wrong shape or a broadcast that was not meant"
        )
    lacking = format_bytes(_shortage(failure))
    return OomCause.PEAK, (
        f"{lacking} were missing even with every unused byte, and nothing that earlier steps left "
        "or that others held would have made up for it"
    )


def _reserve(failure: Failure) -> int:
    """Bytes that an expandable segment could have then; `NOT_RECORDED` where none was set."""
    if failure.window is None:
        return NOT_RECORDED
    reserve = segment_reserve(failure.window.trace.settings, failure.total)
    return NOT_RECORDED if reserve is None else reserve


def _exceeds_reserve(failure: Failure) -> bool:
    """Whether the request was larger than a segment, which consists of whole pages."""
    reserve = _reserve(failure)
    if failure.window is None or reserve < 0:
        return False
    page = recorded_settings(failure.window.trace.settings).large_segment_size
    return -(-reserve // page) * page < failure.requested


def _advice(failure: Failure) -> Iterator[str]:
    if failure.beside:
        yield from beside.advice_for(failure)
    elif _exceeds_reserve(failure):
        yield (
            f"an expandable_segments_reserve of at least {format_bytes(failure.requested)} in "
            "PYTORCH_CUDA_ALLOC_CONF, or none: addresses cost no memory"
        )


def _judged_beside(failure: Failure) -> tuple[OomCause, str]:
    nbytes = beside.held_by(failure)
    if beside.is_reserved(failure):
        return OomCause.RESERVED, nbytes
    if beside.is_others(failure):
        return OomCause.OTHERS, nbytes
    if beside.is_full(failure):
        return OomCause.PEAK, f"{nbytes}; tensors held {format_bytes(failure.allocated)}"
    return OomCause.UNKNOWN, nbytes


def _without_a_limit(failure: Failure, weights: Sequence[Weight]) -> tuple[OomCause, str]:
    """On a host, or with a silent driver: only what most of the live bytes were can be told."""
    why = "what the device had free then is not in the file"
    leak = next((weight for weight in weights if weight.cause is OomCause.LEAK), None)
    if leak is not None and leak.bytes >= _MOST * failure.allocated > 0:
        return OomCause.LEAK, f"{why}, but {leak.why}"
    return OomCause.UNKNOWN, why


def _of_a_state(failure: Failure) -> str:
    unused, largest = format_bytes(failure.unused), format_bytes(failure.largest_free)
    end = failure.window.trace.end if failure.window else None
    idle = idle_bytes(end) if end is not None else 0
    if idle >= _SCATTERED * failure.reserved:
        then = (
            f"{format_bytes(idle)} of segments held no tensor: torch gives such a cache back "
            "before it fails, so this is not how it was when memory ran out"
        )
    elif failure.unused >= _SCATTERED * failure.reserved:
        then = f"if it did, {unused} lay unused, but in pieces of at most {largest}"
    else:
        then = f"if it did, tensors filled all but {unused} of what torch held"
    return (
        "the file holds a final state and no event, so neither whether memory ran out nor what was "
        f"asked is in it; {then}"
    )


_IN_WORDS = {
    OomCause.LEAK: "because of a leak",
    OomCause.FRAGMENTATION: "because of fragmentation",
    OomCause.PEAK: "at the peak of a single step",
    OomCause.OTHERS: "because of memory held outside torch",
    OomCause.RESERVED: "because torch kept what it did not use",
    OomCause.LIMIT: "because of the limit that the program set",
    OomCause.UNKNOWN: "",
}


def _line(failure: Failure, cause: OomCause) -> str:
    if failure.recorded == "state":
        allocated, whole = format_bytes(failure.allocated), format_bytes(failure.reserved)
        return f"{failure.device} held {allocated} in tensors, {whole} reserved, at the snapshot"
    is_plain = failure.beside and cause is OomCause.PEAK  # how much was asked is not known
    return in_a_line(failure, "" if is_plain else _IN_WORDS[cause])


def in_a_line(failure: Failure, because: str = "") -> str:
    """The device that ran out of memory, why, what was asked and what it had free."""
    if failure.beside:
        return f"{failure.device} ran out of memory {because}".rstrip() + (
            f": {beside.what_failed(failure)}"
        )
    request = f": {format_bytes(failure.requested)} asked" if failure.requested >= 0 else ""
    free = f", {format_bytes(failure.free)} free on the device" if failure.free >= 0 else ""
    return f"{failure.device} ran out of memory {because}".rstrip() + request + free


# -- lines -------------------------------------------------------------------------------------


def asked_by(stack: Sequence[Frame]) -> str:
    """The user's own line on a stack; empty where there is none."""
    own = [frame for frame in stack if frame_kind(frame.filename) is FrameKind.USER]
    if own:
        return site_name(own[0])
    return site_name(max(stack, key=lambda f: frame_kind(f.filename))) if stack else ""
