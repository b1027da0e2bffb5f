"""Iterations of loops in which nothing but operators run, by the lines that allocate."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from types import CodeType, FrameType
from typing import NamedTuple, TypeAlias

from memprof.sources.user_files import is_user_file

__all__ = ["LEAST_STEP_NS", "LEAST_TURNS", "FrameChains", "LineTurns", "Places"]

Places: TypeAlias = Sequence[tuple[CodeType, int]]
"""Functions and the instruction that each is at, the innermost first."""
_Chain: TypeAlias = tuple[tuple[int, int], ...]
"""The same by the ``id`` of the functions' code, the outermost first: to hash code takes long."""

LEAST_TURNS = 16
"""Turns of a loop before its turns are iterations: less is the building of a model."""
_MOST_WITHIN = 16
"""Turns of an inner loop for each of an outer one with which that is the iteration still."""
_LONGEST_SILENCE = 64
"""Turns of an inner loop after which no more is waited for the outer one."""
LEAST_STEP_NS = 200_000
"""A step is as many turns as take so long: to end one takes some 0.1 ms."""
_MOST_SHORT_STEPS = 8
"""In a row: then twice as many turns share one."""
_MOST_TURNS_IN_STEP = 1 << 16
_MOST_FRAMES = 100
_MOST_PAIRS = 8192
_MOST_LOOPS = 512
_TORCH = "/torch/"


class _Jump(NamedTuple):
    """A way back that the program has taken between two allocations."""

    prefix: _Chain
    """All that called the function that the loop is in, with where each was."""
    code: CodeType
    target: int
    source: int

    @property
    def key(self) -> tuple[_Chain, int, int]:
        """What its loop is known by."""
        return self.prefix, id(self.code), self.target


class _Loop:
    """What has come round at a place, and how often."""

    __slots__ = ("code", "end", "head", "prefix", "since_chosen", "turns")

    def __init__(self, jump: _Jump) -> None:
        self.prefix, self.code, self.head = jump.prefix, jump.code, jump.target
        self.end = jump.source
        """The last instruction that it was left from."""
        self.turns = 0
        self.since_chosen = 0
        """Turns since the loop that tells had its last one."""

    def contains(self, other: _Loop) -> bool:
        """Whether another one lies in its body, or in what is called there."""
        depth = len(self.prefix)
        if other.prefix[:depth] != self.prefix:
            return False
        if len(other.prefix) == depth:
            return self.code is other.code and self.head < other.head <= self.end
        code, at = other.prefix[depth]
        return id(self.code) == code and self.head <= at <= self.end


class LineTurns:
    """Tells when the program's own loop comes round, from the places that it allocates at.

    Between two allocations the outermost function that is somewhere else says where the program
    went: onwards, or back to an earlier instruction. Then a loop came round, or the function was
    called once more. Where a place follows upon itself it has run once more.

    Of loops within loops the outer one tells, unless the inner one comes round so often for each of
    its turns that a turn of the inner one is the better iteration. No turn is told before a loop
    had `LEAST_TURNS`.
    """

    def __init__(
        self,
        places_of: Callable[[Hashable], Places],
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Nothing has come round yet; ``places_of`` gives what a key of `sees` stands for."""
        self._places_of = places_of
        self._clock_ns = clock_ns
        self._previous: Hashable = None
        self._jumps: dict[tuple[Hashable, Hashable], _Jump | None] = {}
        self._loops: dict[tuple[_Chain, int, int], _Loop] = {}
        self._chosen: _Loop | None = None
        self._began_ns = 0
        self._turns_left = 0
        self._turns_in_step = 1
        self._told_ns = self._short_steps = 0
        self._short_outer = 0
        """Turns in a row of an outer loop in which the one that tells had few."""
        self._silence = 0

    @property
    def line(self) -> tuple[str, int]:
        """File and line of the place that each step begins at; ("", 0) where it has several."""
        chosen = self._chosen
        if chosen is None or self._turns_in_step > 1:
            return "", 0
        lines = chosen.code.co_lines()
        line = next((n for start, end, n in lines if start <= chosen.head < end and n), 0)
        return (chosen.code.co_filename, line) if line else ("", 0)

    def interrupt(self) -> None:
        """What comes next does not follow upon what came last: nobody looked in between."""
        self._previous = None

    def sees(self, key: Hashable) -> bool:
        """Note that the program allocates at a place; whether a step of it is over.

        The same key is the same place, with all that called it.
        """
        previous, self._previous = self._previous, key
        return previous is not None and self.sees_pair(previous, key)

    def sees_pair(self, before: Hashable, after: Hashable) -> bool:
        """The same of a place that follows upon another one."""
        jump = self.jump(before, after)
        return jump is not None and self._comes_round(self._loop(jump)) and self._is_long_enough()

    def skip(self) -> int:
        """How many of the next turns share a step, which need not be told; as if they had been."""
        turns = max(0, self._turns_left - 1)
        self._turns_left -= turns
        return turns

    def jump(self, before: Hashable, after: Hashable) -> _Jump | None:
        """The way back from one place to another; None: the program went on, or it is not known."""
        pair = before, after
        if pair not in self._jumps:
            if len(self._jumps) >= _MOST_PAIRS:
                self._jumps.clear()
            self._jumps[pair] = _jump(self._places_of(before), self._places_of(after))
        jump = self._jumps[pair]
        if jump is not None and before == after:
            loop = self._loops.get(jump.key)
            if loop is not None and loop.end > loop.head:
                # The loop comes round from elsewhere: here an operator allocates several times.
                jump = self._jumps[pair] = None
        return jump

    def _loop(self, jump: _Jump) -> _Loop:
        loop = self._loops.get(jump.key)
        if loop is None:
            if len(self._loops) >= _MOST_LOOPS:
                self._loops.clear()
            loop = self._loops[jump.key] = _Loop(jump)
        loop.end = max(loop.end, jump.source)
        loop.turns += 1
        loop.since_chosen += 1
        return loop

    def _comes_round(self, loop: _Loop) -> bool:
        chosen = self._chosen
        if chosen is None:
            return self._choose_first(loop)
        if loop is chosen:
            self._turned()
            return True
        if loop.contains(chosen):
            self._outer_turned(loop)
            return True
        if chosen.contains(loop):
            self._silence += 1
            return self._silence > _LONGEST_SILENCE and self._choose(loop)
        return loop.since_chosen >= LEAST_TURNS and self._choose(loop)

    def _choose_first(self, loop: _Loop) -> bool:
        if self._began_ns == 0:
            self._began_ns = self._clock_ns()
        if loop.turns < LEAST_TURNS:
            return False
        outer = [
            one
            for one in self._loops.values()
            if one.turns > 1 and loop.turns <= one.turns * _MOST_WITHIN and one.contains(loop)
        ]
        best = min(outer, key=lambda one: (len(one.prefix), one.head), default=loop)
        elapsed_ns = self._clock_ns() - self._began_ns
        each_ns = max(1, elapsed_ns // best.turns)
        self._turns_in_step = -(-LEAST_STEP_NS // each_ns)
        self._choose(best)
        return best is loop

    def _choose(self, loop: _Loop) -> bool:
        self._chosen = loop
        self._short_outer = 0
        self._turned()
        return True

    def _turned(self) -> None:
        self._silence = 0
        for one in self._loops.values():
            one.since_chosen = 0

    def _outer_turned(self, loop: _Loop) -> None:
        """A turn of the chosen one as well; and the outer one is chosen where that had few."""
        chosen = self._chosen
        assert chosen is not None
        within = chosen.turns
        chosen.turns = 0
        self._short_outer = self._short_outer + 1 if within < _MOST_WITHIN else 0
        if self._short_outer > 1:
            self._choose(loop)
        else:
            self._turned()

    def _is_long_enough(self) -> bool:
        self._turns_left -= 1
        if self._turns_left > 0:
            return False
        now_ns = self._clock_ns()
        self._short_steps = self._short_steps + 1 if now_ns - self._told_ns < LEAST_STEP_NS else 0
        self._told_ns = now_ns
        if self._short_steps >= _MOST_SHORT_STEPS:  # the first turns were slower
            self._short_steps = 0
            self._turns_in_step = min(2 * self._turns_in_step, _MOST_TURNS_IN_STEP)
        self._turns_left = self._turns_in_step
        return True


class FrameChains:
    """Keys for `LineTurns` out of frames."""

    def __init__(self) -> None:
        self._codes: dict[int, CodeType] = {}
        """Code is kept so that its ``id`` stays its own."""

    def key(self, frame: FrameType | None) -> Hashable:
        """Where a frame and all that called it are."""
        key: list[int] = []
        codes = self._codes
        frames_to_go = _MOST_FRAMES
        while frame is not None and frames_to_go:
            code = frame.f_code
            if id(code) not in codes:
                codes[id(code)] = code
            key += (id(code), frame.f_lasti)
            frame, frames_to_go = frame.f_back, frames_to_go - 1
        return tuple(key)

    def places(self, key: Hashable) -> Places:
        """What a key stands for."""
        assert isinstance(key, tuple)
        return [(self._codes[code], at) for code, at in zip(key[::2], key[1::2], strict=True)]


def _jump(before: Places, after: Places) -> _Jump | None:
    earlier, later = before[::-1], after[::-1]
    shorter = min(len(earlier), len(later))
    depth = next((i for i in range(shorter) if _differ(earlier[i], later[i])), len(later))
    if depth == len(later) == len(earlier):
        depth -= 1  # the very same place
    elif depth >= shorter:
        return None
    (code, source), (code_after, target) = earlier[depth], later[depth]
    innermost = _innermost_of_user(later)
    if code is not code_after or target > source or innermost < 0:
        return None
    if depth > innermost:
        # Within a library: functions of torch's are called again, other libraries may loop.
        if not all(
            _TORCH in one.co_filename.replace("\\", "/") for one, _ in later[innermost + 1 :]
        ):
            return None
        depth = innermost
        code, target = later[innermost]
        source = target
    elif not is_user_file(code.co_filename):
        return None
    return _Jump(tuple((id(one), at) for one, at in later[:depth]), code, target, source)


def _differ(one: tuple[CodeType, int], other: tuple[CodeType, int]) -> bool:
    return one[0] is not other[0] or one[1] != other[1]


def _innermost_of_user(chain: Places) -> int:
    for depth in range(len(chain) - 1, -1, -1):
        if is_user_file(chain[depth][0].co_filename):
            return depth
    return -1
