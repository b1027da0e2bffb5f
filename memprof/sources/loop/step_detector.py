"""When a step of a loop ends: marks, optimizers, backward passes or outermost module calls."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from memprof.sources.autograd import gradient_of
from memprof.sources.loop.turn_order import TurnOrder

__all__ = ["Guess", "Sign", "StepDetector"]

_UNDECIDED_CALLS = 8
"""So many calls in training mode without a gradient are inference that forgot `no_grad`."""

_UNDECIDED_CONTINUED = 1000
"""The same for calls that go on with what a call before them made: a sequence may be as long."""

_MOST_MODULES = 256
_LEAST_SILENCE = 8
"""Iterations with a lesser sign only, after which those are the program's steps.

So many more than there ever were between two of the surest: tasks or micro-batches of an iteration,
batches of an evaluation.
"""


class Sign(enum.IntEnum):
    """What tells that a step has ended; a greater one is surer."""

    LINE = -1
    """A loop came round in which nothing but operators run, see `LineTurns`."""
    BARE_CALL = 0
    """A module without parameters was called: a transform, a criterion, a metric, a simulator."""
    CALL = 1
    """A module with parameters was called."""
    BACKWARD = 2
    """A backward pass, or parameters that are others than before."""
    OPTIMIZER = 3
    MARK = 4
    """The program said so."""


_MOST_BEFORE = {Sign.CALL: 64, Sign.BACKWARD: 1024}
"""Iterations before the first surer sign that count as what lies between two. The first iteration
may have as many tasks, each with passes; features may have been computed in thousands of calls."""


class Guess(msgspec.Struct):
    """Steps whose ends were guessed, one after the other."""

    first: int
    last: int
    sign: Sign
    place: int
    """Where each of them ended; 0 where they ended in several places."""


class _Versions(NamedTuple):
    """What the first trained parameter of a module was when a call ended."""

    module: weakref.ref[Any]
    own: int
    """Its ``_version``."""
    gradient: tuple[int, int]
    """Which gradient it had, in which version."""


class _OfCalls:
    """Stands for a backward pass, of which each place is a turn of its own."""

    __slots__ = ("__weakref__",)


class StepDetector:
    """Counts steps, and tells when one has ended.

    An explicit mark rules out all else from then on. Of the other signs the surest that was met
    tells; when it has been silent for long, as in an evaluation after the training, lesser ones
    do. What they told is put together again, as one step, when the surer one is back: the first
    optimizer's step ends all that was guessed before it.

    Where a program changes parameters by hand, a step ends as the next call begins.
    The first end that was found without a mark stays open until the next iteration begins: a mark
    that follows it at once means the same end, and what lies between belongs to step 0.
    """

    def __init__(
        self, on_step: Callable[[int], None], on_guess: Callable[[Guess, bool], None] | None = None
    ) -> None:
        """``on_guess(guess, True)``: those steps and the one that has just ended are a single one.

        ``on_guess(guess, False)``: those steps stay.
        """
        self.current = 0
        self.explicit = False
        """A mark was seen."""
        self.optimized = False
        """An optimizer has begun to step."""
        self.open_end = False
        """The first end was found and is not told yet."""
        self._on_step = on_step
        self._on_guess = on_guess or _nobody
        self._automatic = 0
        self._undecided_calls = self._continuations = 0
        self._continues = False
        self._passes = 0
        self._optimizers = TurnOrder()
        self._calls = {Sign.BARE_CALL: TurnOrder(), Sign.CALL: TurnOrder()}
        self._backward = TurnOrder()
        self._of_calls = _OfCalls()
        self._versions: dict[int, _Versions] = {}
        self._by_hand: weakref.ref[Any] | None = None
        self._sign: Sign | None = None
        """The surest so far."""
        self._silence = 0
        """Iterations with lesser signs since the surest one came last."""
        self._within = {Sign.CALL: 0, Sign.BACKWARD: 0}
        """Iterations with each of these signs since a surer one came last."""
        self._most_within = dict(self._within)
        """The most of them that were put together as one."""
        self._guess: Guess | None = None
        self._sees_passes = False
        """Backward passes are seen, which say more than parameters that have changed."""
        self._has_passed = False
        """A backward pass has ended an iteration, which is over when the next call begins."""
        self._passed_place = 0
        self.waits = False
        """The same where no module is called: it is over when the next operator has run."""
        self._has_call = False
        """A module was called since the last backward pass."""
        self._may_be_lines = True
        """No module was called, and no optimizer stepped."""

    def mark(self) -> None:
        """An explicit mark."""
        self._put_lines_together()
        is_first = not self.explicit and self._automatic == 1 and not self.open_end
        first = not self.explicit
        self.explicit = True
        self.open_end = False
        if not is_first:  # else an optimizer or a module has just ended this very iteration
            self._end(Sign.MARK)
        elif first:
            self._guess = None
        self._sign = Sign.MARK

    @property
    def is_guessed(self) -> bool:
        """Whether the last end was no mark's and no optimizer's."""
        return not self.explicit and (not self.optimized or self._guess is not None)

    @property
    def ends_with_passes(self) -> bool:
        """Whether a backward pass is the surest sign so far."""
        return self._sign is Sign.BACKWARD

    @property
    def may_end_with_passes(self) -> bool:
        """The same, or steps are guessed since the optimizer has stepped last."""
        return self.ends_with_passes or (self.optimized and self.is_guessed)

    @property
    def may_end_with_lines(self) -> bool:
        """Whether nothing surer was met than loops that come round."""
        is_unsure = self._sign is None or self._sign is Sign.LINE
        return self._may_be_lines and is_unsure and not (self.explicit or self._has_passed)

    def line_turned(self, place: int) -> None:
        """A loop of operators came round; 0: each step is several turns of it."""
        if self.may_end_with_lines:
            self._end(Sign.LINE, place)

    def optimizer_began(self) -> None:
        """An optimizer begins to step; its closure may call modules."""
        self._may_be_lines = False
        self.settle()
        self._has_passed = self.waits = False
        self.optimized = True

    def optimizer_ended(self, optimizer: object, passes: int = 0) -> None:
        """An optimizer has stepped; ``passes`` is another number when a forward pass ran before."""
        anew, self._passes = passes != self._passes, passes
        self._has_passed = self.waits = False
        if not self.explicit and self._optimizers.ends(optimizer, anew=anew):
            self._automatic_end(Sign.OPTIMIZER)

    def backward_ended(
        self, place: int, *, in_optimizer: bool = False, is_part: bool = False
    ) -> None:
        """A backward pass that was asked for at ``place`` is over; 0: not known where.

        ``in_optimizer``: an optimizer's step is under way, whose end is the surer one.
        ``is_part``: another one for the same result came before, as a Jacobian has one a row.
        """
        if self.explicit:
            return
        self._sees_passes = True
        if is_part:
            return
        if self._backward.ends(self._of_calls, place=place) and not in_optimizer:
            self._passed_place = place
            self._has_passed, self.waits = True, not self._has_call
        self._has_call = False

    def end_without_call(self) -> None:
        """An operator has run after the backward pass of a loop in which no module is called."""
        if self.waits:
            self._backward_end()
            self.settle()

    def call_began(self, module: Any, *, continues: bool = False) -> None:
        """An outermost module call begins; ``continues``: with what another call has made."""
        self._may_be_lines = False
        self.settle()
        self._continues = continues
        self._has_call = True
        if self.explicit:
            return
        if self._has_passed:
            self._backward_end()
            self.settle()
            return
        if self.optimized or self._sees_passes or not self._is_changed(module):
            return
        if self._updated_by_hand() is None:
            self._by_hand = weakref.ref(module)
        if self._updated_by_hand() is module:  # of several modules one tells
            self._automatic_end(Sign.BACKWARD)
            self.settle()

    def call_ended(self, module: Any, *, with_gradients: bool, place: int = 0) -> None:
        """An outermost module call has returned, which was made at ``place``; 0: anywhere."""
        if self.explicit:
            return
        if with_gradients and self._expects_training(module):
            return
        if self._updated_by_hand() is not None and not self.optimized:
            return
        sign = Sign.BARE_CALL if _has_no_parameter(module) else Sign.CALL
        if sign is Sign.BARE_CALL and self._continues:
            return  # a criterion or an activation, of what a model has made
        if self._calls[sign].ends(module, place=place):
            self._automatic_end(sign, place)

    def skip(self, steps: int) -> None:
        """Go on ``steps`` further, which nobody has counted and nobody is told of."""
        self.settle()
        self.current += steps
        self._automatic += steps
        self._continues = False
        if self._guess is not None:
            self._guess.last += steps

    def settle(self) -> None:
        """The next iteration has begun: an end that was still open stands."""
        if self.open_end:
            self.open_end = False
            self._automatic += 1
            self._end(Sign.CALL if self._sign is None else self._sign)

    def close(self) -> None:
        """No more will come: what was still open has ended."""
        self.settle()
        if self._has_passed and not self.explicit:
            self._backward_end()
            self.settle()

    @property
    def guess(self) -> Guess | None:
        """Steps at the end that were guessed, so far."""
        return self._guess

    def _backward_end(self) -> None:
        self._has_passed = self.waits = False
        self._automatic_end(Sign.BACKWARD, self._passed_place)

    def _expects_training(self, module: Any) -> bool:
        """Whether a backward pass and an optimizer will probably follow this call."""
        parameter = _first_trained(module)
        if not module.training or parameter is None:
            return False
        if len(self._versions) >= _MOST_MODULES:
            self._versions.clear()
        before, gradient = self._versions.get(id(module)), gradient_of(parameter)
        now = _Versions(weakref.ref(module), parameter._version, _state_of(gradient))
        self._versions[id(module)] = now
        # A gradient of a training that is over stays as it is: no backward pass adds to it.
        is_learning = before is None or before.gradient != now.gradient
        if gradient is not None and is_learning:
            self._undecided_calls = self._continuations = 0
        elif self._continues:
            self._continuations += 1
            return self._continuations < _UNDECIDED_CONTINUED
        else:
            self._undecided_calls += 1
        return self._undecided_calls < _UNDECIDED_CALLS

    def _updated_by_hand(self) -> Any:
        return self._by_hand() if self._by_hand is not None else None

    def _is_changed(self, module: Any) -> bool:
        """Whether its parameters are others than when a call in training ended, by `_version`."""
        before = self._versions.get(id(module))
        is_known = before is not None and before.module() is module
        parameter = _first_trained(module) if is_known else None
        return before is not None and parameter is not None and parameter._version != before.own

    def _put_lines_together(self) -> None:
        """A surer sign is there: all that loops of operators were is part of the step under way."""
        guess = self._guess
        if self._sign is not Sign.LINE or guess is None:
            return
        self._guess = self._sign = None
        self._on_guess(Guess(guess.first, self.current, guess.sign, guess.place), True)

    def _automatic_end(self, sign: Sign, place: int = 0) -> None:
        self._put_lines_together()
        if sign in self._within:
            self._within[sign] += 1
        if self._sign is not None and sign < self._sign and not self._is_silent(sign):
            return
        if self._automatic == 0 and not self.open_end:
            self.open_end = True
            self._open(sign, place)
            return
        self.settle()
        self._automatic += 1
        self._end(sign, place)

    def _is_silent(self, sign: Sign) -> bool:
        """Whether the surest sign has been silent for so long that a lesser one tells."""
        if sign is Sign.BARE_CALL or (self._guess is not None and sign < self._guess.sign):
            return False  # once a model was called, what has no parameters serves it
        self._silence += 1
        return self._silence > _LEAST_SILENCE + self._most_within.get(sign, 0)

    def _open(self, sign: Sign, place: int) -> None:
        if sign < Sign.OPTIMIZER:
            self._guess = Guess(self.current, self.current, sign, place)
        self._sign = sign

    def _end(self, sign: Sign, place: int = 0) -> None:
        step = self.current
        self.current = step + 1
        guess = self._guess
        was_surest = self._sign == sign
        if self._sign is None or sign >= self._sign:
            self._silence = 0
            self._sign = sign
        for lesser in [one for one in self._within if one < sign]:
            count = (
                self._within[lesser]
                if was_surest
                else min(self._within[lesser], _MOST_BEFORE[lesser])
            )
            self._most_within[lesser] = max(self._most_within[lesser], count)
            self._within[lesser] = 0
        if guess is not None and guess.first == step:  # it was opened, and is told now
            self._guess = guess if sign <= guess.sign else None
            guess = None
        if guess is not None and sign > guess.sign:
            self._guess = None
            self._on_guess(Guess(guess.first, step, guess.sign, guess.place), True)
            guess = None
        if sign < Sign.OPTIMIZER:
            if guess is None:
                if self._guess is None or self._guess.first != step:
                    self._guess = Guess(step, step, sign, place)
            else:
                guess.last = step
                guess.place = guess.place if guess.place == place else 0
        self._on_step(step)


def _nobody(_guess: Guess, _merged: bool) -> None:
    """Where nobody asks."""


def _state_of(gradient: Any) -> tuple[int, int]:
    return (id(gradient), gradient._version) if gradient is not None else (0, 0)


def _first_trained(module: Any) -> Any:
    return next((p for p in module.parameters() if p.requires_grad), None)


def _has_no_parameter(module: Any) -> bool:
    return next(module.parameters(), None) is None
