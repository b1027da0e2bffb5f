"""Steps of a recording that has none: turns of the program's loop, told by the stacks of it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from memprof.records import GuessedSteps
from memprof.run import DeviceRun, Run, Steps
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.torch_calls import phase_of_stack
from memprof.trace import (
    NOT_RECORDED,
    PROFILER_STEP,
    Action,
    Label,
    Phase,
    Tables,
    Trace,
)

__all__ = ["with_loop_steps"]

Ints = npt.NDArray[np.int64]

_LEAST_TURNS = 16
"""Turns of a loop in which nothing but operators run: less is the building of a model."""
_LEAST_TURNS_OF_MODEL = 2
"""Of one that trains, or calls a model: what runs in it is sign enough."""
_MOST_WITHIN = 16
"""Turns of an inner loop for each of an outer one with which that is the step still."""
_MOST_LOOPS, _MOST_SIGNS = 256, 2048
"""That are looked at, of those that come round most and of what is made most: no program has more
that matter, and each is compared with each."""
_OF_THREADS = frozenset({"_bootstrap", "_bootstrap_inner"})
"""The outermost functions of a thread that Python has started."""
_LOOPS = (FrameKind.LIBRARY, FrameKind.USER)
"""Whose loops may be the program's."""


class _Chain(NamedTuple):
    """A stack as far as the program itself, and the libraries that it calls, are in it.

    What lies within a module's call, a backward pass or an optimizer's step is left out.
    """

    frames: tuple[int, ...]
    """The outermost first."""
    phase: Phase


class _Jump(NamedTuple):
    """A way back that the program has taken between two allocations."""

    prefix: tuple[int, ...]
    """All that called the function that the loop is in, as frames."""
    code: int
    source: int
    target: int
    """Lines; the same one where it follows upon itself."""

    @property
    def head(self) -> tuple[tuple[int, ...], int, int]:
        """Where it leads to."""
        return self.prefix, self.code, self.target


class _Loop(NamedTuple):
    """What comes round at a line of a function."""

    prefix: tuple[int, ...]
    code: int
    head: int
    end: int
    """The last line of it, as far as is known."""
    least: int
    """It comes round only from this line on: an inner one may begin at the same line."""
    turns: int


@dataclass(frozen=True, slots=True)
class _Frames:
    """The places of a run's stacks: the function of each as a number, and its line."""

    code: Sequence[int]
    line: Sequence[int]
    functions: Sequence[tuple[str, str]]
    """File and name by the functions' numbers."""

    def is_in(self, loop: _Loop, frames: tuple[int, ...]) -> bool:
        """Whether a stack passes through the body of a loop."""
        depth = len(loop.prefix)
        if len(frames) <= depth or frames[:depth] != loop.prefix:
            return False
        frame = frames[depth]
        return self.code[frame] == loop.code and loop.head <= self.line[frame] <= loop.end

    def contains(self, outer: _Loop, inner: _Loop) -> bool:
        """Whether a loop lies in the body of another one, or in what is called there."""
        if len(inner.prefix) > len(outer.prefix):
            return self.is_in(outer, inner.prefix)
        same = inner.prefix == outer.prefix and inner.code == outer.code
        return same and outer.head < inner.head <= outer.end

    def turns(self, jump: _Jump, loop: _Loop) -> bool:
        """Whether a loop, or one around it, has come round with a way back."""
        if jump.prefix == loop.prefix and jump.code == loop.code:
            return jump.target <= loop.head and jump.source >= loop.least
        around = _Loop(jump.prefix, jump.code, jump.target, jump.source, 0, 0)
        return len(jump.prefix) < len(loop.prefix) and self.is_in(around, loop.prefix)


def with_loop_steps(run: Run) -> Run:
    """The run with steps where it has none and its loop can be told; else as it is.

    A loop comes round where an allocation's stack goes back: the outermost function that is
    somewhere else than before is at an earlier line. (Where one line follows upon itself, it has
    run once more.) The steps are the turns of

    - the innermost loop that holds most of what optimizers' steps make;
    - where no optimizer steps, backward passes; where there is none, calls of modules;
    - without any of these the outermost loop, unless one in it comes round far more often.

    Only the thread that allocates most counts; those of `threading` do where there is no other.
    A recorder lets short turns share a step, and may have told a few of those: these are instead.
    """
    guess = run.guessed
    few = guess is not None and guess.sign == "line" and guess.last < _LEAST_TURNS
    if not few and (guess is not None or any(map(_has_steps, run.devices))):
        return run
    devices = [device for device in run.devices if device.windows]
    if any(len(device.windows) > 1 for device in devices):
        return run
    if len(devices) > 1 and not all(map(_has_clock, devices)):
        # How the events of devices lie to each other is not known: the one with most of them tells.
        devices = [max(devices, key=lambda device: device.events)]
    by_loop = _loop_steps([device.windows[0] for device in devices])
    if by_loop is None or (guess is not None and by_loop.guess.last <= guess.last):
        return run
    last = by_loop.guess.last
    with_steps = {
        device.device: dataclasses.replace(
            device, windows=(trace,), steps=_with_last_figures(steps, device.steps)
        )
        for device, trace, steps in zip(devices, by_loop.traces, by_loop.steps, strict=True)
    }
    return dataclasses.replace(
        run,
        devices=tuple(with_steps.get(device.device, device) for device in run.devices),
        guessed=by_loop.guess,
        # They were made after the loop: a recording without steps looks for holders at its end.
        findings=tuple(msgspec.structs.replace(one, step=last) for one in run.findings),
        windows=[msgspec.structs.replace(one, first_step=0, last_step=last) for one in run.windows],
    )


def _has_steps(device: DeviceRun) -> bool:
    if len(device.steps) and int(device.steps.last.max()) > 0:
        return True
    return any(
        any(label.step > 0 for label in trace.tables.labels)
        or any(one.name.startswith(PROFILER_STEP) for one in trace.annotations)
        for trace in device.windows
    )


def _has_clock(device: DeviceRun) -> bool:
    times = device.windows[0].events.time_us
    return not len(times) or int(times.min()) != NOT_RECORDED


def _with_last_figures(steps: Steps, recorded: Steps) -> Steps:
    """Steps that end as the recorded one did, with all that was counted then."""
    if not len(recorded) or not len(steps):
        return steps
    columns = {name: getattr(steps, name).copy() for name in Steps.names()}
    for name in columns.keys() - {"first", "last", "start_us", "window"}:
        columns[name][-1] = getattr(recorded, name)[-1]
    return Steps(**columns)


@dataclass(frozen=True, slots=True, eq=False)
class _LoopSteps:
    """Traces with labels that name steps, and those steps of each.

    Figures of the steps are not measured: a timeline of the trace has them.
    """

    traces: Sequence[Trace]
    steps: Sequence[Steps]
    guess: GuessedSteps


def _loop_steps(traces: Sequence[Trace]) -> _LoopSteps | None:
    """Of traces that share their tables; None where no loop can be told."""
    if not traces:
        return None
    tables = traces[0].tables
    frames, chains = _chains(tables)
    sequence = _sequence(traces, chains, frames)
    if len(sequence.stacks) <= _LEAST_TURNS_OF_MODEL:
        return None
    pairs, which = np.unique(
        np.stack([sequence.stacks[:-1], sequence.stacks[1:]], 1), axis=0, return_inverse=True
    )
    which = which.reshape(-1)
    jumps = [_jump(chains[before], chains[after], frames) for before, after in pairs.tolist()]
    jumps = _without_repeats(jumps)
    counts: Counter[_Jump] = Counter()
    for jump, count in zip(jumps, np.bincount(which).tolist(), strict=True):
        if jump is not None:
            counts[jump] += count
    made: Counter[_Chain] = Counter()
    for stack, count in Counter(sequence.stacks.tolist()).items():
        made[chains[stack]] += count
    chosen = _chosen(counts, made, frames)
    if chosen is None:
        return None
    turns = [jump is not None and frames.turns(jump, chosen) for jump in jumps]
    at = 1 + np.flatnonzero(np.array(turns, dtype=bool)[which])
    return _labelled(traces, _turns_of_events(traces, sequence, at), tables, chosen, frames)


def _chains(tables: Tables) -> tuple[_Frames, list[_Chain]]:
    """The places, and the chain of every stack.

    Torch names a method of a class without the class, and memprof's own recorder with it.
    """
    codes: dict[tuple[str, str], int] = {}
    places: dict[tuple[int, int], int] = {}
    place_of = []
    for filename, line, name in ((f.filename, f.line, f.name) for f in tables.frames):
        code = codes.setdefault((filename, name.rpartition(".")[2]), len(codes))
        place_of.append(places.setdefault((code, line), len(places)))
    kinds = [frame_kind(frame.filename) for frame in tables.frames]
    phases = [phase_of_stack([frame]) for frame in tables.frames]
    frames = _Frames([code for code, _ in places], [line for _, line in places], tuple(codes))
    chains = []
    for stack in tables.stacks:
        outer: list[int] = []
        for frame in reversed(stack):
            if phases[frame] is not Phase.OTHER:
                break
            if kinds[frame] not in (FrameKind.NATIVE, FrameKind.HIDDEN):
                outer.append(frame)
        while outer and kinds[outer[-1]] not in _LOOPS:
            outer.pop()
        phase = phase_of_stack(tables.frames[i] for i in stack)
        chains.append(_Chain(tuple(place_of[frame] for frame in outer), phase))
    return frames, chains


@dataclass(frozen=True, slots=True)
class _Sequence:
    """What one thread of Python allocated, in order: stacks, and where their events are."""

    stacks: Ints
    events: Ints
    """The place of each in its trace."""
    time_us: Ints


def _sequence(traces: Sequence[Trace], chains: Sequence[_Chain], frames: _Frames) -> _Sequence:
    stacks, events, times = [], [], []
    root = np.array([frames.code[chain.frames[0]] if chain.frames else -1 for chain in chains])
    for trace in traces:
        rows = np.flatnonzero(trace.events.action == Action.ALLOC)
        rows = rows[root[trace.events.stack[rows]] >= 0]
        stacks.append(trace.events.stack[rows].astype(np.int64))
        events.append(rows)
        times.append(trace.events.time_us[rows])
    stack, event, time = (np.concatenate(parts) for parts in (stacks, events, times))
    if len(traces) > 1:
        order = np.argsort(time, kind="stable")
        stack, event, time = stack[order], event[order], time[order]
    is_ours = root[stack] == _root(Counter(root[stack].tolist()), frames)
    return _Sequence(stack[is_ours], event[is_ours], time[is_ours])


def _root(counts: Counter[int], frames: _Frames) -> int:
    """The outermost function of the thread that tells, by its number."""
    main = [root for root in counts if frames.functions[root][1] not in _OF_THREADS]
    return max(main or counts, key=lambda root: counts[root], default=-1)


def _jump(before: _Chain, after: _Chain, frames: _Frames) -> _Jump | None:
    """The way back between two allocations; None: the program went on, or it is not known."""
    shorter = min(len(before.frames), len(after.frames))
    depth = next((i for i in range(shorter) if before.frames[i] != after.frames[i]), shorter)
    if before.frames == after.frames:
        if not before.phase is after.phase is Phase.OTHER:
            return None  # it may be within one call of a module
        depth -= 1
    elif depth == shorter:
        return None
    source, target = before.frames[depth], after.frames[depth]
    if frames.code[source] != frames.code[target] or frames.line[target] > frames.line[source]:
        return None
    lines = frames.line[source], frames.line[target]
    return _Jump(after.frames[:depth], frames.code[target], *lines)


def _without_repeats(jumps: Sequence[_Jump | None]) -> list[_Jump | None]:
    """Without those of a line upon itself where a loop of several lines begins there.

    There an operator allocates several times.
    """
    heads = {one.head for one in jumps if one is not None and one.source > one.target}
    return [
        None if one is None or (one.source == one.target and one.head in heads) else one
        for one in jumps
    ]


def _chosen(
    jumps: Mapping[_Jump, int], made: Mapping[_Chain, int], frames: _Frames
) -> _Loop | None:
    """The loop whose turns are the steps; ``made`` counts what was allocated."""
    loops = _loops(jumps)
    for phase in (Phase.OPTIMIZER, Phase.BACKWARD, Phase.FORWARD):
        signs: Counter[tuple[int, ...]] = Counter()
        for chain, count in made.items():
            signs[chain.frames] += count if chain.phase is phase else 0
        if signs.total():
            # Of several optimizers, or gradients that are accumulated, the last one tells.
            apart = _loops(jumps, by_end=True) if phase is Phase.OPTIMIZER else []
            return _innermost_of_most([*loops, *apart], signs, frames)
    often = [loop for loop in loops if loop.turns >= _LEAST_TURNS]
    best = min(often, key=_outermost_first, default=None)
    while best is not None:
        least = _MOST_WITHIN * best.turns
        inner = [one for one in often if one.turns > least and frames.contains(best, one)]
        if not inner:
            break
        best = min(inner, key=_outermost_first)
    return best


def _outermost_first(loop: _Loop) -> tuple[int, int]:
    return len(loop.prefix), loop.head


def _loops(jumps: Mapping[_Jump, int], *, by_end: bool = False) -> list[_Loop]:
    """A loop for each line that was gone back to, or for each line that this was done from."""
    by_head: dict[tuple[tuple[int, ...], int, int], Counter[int]] = {}
    for jump, count in jumps.items():
        by_head.setdefault(jump.head, Counter())[jump.source] += count
    loops = []
    for head, sources in by_head.items():
        for end in sources if by_end else [max(sources)]:
            least = end if by_end else head[2]
            turns = sum(n for source, n in sources.items() if source >= least)
            loops.append(_Loop(*head, end, least, turns))
    return sorted(loops, key=lambda loop: -loop.turns)[:_MOST_LOOPS]


def _innermost_of_most(
    loops: Sequence[_Loop], signs: Counter[tuple[int, ...]], frames: _Frames
) -> _Loop | None:
    """The innermost one of those that hold most of the signs."""
    most = signs.most_common(_MOST_SIGNS)

    def rank(loop: _Loop) -> tuple[int, int, int, int, int]:
        inside = sum(n for chain, n in most if frames.is_in(loop, chain))
        return inside, len(loop.prefix), loop.head, -loop.end, loop.least

    often = [loop for loop in loops if loop.turns >= _LEAST_TURNS_OF_MODEL]
    best = max(often, key=rank, default=None)
    return best if best is not None and rank(best)[0] else None


def _turns_of_events(traces: Sequence[Trace], sequence: _Sequence, at: Ints) -> list[Ints]:
    """How many turns were over at every event of each trace."""
    if len(traces) == 1:
        return [np.searchsorted(sequence.events[at], np.arange(len(traces[0].events)), "right")]
    turns = (np.searchsorted(sequence.time_us[at], t.events.time_us, "right") for t in traces)
    return [np.maximum.accumulate(one) for one in turns]


def _labelled(
    traces: Sequence[Trace], turns: Sequence[Ints], tables: Tables, loop: _Loop, frames: _Frames
) -> _LoopSteps:
    last = max((int(steps[-1]) for steps in turns if len(steps)), default=0)
    new: dict[Label, int] = {}
    columns = []
    for trace, steps in zip(traces, turns, strict=True):
        both, which = np.unique(
            np.stack([trace.events.label.astype(np.int64), steps], 1), axis=0, return_inverse=True
        )
        with_step = [tables.labels[label]._replace(step=step) for label, step in both.tolist()]
        rows = [new.setdefault(label, len(tables.labels) + len(new)) for label in with_step]
        columns.append(np.array(rows, dtype=np.int64)[which.reshape(-1)])
    with_steps = dataclasses.replace(tables, labels=(*tables.labels, *new))
    guess = GuessedSteps(
        first=0,
        last=last,
        sign="line",
        filename=frames.functions[loop.code][0],
        line=max(loop.head, loop.least),
    )
    return _LoopSteps(
        [
            dataclasses.replace(
                trace, events=dataclasses.replace(trace.events, label=column), tables=with_steps
            )
            for trace, column in zip(traces, columns, strict=True)
        ],
        [_steps(trace, steps, last) for trace, steps in zip(traces, turns, strict=True)],
        guess,
    )


def _steps(trace: Trace, turns: Ints, last: int) -> Steps:
    """A row for each step; the last one may not have been over."""
    numbers = np.arange(last + 1, dtype=np.int64)
    times = np.append(trace.events.time_us, NOT_RECORDED)
    first, behind = (np.searchsorted(turns, numbers, side) for side in ("left", "right"))
    steps: Steps = Steps.build(
        last + 1,
        first=numbers,
        last=numbers,
        start_us=times[np.minimum(first, len(turns))],
        end_us=times[np.maximum(behind - 1, -1)],
        window=np.zeros(last + 1, dtype=np.int64),
    )
    return steps
