"""repeated-call: a step runs a model twice on the same input, and keeps what both runs make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.values_read import values_by_stack_and_size
from memprof.source_code.program import Place, place_of
from memprof.trace import EMPTY, Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.owners import common_module
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE", "same_in_steps"]

_LEAST_SHARE = 0.1
"""Of the peak, in what the second run makes."""
_MOSTLY = 0.6
"""Of the bytes of both runs, that are known to have the same values: not each was looked at."""
_TWICE = 2


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedCall(Match):
    """What the second run makes, and what runs."""

    module: str = ""
    """Path of what is run."""
    times: int = 2
    first: Place | None = None
    second: Place | None = None
    """The statements that run it; the same one where it calls it twice."""


class RepeatedCalls(WasteRule[RepeatedCall]):
    """`value(x)` and `policy(x)` of one agent, each of which runs the encoder on `x`."""

    name = "repeated-call"
    summary = "a step runs a model twice on the same input"
    fixes = ("run_once",)
    yields_to = ("evaluation-graph", "unused-gradients", "frozen-graph")

    def matches(self, window: Window) -> Iterator[RepeatedCall]:
        """Activations at the peak that are there twice, of the same modules in one step."""
        if window.peak.event < 0:
            return
        twice = _twice(window)
        if not twice.any():
            return
        names = window.owners.module.names
        modules = np.unique(_modules(window)[twice])
        module = common_module(sorted(names[at] for at in modules))
        runs = _runs(window, twice)
        if not module or runs is None:
            return
        first, second, times = runs
        inside = np.array([f"{name}.".startswith(f"{module}.") for name in names])[_modules(window)]
        inside &= window.at_peak & _made_by_passes(window)
        frames = _where_they_part(window, first, second)
        if frames is None or not _are_of_two_calls(window, first, second, frames):
            return
        if window.bytes_of(twice) < _MOSTLY * window.bytes_of(inside):
            return
        rows = _of_later_runs(window, module, frames, twice, times)
        nbytes = window.bytes_of(rows & window.at_peak)
        if window.share(nbytes) < _LEAST_SHARE:
            return
        there = np.flatnonzero(rows & window.at_peak)
        yield RepeatedCall(
            row=int(there[np.argmax(window.lives.size[there])]),
            rows=there,
            nbytes=nbytes,
            saving=window.replayed(window.whole(np.flatnonzero(rows))),
            module=module,
            first=place_of(frames[0]),
            second=place_of(frames[1]),
            times=times,
        )

    def title(self, match: RepeatedCall) -> str:
        """Say what runs."""
        again = "a second run" if match.times == _TWICE else f"{match.times - 1} more runs"
        return f"are of {again} of `{match.module}` on the same input"

    def advice(self, match: RepeatedCall, case: Case) -> Iterator[Advice]:
        """Run it once, and hand on what comes out."""
        first, second = match.first, match.second
        where = ""
        if first is not None and second is not None and first.line != second.line:
            where = f", by lines {first.line} and {second.line}"
        often = "twice" if match.times == _TWICE else f"{match.times} times"
        why = (
            f"In each step `{match.module}` computes the same values {often}{where}, and all of "
            f"them are kept, {format_bytes(match.nbytes)} for nothing: run it once, and hand its "
            "result to all that read it."
        )
        yield Advice("run_once", why, match.second or case.site)


def _twice(window: Window) -> Bools:
    """What passes made that is there at the peak, whose values two of their size had at once."""
    lives = window.lives
    alike = np.zeros(len(lives), dtype=bool)
    for stack, size in same_in_steps(window):
        alike |= (lives.stack == stack) & (lives.requested == size)
    twice: Bools = alike & window.at_peak & _made_by_passes(window)
    return twice


def same_in_steps(window: Window) -> dict[tuple[int, int], int]:
    """Of stacks and sizes of which several had the same values in every step, how many had.

    A look between two runs comes upon the first one's alone. What is made in the second then has
    its like in every step, and that is the one other of its size that ever had the same values.
    """
    known = {key: one for key, one in values_by_stack_and_size(window).items() if key[0] != EMPTY}
    same = {key: one.same_in_steps for key, one in known.items() if one.same_in_steps >= _TWICE}
    for (_, size), times in list(same.items()):
        of_size = [key for key in known if key[1] == size]
        others = [key for key in of_size if key not in same and known[key].same == times]
        if times == _TWICE and len(others) == 1 and sum(key in same for key in of_size) == 1:
            same[others[0]] = times
    return same


@lru_cache(maxsize=1)
def _modules(window: Window) -> Ints:
    """Per lifetime the module that made it, also where the program calls a method of its own.

    ``net.features(x)`` calls functions outside of any call of a module. What the same lines make of
    the same size in a call of ``net(x)`` tells whose they are: of it, and of parts of it.
    """
    modules: Ints = window.module.copy()
    rows = np.flatnonzero((window.phase == Phase.FORWARD) & (window.site > 0) & ~window.has_owner)
    keys = np.stack([window.site[rows], window.lives.requested[rows]])
    _, of_key = np.unique(keys, axis=1, return_inverse=True)
    of_key = of_key.reshape(-1)
    is_known, names = modules[rows] > 0, window.owners.module.names
    for key in np.unique(of_key[~is_known]).tolist():
        of_lines = np.unique(modules[rows[is_known & (of_key == key)]]).tolist()
        around = common_module([names[one] for one in of_lines])
        if around in (names[one] for one in of_lines):
            modules[rows[~is_known & (of_key == key)]] = names.index(around)
    return modules


def _made_by_passes(window: Window) -> Bools:
    """What modules make in forward passes; whether a backward pass comes for it or not."""
    mask: Bools = (window.phase == Phase.FORWARD) & (_modules(window) > 0) & ~window.has_owner
    mask &= window.category != Category.INPUT
    return mask


def _runs(window: Window, twice: Bools) -> tuple[Ints, Ints, int] | None:
    """What the first run made and what the second did, and how many runs there are.

    In the order in which they were made. Each module made as many of each size in every run.
    """
    same, lives = same_in_steps(window), window.lives
    rows = np.flatnonzero(twice)
    rows = rows[np.argsort(lives.alloc[rows], kind="stable")]
    keys = zip(lives.stack[rows].tolist(), lives.requested[rows].tolist(), strict=True)
    times = min(same[key] for key in keys)
    by_kind: dict[tuple[int, int], list[int]] = {}
    for row in rows.tolist():
        by_kind.setdefault((int(_modules(window)[row]), int(lives.requested[row])), []).append(row)
    if any(len(alike) % times for alike in by_kind.values()):
        return None
    shares = [(alike, len(alike) // times) for alike in by_kind.values()]
    first = np.concatenate([alike[:each] for alike, each in shares])
    second = np.concatenate([alike[each : 2 * each] for alike, each in shares])
    is_apart = lives.alloc[first].max() < lives.alloc[second].min()
    return (first, second, times) if is_apart else None


def _where_they_part(window: Window, first: Ints, second: Ints) -> tuple[Frame, Frame] | None:
    """The innermost of the user's lines that differ, or the line that both runs came by."""
    ours, theirs = _shared(window, first), _shared(window, second)
    if not ours or not theirs:
        return None
    pairs = zip(ours, theirs, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if common < min(len(ours), len(theirs)):
        return ours[common], theirs[common]
    return ours[-1], theirs[-1]


def _are_of_two_calls(
    window: Window, first: Ints, second: Ints, frames: tuple[Frame, Frame]
) -> bool:
    """Whether the same lines of a module made both, and no two operators of one line of one call.

    `softmax(…).clamp(…)` may change nothing: of one tensor each by one line nobody can tell.
    """
    ends = [[window.stack(row)[:1] for row in rows.tolist()] for rows in (first, second)]
    return ends[0] == ends[1] and (frames[0] != frames[1] or len(first) > 1)


def _shared(window: Window, rows: Ints) -> list[Frame]:
    """The user's frames that all stacks of some rows have in common, outermost first."""
    stacks = [
        window.user_frames(window.trace.stack(stack))[::-1]
        for stack in np.unique(window.lives.stack[rows]).tolist()
    ]
    aligned = zip(*stacks, strict=False)
    return [frames[0] for frames in takewhile(lambda frames: len(set(frames)) == 1, aligned)]


def _of_later_runs(
    window: Window, module: str, frames: tuple[Frame, Frame], twice: Bools, times: int
) -> Bools:
    """What runs after the first make in any step.

    Of two runs by different lines what comes by the second line; else all but the first of what
    each step makes by the same stacks.
    """
    lives, names = window.lives, window.owners.module.names
    modules = _modules(window)
    rows: Bools = np.array([f"{name}.".startswith(f"{module}.") for name in names])[modules]
    rows &= _made_by_passes(window)
    if frames[0] != frames[1] and times == _TWICE:
        stacks = np.unique(lives.stack[rows]).tolist()
        by_line = [one for one in stacks if one != EMPTY and frames[1] in window.trace.stack(one)]
        return rows & np.isin(lives.stack, by_line)
    own = np.flatnonzero(rows & np.isin(lives.stack, np.unique(lives.stack[twice])))
    own = own[np.lexsort((lives.alloc[own], lives.requested[own], modules[own]))]
    own = own[np.argsort(window.made_in[own], kind="stable")]
    kinds = np.stack([window.made_in[own], modules[own], lives.requested[own]])
    starts = np.flatnonzero(np.append(True, (np.diff(kinds, axis=1) != 0).any(axis=0)))
    counts = np.diff(np.append(starts, len(own)))
    place = np.arange(len(own)) - np.repeat(starts, counts)
    later = np.zeros(len(lives), dtype=bool)
    later[own[place * times >= np.repeat(counts, counts)]] = True
    return later


RULE = RepeatedCalls()
