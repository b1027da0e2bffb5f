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
    Program,
    parse_settings,
    play,
    program_of,
)
from memprof.allocator.settings import NO_LIMIT
from memprof.analysis.failures import Failure
from memprof.analysis.leftovers import Moment, freed, left_behind, stale_gradients
from memprof.analysis.recomputation import recomputable
from memprof.analysis.replays import Job, fitted, played
from memprof.analysis.whatif import CARDS, OUTSIDE_TORCH, SEARCHED
from memprof.trace import Action, Trace
from memprof.units import format_bytes

__all__ = ["Rescue", "Rescues", "rescues"]

_CONF = "PYTORCH_CUDA_ALLOC_CONF"
_SLACK = 20 << 20
_SLACK_SHARE = 0.01
"""The driver cannot give out the very last of what it calls free; more than this is a riddle."""
_CONTEXT = OUTSIDE_TORCH
"""What a process takes beside torch's own bytes stays taken when the others leave."""


@dataclass(frozen=True, slots=True)
class Rescue:
    """One change, and what the replay shows of it."""

    kind: str
    """``settings``, ``free``, ``checkpoint``, ``others`` or ``card``."""
    change: str
    """What to type or to do."""
    fits: bool
    """The request is served."""
    limit: int
    """Bytes that torch could hold in this replay."""
    peak_allocated: int
    peak_reserved: int
    spare: int
    """Bytes left to the limit at the peak; what more the job would have needed is not known."""


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
    change: str
    limit: int
    settings: AllocatorSettings
    changes: Changes = NOTHING_CHANGED
    afresh: bool = False


def rescues(failure: Failure, workers: int | None = None) -> Rescues:
    """Every change that applies, replayed; cheapest first among those that help."""
    if failure.recorded != "event" or failure.seen is None:
        return Rescues(unproven="no trace of the failed allocation, so nothing could be replayed")
    if failure.limit < 0:
        return Rescues(unproven="the file does not say how much the device had free")
    program = _up_to(failure.seen.trace, failure.event)
    limit = min(failure.limit, program.capacity)
    refused_early = failure.limit - limit > max(_SLACK, _SLACK_SHARE * failure.limit)
    if refused_early or not _fails(play(program, capacity=limit), failure.event):
        return Rescues(
            unproven="replayed as recorded, the request does not fail: something that the trace "
            "does not show (another allocator's memory, a limit) made it fail"
        )
    tries = [*_leftover_tries(failure, program, limit), *_room_tries(failure, program, limit)]
    settings, unproven = _settings_tries(failure, program, limit)
    tries = [*settings, *tries]
    jobs = [Job(0, t.settings, t.limit, t.changes, t.afresh) for t in tries]
    outcomes = played([program], jobs, workers)
    found = [_rescue(t, o) for t, o in zip(tries, outcomes, strict=True)]
    found.append(_card(failure, program))
    order = sorted(range(len(found)), key=lambda i: (not found[i].fits, i))
    return Rescues(tuple(found[i] for i in order), unproven)


def _up_to(trace: Trace, event: int) -> Program:
    """The program until the failed request; requests that failed before it are left out."""
    cut = replace(trace, events=trace.events.take(slice(0, event + 1)), end=None)
    program = program_of(cut)
    action = program.events.action.copy()
    action[:event][action[:event] == Action.OOM] = Action.OTHER
    return replace(program, events=replace(program.events, action=action))


def _fails(outcome: Outcome, event: int) -> bool:
    return outcome.oom is not None and outcome.oom.event == event


def _rescue(tried: _Try, outcome: Outcome) -> Rescue:
    return Rescue(
        kind=tried.kind,
        change=tried.change,
        fits=outcome.fits,
        limit=tried.limit,
        peak_allocated=outcome.peak_allocated,
        peak_reserved=outcome.peak_reserved,
        spare=max(tried.limit - outcome.peak_reserved, 0),
    )


def _settings_tries(failure: Failure, program: Program, limit: int) -> tuple[list[_Try], str]:
    """Other allocator settings; nothing where what is new in them is only a fresh start."""
    afresh = len(program.start.blocks) > 0
    if afresh and not _fails(play(program, capacity=limit, afresh=True), failure.event):
        return [], (
            "allocator settings were not judged: the recording began in the midst of the job, and "
            "laid out afresh the request would not have failed under the recorded ones either"
        )
    tries = []
    for text in SEARCHED:
        settings = parse_settings(text)
        if settings != program.settings:
            change = f"{_CONF}={text}"
            tries.append(_Try("settings", change, limit, settings, NOTHING_CHANGED, afresh))
    return tries, ""


def _leftover_tries(failure: Failure, program: Program, limit: int) -> Iterator[_Try]:
    assert failure.seen is not None
    moment = Moment.at(failure.seen, failure.event)
    rows = left_behind(moment)
    if len(rows):
        size = int(moment.seen.line.lives.size[rows].sum())
        text = f"free what earlier steps left behind ({format_bytes(size)})"
        yield _Try("free", text, limit, program.settings, freed(moment, rows))
    rows = stale_gradients(moment)
    if len(rows):
        size = int(moment.seen.line.lives.size[rows].sum())
        first = int(np.searchsorted(moment.steps, moment.step)) - 1
        after = np.full(len(rows), first)
        text = f"zero_grad(set_to_none=True) before the forward pass ({format_bytes(size)})"
        yield _Try("free", text, limit, program.settings, freed(moment, rows, after))
    for unit in recomputable(moment):
        text = f"checkpoint {unit.name} ({format_bytes(unit.bytes)} of activations)"
        changes = freed(moment, unit.rows, unit.ends)
        yield _Try("checkpoint", text, limit, program.settings, changes)


def _room_tries(failure: Failure, program: Program, limit: int) -> Iterator[_Try]:
    """The same program with the memory that others held, or that a fraction kept from it."""
    other = failure.others if failure.others >= 0 else failure.outside - _CONTEXT
    if failure.outside >= 0 and other > 0:
        text = f"without the {format_bytes(other)} that others held on the device"
        yield _Try("others", text, limit + other, program.settings)
    if failure.fraction < 1 and failure.limit < failure.reserved + failure.free:
        room = failure.reserved + failure.free
        text = f"without set_per_process_memory_fraction({failure.fraction:g})"
        yield _Try("limit", text, room, replace(program.settings, memory_fraction=None))


def _card(failure: Failure, program: Program) -> Rescue:
    least = fitted([program], [Job(0, program.settings)], 1)[0].bytes
    beside = failure.outside if failure.outside >= 0 else OUTSIDE_TORCH
    card = next((c for c in CARDS if c >= least + beside), 0)
    outcome = play(program, capacity=least) if least < NO_LIMIT else program.recorded
    name = f"a card of {format_bytes(card)}" if card else "a larger card than any common one"
    return Rescue(
        kind="card",
        change=f"{name}: torch needs {format_bytes(least)} to get past this request",
        fits=outcome.fits,
        limit=max(card - beside, least),
        peak_allocated=outcome.peak_allocated,
        peak_reserved=outcome.peak_reserved,
        spare=max(card - beside - least, 0),
    )
