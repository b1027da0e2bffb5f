"""Modules that an optimizer steps with a rate of 0, so that no step ever changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memprof.records import UnmovedParameters
from memprof.sources.guarded_access import plain_attributes
from memprof.sources.loop.loop_watch import Listener, LoopWatch
from memprof.sources.owners.tensor_owners import parameter_paths

__all__ = ["UnmovedParametersWatch"]

_MOST_OPTIMIZERS = 64
"""Of so many: some programs have one for every parameter."""


class UnmovedParametersWatch(Listener):
    """Listens to optimizers as they begin to step and compares the rates of their groups with 0.

    Names are looked up at an optimizer's first step: at the job's end its model may be gone.
    """

    def __init__(self, loop_watch: LoopWatch) -> None:
        """No optimizer has stepped."""
        self._loop_watch = loop_watch
        self._steps: dict[int, int] = {}
        self._unmoved: dict[int, dict[int, frozenset[str]]] = {}
        """By optimizer and by group: the modules whose parameters it has."""
        self._moved: set[str] = set()
        self._last = UnmovedParameters()

    def take(self) -> UnmovedParameters | None:
        """What is known by now; None where that is what it was at the last call."""
        groups = [(key, modules) for key, of in self._unmoved.items() for modules in of.values()]
        modules = {name for _, names in groups for name in names} - self._moved
        steps = min((self._steps[key] for key, names in groups if names & modules), default=0)
        record = UnmovedParameters(sorted(modules), steps)
        last, self._last = self._last, record
        return record if record != last else None

    # Listener of the loop watch.

    def optimizer_begins(self, optimizer: Any) -> None:
        """Its groups have the rates of this step."""
        key = id(optimizer)
        if key not in self._steps:
            if len(self._steps) >= _MOST_OPTIMIZERS:
                return
            self._first_step(optimizer)
        self._steps[key] = self._steps.get(key, 0) + 1
        unmoved = self._unmoved.get(key)
        if unmoved:
            self._compare(optimizer, unmoved)

    def _first_step(self, optimizer: Any) -> None:
        unmoved = [at for at, group in enumerate(optimizer.param_groups) if never_moves(group)]
        if not unmoved and not self._unmoved:
            return  # as in nearly all programs: no name is looked up
        with plain_attributes():
            paths = parameter_paths(self._loop_watch)
            others = self._loop_watch.optimizers() if not self._unmoved else [optimizer]
            for one in {id(one): one for one in [*others, optimizer]}.values():
                for group in one.param_groups:
                    if not never_moves(group):
                        self._moved |= _names(group, paths)
            self._unmoved[id(optimizer)] = {
                at: _names(optimizer.param_groups[at], paths) for at in unmoved
            }

    def _compare(self, optimizer: Any, unmoved: dict[int, frozenset[str]]) -> None:
        groups = optimizer.param_groups
        for at in [at for at in unmoved if at >= len(groups) or not never_moves(groups[at])]:
            self._moved |= unmoved.pop(at)


def never_moves(group: Mapping[str, Any]) -> bool:
    """Whether a group's rate is 0 and no schedule began with another one.

    A rate that is a tensor is not read: that would wait for a device.
    """
    rate, first = group.get("lr"), group.get("initial_lr", 0.0)
    plain = isinstance(rate, (int, float)) and isinstance(first, (int, float))
    return plain and rate == 0 and first == 0


def _names(group: Mapping[str, Any], paths: Callable[[Any], str]) -> frozenset[str]:
    return frozenset(filter(None, map(paths, group["params"])))
