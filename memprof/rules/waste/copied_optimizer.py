"""copied-optimizer: a deep copy of what trains a model has its optimizer's state as well."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import is_copy_module
from memprof.source_code.program import Place, calls_in, place_of
from memprof.trace import SURVIVOR_AGE, Category, Phase
from memprof.units import format_bytes
from memprof.views.stacks import made_through
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, in copied states."""
_FEWEST_STEPS = 8
"""In which the copied model is called: one that is not may be put back, with its optimizer."""
_LEAST_STATE = 64
"""Bytes of one state; a count of steps is less, and may be as large as anything."""
_FEWEST = 2
"""Copied states: a single tensor may be as large by chance."""
_NEARLY_ALL = 0.9
"""Of the bytes that are copied and no model's: so much must have the sizes of states."""
_SEVERAL = 3
"""Copies of as many steps, that are there together: more and more of them."""
_COPY = "deepcopy"


@dataclass(frozen=True, slots=True, eq=False)
class CopiedStates(Match):
    """What is copied."""

    source: str = ""


class CopiedOptimizer(WasteRule[CopiedStates]):
    """`target = copy.deepcopy(agent)`, where the agent has a model and its optimizer."""

    name = "copied-optimizer"
    summary = "a deep copy of what trains a model has its optimizer's state as well"
    fixes = ("copy_model",)

    def matches(self, window: Window) -> Iterator[CopiedStates]:
        """Copies of states that no optimizer works with, beside a copied model that is called.

        That model has no gradients, so none of its optimizer's steps comes later.
        """
        if len(window.steps) < _FEWEST_STEPS:
            return
        copied = made_through(window, lambda frame: is_copy_module(frame.filename))
        stays = window.stays | (window.freed_in - window.made_in >= SURVIVOR_AGE)
        # The last copy of several may have been made just before the recording ended.
        copied &= np.isin(window.lives.stack, window.lives.stack[copied & stays])
        there = copied & window.at_peak
        for site in window.large_sites(there & ~window.has_owner, _LEAST_SHARE):
            own = copied & (window.site == site)
            place = place_of(window.owners.sites.frames[site])
            source = _source(place) if place is not None else ""
            if not source or not _is_called_alone(window, own):
                continue
            of_states = _of_states(window, own & ~window.has_owner)
            rows = of_states[there[of_states]]
            # Of a copy whose model is not known, what the same calls made.
            alike = np.isin(window.lives.stack, np.unique(window.lives.stack[of_states]))
            alike &= window.lives.requested >= _LEAST_STATE
            every = np.flatnonzero(own & ~window.has_owner & alike)
            if len(rows) and window.share(int(window.lives.size[rows].sum())) >= _LEAST_SHARE:
                yield CopiedStates(
                    row=int(rows[window.lives.size[rows].argmax()]),
                    rows=rows,
                    nbytes=int(window.lives.size[rows].sum()),
                    saving=window.replayed(window.whole(every)),
                    rises=len(np.unique(window.made_in[rows])) >= _SEVERAL,
                    source=source,
                )

    def title(self, match: CopiedStates) -> str:
        """Say with what they were copied."""
        return f"are an optimizer's states, copied with `{match.source}`, that no step works with"

    def advice(self, match: CopiedStates, case: Case) -> Iterator[Advice]:
        """Copy the model alone."""
        why = (
            f"`deepcopy` copies all that `{match.source}` has, its optimizer too: "
            f"{format_bytes(match.nbytes)} of states, though the copied model is only called. Copy "
            "the model alone."
        )
        yield Advice("copy_model", why, case.site)


def _source(place: Place) -> str:
    """The name whose object a statement copies: no call, as one for a state dict is."""
    calls = [call for call in calls_in(place.statement, _COPY) if call.args]
    value = calls[0].args[0] if len(calls) == 1 else None
    return ast.unparse(value) if isinstance(value, (ast.Name, ast.Attribute)) else ""


def _is_called_alone(window: Window, copied: Bools) -> bool:
    """Whether models that are among some copies are called in several steps, and do not learn."""
    names = window.owners.module.names
    modules = np.unique(window.module[copied & (window.category == Category.PARAMETER)])
    roots = {names[at].partition(".")[0] for at in modules[modules > 0].tolist()}
    if not roots:
        return False
    in_roots = np.array([name.partition(".")[0] in roots for name in names])
    of_training = np.isin(window.category, (Category.GRADIENT, Category.OPTIMIZER_STATE))
    if (of_training & in_roots[window.module]).any():
        return False
    labels = window.trace.tables.labels
    of_label = np.array(
        [one.phase == Phase.FORWARD and one.module.partition(".")[0] in roots for one in labels]
    )
    called_in = window.step_of_event[:-1][of_label[window.trace.events.label]]
    return len(np.unique(called_in[called_in >= 0])) >= _FEWEST_STEPS


def _of_states(window: Window, copied: Bools) -> Ints:
    """What has the sizes of states that were there before, one for one in each copy; else empty.

    A copy that is made now and then is one of each step that makes it.
    """
    of_steps = [
        _of_one_copy(window, copied & (window.made_in == step))
        for step in np.unique(window.made_in[copied]).tolist()
    ]
    rows: Ints = np.concatenate([*of_steps, np.zeros(0, dtype=np.int64)])
    return rows


def _of_one_copy(window: Window, copied: Bools) -> Ints:
    lives = window.lives
    rows = np.flatnonzero(copied & (lives.requested >= _LEAST_STATE))
    if len(rows) < _FEWEST:
        return rows[:0]
    states = (window.category == Category.OPTIMIZER_STATE) & (lives.alloc < lives.alloc[rows].min())
    there = Counter(lives.requested[states].tolist())
    alike: list[int] = []
    for row in rows.tolist():
        size = int(lives.requested[row])
        if there[size] > 0:
            there[size] -= 1
            alike.append(row)
    own = np.array(alike, dtype=np.int64)
    is_all = lives.size[own].sum() >= _NEARLY_ALL * lives.size[rows].sum()
    return own if len(own) >= _FEWEST and is_all else rows[:0]


RULE = CopiedOptimizer()
