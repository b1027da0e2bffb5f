"""resting-model: a model that is made anew now and then rests between its uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.dataflow import flow_of
from memprof.source_code.lasting_names import first_binding
from memprof.source_code.verbs import SAVING
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_TIMES = 2
"""Models made at one line, one after the other: a single one may be for the end of the program."""
_LEAST_STEPS = 4
"""That one rests, before another takes its place."""
_MOSTLY = 0.75
"""Of its steps in memory, that it rests: one that is called in between is needed there."""


@dataclass(frozen=True, slots=True, eq=False)
class RestingModel(Match):
    """Parameters of a model after its last call."""

    model: str = ""
    is_copy: bool = False
    """`copy.deepcopy` made it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Generation:
    """One of the models that a line makes."""

    rows: Ints
    last_use: int
    """The last event within a call of it."""
    rests_until: int
    """The event at which another is made in its place."""


class RestingModels(WasteRule[RestingModel]):
    """`self.pipeline = Pipeline(copy.deepcopy(model))` for each preview, kept until the next."""

    name = "resting-model"
    summary = "a model that is made anew now and then rests between its uses"
    fixes = ("del_ref",)
    yields_to = ("frozen-twin", "lingering")

    def matches(self, window: Window) -> Iterator[RestingModel]:
        """Parameters of one line, of which another set takes the place when one is called again.

        Each is called soon after it is made, and then no more.
        """
        parameters = window.category == Category.PARAMETER
        made_here = parameters & (window.lives.alloc >= 0)
        for site in np.unique(window.site[made_here]):
            generations = _generations(window, np.flatnonzero(made_here & (window.site == site)))
            resting = [one for one in generations if _rests(window, one)]
            if len(resting) < _LEAST_TIMES:
                continue
            there = [one for one in generations if one.last_use < window.peak.event]
            rows = np.concatenate([one.rows for one in there]) if there else np.array([], dtype=int)
            rows = rows[window.at_peak[rows]]
            if not len(rows):
                continue
            every = np.concatenate([one.rows for one in generations])
            ends = np.concatenate([np.full(len(one.rows), one.last_use) for one in generations])
            row = int(rows[np.argmax(window.lives.size[rows])])
            yield RestingModel(
                row=row,
                rows=rows,
                nbytes=int(window.lives.size[rows].sum()),
                saving=window.replayed(window.ended_at(every, ends)),
                model=_root(window.module_name(row)),
                tentative=_is_saved(window, row),
                is_copy=any(frame.name == "deepcopy" for frame in window.stack(row)),
            )

    def title(self, match: RestingModel) -> str:
        """Say of which model."""
        return f"are `{match.model}`, which is made anew for each use and rests until the next"

    def advice(self, match: RestingModel, case: Case) -> Iterator[Advice]:
        """Let go of it after its use; a copy may not be needed at all."""
        why = (
            f"{format_bytes(match.nbytes)} rest after the last call of `{match.model}`, as the "
            "next use makes another: let go of it once it was used."
        )
        if match.is_copy:
            why += " Or use the model itself (`eval()`, `no_grad()`): that needs no copy."
        yield Advice("del_ref", why, case.site)


def _root(module: str) -> str:
    return module.partition(".")[0]


def _generations(window: Window, rows: Ints) -> list[_Generation]:
    """The models that a line makes, in order; none where one is made before the last was called."""
    roots, of_label = np.unique(
        [_root(label.module) for label in window.trace.tables.labels], return_inverse=True
    )
    running = of_label[window.trace.events.label]
    number = {str(root): at for at, root in enumerate(roots) if root}  # not what is of no module
    models = np.array([number.get(_root(window.module_name(row)), -1) for row in rows.tolist()])
    steps = window.made_in[rows]
    keys = np.unique(np.column_stack((steps, models))[models >= 0], axis=0)
    if len(np.unique(keys[:, 0])) < len(keys):
        return []  # several at once: an ensemble
    generations: list[_Generation] = []
    for at, (step, model) in enumerate(keys.tolist()):
        own = rows[(steps == step) & (models == model)]
        following = rows[steps == keys[at + 1, 0]] if at + 1 < len(keys) else ()
        until = int(window.lives.alloc[following].min()) if len(following) else window.events
        first = int(window.lives.alloc[own].max())
        calls = np.flatnonzero(running[first:until] == model)
        if not len(calls):
            return []
        generations.append(_Generation(own, first + int(calls[-1]), until))
    return generations


def _is_saved(window: Window, row: int) -> bool:
    """Whether the program may save what it makes there, or load it back."""
    binding = first_binding(window.stack(row))
    if binding is None:
        return True
    flow = flow_of(window.programs, binding.place, binding.target, through=False)
    return flow.reaches(SAVING)


def _rests(window: Window, one: _Generation) -> bool:
    """Whether a model is there for long after its last call, until another is made."""
    if one.rests_until >= window.events:
        return False  # it may be called again after the recording
    made, used, over = (
        int(window.step_of_event[event])
        for event in (window.lives.alloc[one.rows[0]], one.last_use, one.rests_until)
    )
    is_there = bool((window.lives.free[one.rows] >= one.rests_until).all())
    return is_there and over - used >= max(_LEAST_STEPS, _MOSTLY * (over - made))


RULE = RestingModels()
