"""Changes that would have let a failed allocation succeed, each shown by a replay of its trace.

The trace is replayed up to the failed request on the memory that torch could have had. A change
counts when the recorded program fails there in the model, and the changed one does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from memprof.allocator import (
    NOTHING_CHANGED,
    AllocatorSettings,
    Changes,
    Outcome,
    Workload,
    parse_settings,
    play,
    workload_of,
)
from memprof.allocator.settings import NO_LIMIT
from memprof.oom.checkpointing import recomputable
from memprof.oom.failed_allocation import Failure
from memprof.oom.half_precision import Precision, computes_in, halving, weight_copies
from memprof.oom.resize_batch import BatchSlope, batch_slope, resized
from memprof.oom.stale_blocks import (
    Moment,
    changes_freeing,
    left_behind,
    main_site,
    spare_temporaries,
    stale_gradients,
)
from memprof.trace import Action, Trace
from memprof.units import format_bytes, format_percent
from memprof.views.window import Window
from memprof.what_if.candidate_settings import untried
from memprof.what_if.changed_run import CARDS, OUTSIDE_TORCH
from memprof.what_if.parallel import Job, fitted, played

__all__ = ["Rescue", "Rescues", "rescues"]

_CHEAPEST = (
    *("settings", "limit", "others", "optimizer", "free", "checkpoint", "batch", "bf16", "card"),
)
_CONF = "PYTORCH_CUDA_ALLOC_CONF"
_PROPORTIONAL = "activations and inputs are proportional to it (the trace has one batch size only)"
_SLACK = 20 << 20
_SLACK_SHARE = 0.01
"""The driver cannot give out the very last of what it calls free; more than this is a riddle."""
_LEAST_TOLD = 0.001
"""Of a batch, the smallest part that is told as a figure."""
_CONTEXT = OUTSIDE_TORCH
"""What a process takes beside torch's own bytes stays taken when the others leave."""


@dataclass(frozen=True, slots=True)
class Rescue:
    """One change, and what the replay shows of it."""

    kind: str
    """``settings``, ``limit``, ``others``, ``optimizer``, ``free``, ``checkpoint``, ``batch``,
    ``bf16``, ``card``: the cheapest first."""
    name: str
    """It in few words; of settings, they themselves."""
    change: str
    """What to type or to do, with what it comes to."""
    fits: bool
    """The request is served."""
    limit: int
    """Bytes that torch could hold in this replay."""
    peak_allocated: int
    peak_reserved: int
    spare: int
    """Bytes left to the limit at the peak; what more the job would have needed is not known."""
    assumes: str = ""
    """What the replay takes for granted beyond the recording; empty where nothing."""


@dataclass(frozen=True, slots=True)
class Rescues:
    """All changes that were tried, those that help first; or why none could be."""

    tried: tuple[Rescue, ...] = ()
    unproven: str = ""

    @property
    def fitting(self) -> tuple[Rescue, ...]:
        """Those under which the request is served."""
        return tuple(rescue for rescue in self.tried if rescue.fits)


@dataclass(frozen=True, slots=True, eq=False)
class _Try:
    """A change that is to be replayed."""

    kind: str
    name: str
    limit: int
    settings: AllocatorSettings
    changes: Changes = NOTHING_CHANGED
    afresh: bool = False
    workload: Workload | None = None
    """The program with requests of other sizes; None for the recorded one."""
    assumes: str = ""
    command: str = ""
    """What to type, with ``name`` behind it."""
    detail: str = ""
    """What it comes to, in brackets behind ``name``."""

    @property
    def change(self) -> str:
        """It in full, as `Rescue.change`."""
        return f"{self.command}{self.name}" + (f" ({self.detail})" if self.detail else "")


def rescues(failure: Failure, workers: int | None = None) -> Rescues:
    """Every change that applies, replayed; cheapest first among those that help."""
    if failure.beside:
        return Rescues(
            unproven=f"nobody tells how much {failure.beside} asked for, so nothing was replayed"
        )
    if failure.recorded != "event" or failure.window is None:
        return Rescues(unproven="no trace of the failed allocation, so nothing could be replayed")
    if failure.limit < 0:
        return Rescues(unproven="the file does not say how much the device had free")
    workload = _up_to(failure.window, failure.event)
    limit = min(failure.limit, workload.capacity)
    refused_early = failure.limit - limit > max(_SLACK, _SLACK_SHARE * failure.limit)
    outcome = play(workload, capacity=limit)
    if refused_early or outcome.fits:
        return Rescues(
            unproven="replayed as recorded, the request does not fail: something that the trace "
            "does not show (another allocator's memory, a limit) made it fail"
        )
    if not _fails(outcome, failure.event):
        return Rescues(
            unproven="replayed as recorded, an earlier request fails already: the model does not "
            "follow this recording, so nothing can be shown by it"
        )
    settings, unproven = _settings_tries(failure, failure.window.trace, workload, limit)
    moment = Moment.at(failure.window, failure.event)
    tries = [
        *settings,
        *_room_tries(failure, workload, limit),
        *_leak_tries(moment, workload, limit),
    ]
    if failure.event > 0:  # of a lone request nothing before it is known
        tries += _early_tries(moment, workload, limit)
        tries += _short_tries(failure, moment, workload, limit)
    results = _replay(workload, tries, workers)
    if failure.event > 0:
        results += _batch(moment, workload, limit)
    results.append(_card(failure, workload))
    return Rescues(
        tuple(sorted(results, key=lambda r: (not r.fits, _CHEAPEST.index(r.kind)))), unproven
    )


def _up_to(window: Window, event: int) -> Workload:
    """The program until the failed request; requests that failed before it are left out."""
    failed = window.replay.failed if window.replay is not None else None
    if failed is not None and failed.event == event:
        workload = failed.workload
    else:
        events = window.trace.events.take(slice(0, event + 1))
        workload = workload_of(replace(window.trace, events=events, end=None))
    action = workload.events.action.copy()
    action[:event][action[:event] == Action.OOM] = Action.OTHER
    return replace(workload, events=replace(workload.events, action=action))


def _fails(outcome: Outcome, event: int) -> bool:
    return outcome.oom is not None and outcome.oom.event == event


def _fails_afresh(workload: Workload, limit: int, event: int) -> bool:
    return _fails(play(workload, capacity=limit, afresh=True), event)


def _replay(workload: Workload, tries: list[_Try], workers: int | None) -> list[Rescue]:
    workloads, jobs = [workload], []
    for attempt in tries:
        jobs.append(Job(0, attempt.settings, attempt.limit, attempt.changes, attempt.afresh))
        if attempt.workload is not None:
            jobs[-1] = replace(jobs[-1], workload=len(workloads))
            workloads.append(attempt.workload)
    outcomes = played(workloads, jobs, workers)
    return [_rescue(t, o) for t, o in zip(tries, outcomes, strict=True)]


def _rescue(attempt: _Try, outcome: Outcome) -> Rescue:
    return Rescue(
        kind=attempt.kind,
        name=attempt.name,
        change=attempt.change,
        fits=outcome.fits,
        limit=attempt.limit,
        peak_allocated=outcome.peak_allocated,
        peak_reserved=outcome.peak_reserved,
        spare=max(attempt.limit - outcome.peak_reserved, 0),
        assumes=attempt.assumes,
    )


def _settings_tries(
    failure: Failure, trace: Trace, workload: Workload, limit: int
) -> tuple[list[_Try], str]:
    """Other allocator settings; nothing where what is new in them is only a fresh start."""
    afresh = len(workload.start.blocks) > 0
    if afresh and not _fails_afresh(workload, limit, failure.event):
        return [], (
            "allocator settings were not judged: the recording began in the midst of the job, and "
            "laid out afresh the request would not have failed under the recorded ones either"
        )
    tries = [
        _Try(
            "settings",
            text,
            limit,
            parse_settings(text),
            afresh=afresh,
            command=f"{_CONF}=",
        )
        for text in untried([trace])
    ]
    return tries, ""


def _leak_tries(moment: Moment, workload: Workload, limit: int) -> Iterator[_Try]:
    rows = left_behind(moment)
    if len(rows):
        detail = format_bytes(int(moment.window.lives.size[rows].sum()))
        name = f"free what earlier steps left at {main_site(moment, rows)}"
        changes = changes_freeing(moment, rows)
        yield _Try("free", name, limit, workload.settings, changes, detail=detail)


def _early_tries(moment: Moment, workload: Workload, limit: int) -> Iterator[_Try]:
    """What the step itself could have freed before."""
    settings, size = workload.settings, moment.window.lives.size
    rows = spare_temporaries(moment)
    if len(rows):
        detail = f"{format_bytes(int(size[rows].sum()))} of temporaries for all parameters at once"
        name = "fused=True, or foreach=False, in the optimizer"
        changes = changes_freeing(moment, rows, moment.window.lives.alloc[rows])
        yield _Try("optimizer", name, limit, settings, changes, detail=detail)
    rows = stale_gradients(moment)
    if len(rows):
        detail = format_bytes(int(size[rows].sum()))
        first = int(np.searchsorted(moment.steps, moment.step)) - 1
        name = "zero_grad(set_to_none=True) before the forward pass"
        changes = changes_freeing(moment, rows, np.full(len(rows), first))
        yield _Try("free", name, limit, settings, changes, detail=detail)
    for unit in recomputable(moment):
        name, detail = f"checkpoint {unit.name}", f"{format_bytes(unit.bytes)} of activations"
        changes = changes_freeing(moment, unit.rows, unit.ends)
        yield _Try("checkpoint", name, limit, settings, changes, detail=detail)


def _room_tries(failure: Failure, workload: Workload, limit: int) -> Iterator[_Try]:
    """The same program with the memory that others held, or that a fraction kept from it."""
    other = failure.others if failure.others >= 0 else failure.outside - _CONTEXT
    room = min(limit + other, failure.allowed) if failure.allowed >= 0 else limit + other
    if failure.outside >= 0 and room > limit:
        text = f"without the {format_bytes(other)} that others held on the device"
        yield _Try("others", text, room, workload.settings)
    if failure.fraction < 1 and failure.limit < failure.reserved + failure.free:
        room = failure.reserved + failure.free
        text = f"without set_per_process_memory_fraction({failure.fraction:g})"
        yield _Try("limit", text, room, replace(workload.settings, memory_fraction=None))


def _short_tries(
    failure: Failure, moment: Moment, workload: Workload, limit: int
) -> Iterator[_Try]:
    """Activations of half the size, with autocast's copies of the weights taken from the card."""
    precision, half_mask = computes_in(failure), halving(moment)
    if precision is Precision.SHORT or not half_mask.any():
        return
    copies = weight_copies(moment)
    note = f", {format_bytes(copies)} of cast weights counted" if copies else ""
    unsure = "the activations are float32 (the file does not say)"
    yield _Try(
        "bf16",
        f'torch.autocast("{_kind(failure.device)}", dtype=torch.bfloat16){note}',
        max(limit - copies, 0),
        workload.settings,
        workload=resized(workload, np.where(half_mask, 0.5, 1.0)),
        assumes=unsure if precision is Precision.UNKNOWN else "",
    )


def _kind(device: str) -> str:
    return device.partition(":")[0]


def _batch(moment: Moment, workload: Workload, limit: int) -> Iterator[Rescue]:
    """The largest batch, in per cent of the failed one, with which the request is served."""
    slope = batch_slope(moment)
    if slope is None:
        return
    low, high, best = 0, 100, None
    while high - low > 1:
        percent = (low + high) // 2
        outcome = _with_batch(workload, slope, percent, limit)
        if outcome.fits:
            low, best = percent, outcome
        else:
            high = percent
    if best is None:
        low, best = 1, _with_batch(workload, slope, 1, limit)
    name = (
        f"a batch of at most {low} % of this one" if best.fits else "a smaller batch, even of 1 %"
    )
    detail = f"{format_bytes(slope.live // 100)} for each per cent of it{_measured_at(slope)}"
    assumption = "" if slope.measured else _PROPORTIONAL
    attempt = _Try("batch", name, limit, workload.settings, assumes=assumption, detail=detail)
    yield _rescue(attempt, best)


def _with_batch(workload: Workload, slope: BatchSlope, percent: int, limit: int) -> Outcome:
    return play(resized(workload, slope.factors(percent / 100)), capacity=limit)


def _measured_at(slope: BatchSlope) -> str:
    if slope.measured is None:
        return ""
    other, failed = slope.measured
    which = f"step {other}" if 0 <= other != failed else "an earlier try"
    less = "less than " if slope.ratio < _LEAST_TOLD else ""
    ratio = format_percent(max(slope.ratio, _LEAST_TOLD), 1)
    return f", as {which} showed with a batch of {less}{ratio}"


def _card(failure: Failure, workload: Workload) -> Rescue:
    least = fitted([workload], [Job(0, workload.settings)], 1)[0].bytes
    beside = failure.outside if failure.outside >= 0 else OUTSIDE_TORCH
    share = failure.fraction if 0 < failure.fraction < 1 else 1.0
    # A card reports less than it is sold with: the next size up is the one that it has.
    own = next((c for c in CARDS if c >= failure.total), failure.total)
    room_on = {c: min(c - beside, int(share * c)) for c in CARDS if failure.total < 0 or c > own}
    card = next((c for c, room in room_on.items() if room >= least), 0)
    room = room_on.get(card, least)
    outcome = play(workload, capacity=least) if least < NO_LIMIT else workload.recorded
    name = f"a card of {format_bytes(card)}" if card else "a larger card than any common one"
    name += f", of which torch may hold {share:g}" if share < 1 else ""
    return Rescue(
        kind="card",
        name=name,
        change=f"{name}: torch needs {format_bytes(least)} to get past this request",
        fits=outcome.fits,
        limit=room,
        peak_allocated=outcome.peak_allocated,
        peak_reserved=outcome.peak_reserved,
        spare=room - least,
    )
