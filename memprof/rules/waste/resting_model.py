"""resting-model: a model that is made anew now and then rests between its uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.dataflow import flow_of
from memprof.source_code.lasting_names import first_binding
from memprof.source_code.verbs import SAVING
from memprof.trace import Category, Frame
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_TIMES = 2
"""Models made at one line, one after the other: a single one may be for the end of the program."""
_LEAST_STEPS = 4
"""That one rests, before another takes its place."""
_SAVING = SAVING - {"load_state_dict"}
"""A model is loaded into by that, and another one by its `state_dict`."""
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
    yields_to = ("frozen-twin",)

    def matches(self, window: Window) -> Iterator[RestingModel]:
        """Parameters of one line, of which another set takes the place when one is called again.

        Each is called soon after it is made, and then no more.
        """
        parameters = window.category == Category.PARAMETER
        made_here = parameters & (window.lives.alloc >= 0)
        by_model: dict[str, list[_Generation]] = {}
        for site in np.unique(window.site[made_here]):
            generations = _generations(window, np.flatnonzero(made_here & (window.site == site)))
            resting = [one for one in generations if _rests(window, one)]
            if resting and len(resting) + _unseen(window, generations) >= _LEAST_TIMES:
                model = _root(window.module_name(int(resting[0].rows[0])))
                by_model.setdefault(model, []).extend(generations)
        for model, generations in by_model.items():
            every = np.concatenate([one.rows for one in generations])
            ends = np.concatenate([np.full(len(one.rows), one.last_use) for one in generations])
            # Of some the job may not have seen that they are a model's: they last as long.
            unknown = ~window.has_owner & np.isin(window.lives.stack, window.lives.stack[every])
            others = np.flatnonzero(unknown & (window.lives.alloc >= 0))
            use = int(np.median(ends - window.lives.alloc[every]))
            every = np.concatenate([every, others])
            ends = np.concatenate([ends, window.lives.alloc[others] + use])
            rows = every[window.at_peak[every] & (ends < window.peak.event)]
            row = int(rows[np.argmax(window.lives.size[rows])]) if len(rows) else -1
            if row < 0 or _is_saved(window, row):
                continue
            yield RestingModel(
                row=row,
                rows=rows,
                nbytes=int(window.lives.size[rows].sum()),
                saving=window.replayed(window.ended_at(every, ends)),
                model=model,
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
        # Not the lines of the class by which it makes its parts.
        outside = (place for frame, place in case.frames if not _is_init(frame))
        yield Advice("del_ref", why, next(outside, case.site))


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
        following = _made_in(window, number, *keys[at + 1].tolist()) if at + 1 < len(keys) else ()
        # Of the last one the job may not have seen that it is a model's.
        alike = np.isin(window.lives.stack, window.lives.stack[own]) & (window.made_in > step)
        made = window.lives.alloc[np.union1d(following, np.flatnonzero(alike)).astype(np.int64)]
        until = int(made.min(initial=window.events))
        first = int(window.lives.alloc[own].max())
        calls = np.flatnonzero(running[first:until] == model)
        if not len(calls):
            return []
        is_other = at + 1 < len(keys) and int(keys[at + 1, 1]) != model
        if is_other and (running[until:] == model).any():
            continue  # none takes its place: the line makes the model that is trained as well
        generations.append(_Generation(own, first + int(calls[-1]), until))
    return generations


def _unseen(window: Window, generations: Sequence[_Generation]) -> int:
    """Models of the same line that were there for long, and that the job did not see called.

    It looks now and then whose parameters are whose, and one is called for a moment only.
    """
    lives = window.lives
    stacks = np.unique(lives.stack[np.concatenate([one.rows for one in generations])])
    unseen = ~window.has_owner & np.isin(lives.stack, stacks) & (lives.free < window.events)
    unseen &= (lives.alloc >= 0) & (window.freed_in - window.made_in >= _LEAST_STEPS)
    return len(np.unique(window.made_in[unseen]))


def _made_in(window: Window, models: Mapping[str, int], step: int, model: int) -> Ints:
    """All parameters that a step made of a model: other lines may make some before the first."""
    rows = np.flatnonzero((window.category == Category.PARAMETER) & (window.made_in == step))
    of_rows = [models.get(_root(window.module_name(row)), -1) for row in rows.tolist()]
    own: Ints = rows[np.array(of_rows, dtype=np.int64) == model]
    return own


def _is_saved(window: Window, row: int) -> bool:
    """Whether the program may save what it makes there, or load it back."""
    binding = first_binding([one for one in window.stack(row) if not _is_init(one)])
    if binding is None:
        return True
    flow = flow_of(window.programs, binding.place, binding.target, through=False)
    return flow.reaches(_SAVING)


def _is_init(frame: Frame) -> bool:
    return "__init__" in frame.name.split(".")  # a comprehension has a frame in it, or had


def _rests(window: Window, one: _Generation) -> bool:
    """Whether a model is there for long after its last call, until another is made."""
    if one.rests_until >= window.events:
        return False  # it may be called again after the recording
    # It may go before another is made that is known of.
    over_at = min(one.rests_until, int(window.lives.free[one.rows].min()))
    made, used, over = (
        int(window.step_of_event[event])
        for event in (window.lives.alloc[one.rows[0]], one.last_use, over_at)
    )
    return over - used >= max(_LEAST_STEPS, _MOSTLY * (over - made))


RULE = RestingModels()
