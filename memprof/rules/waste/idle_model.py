"""idle-model: a model that is called no more stays beside the one that is trained."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.running_variables import still_running, variable_of
from memprof.source_code.given_attributes import given_attribute
from memprof.source_code.idle_attributes import idle_attribute
from memprof.source_code.last_reads import last_read_before, reads_again
from memprof.source_code.program import Place, Program, calls_in, place_of
from memprof.source_code.verbs import SAVING
from memprof.trace import EMPTY, Category, Phase
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_STEPS = 8
"""In which it is not called: an evaluation may come now and then."""
_LEAST_SHARE = 0.05
"""Of the peak, that a model has: there may be several."""
_OF_TRAINING = (Category.GRADIENT, Category.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True, eq=False)
class _Idle:
    """A model and the variable that keeps it."""

    rows: Ints
    ends: Ints
    """The event after its last call, for each."""
    name: str
    place: Place
    """The statement that binds the variable."""
    last_line: int
    """On which the variable is read last."""
    is_attribute: bool = False
    """The name is an attribute's, which ``place`` sets; ``last_line`` calls the model last."""


@dataclass(frozen=True, slots=True, eq=False)
class IdleModels(Match):
    """What variables keep that are read no more."""

    models: tuple[_Idle, ...] = ()


class IdleModel(WasteRule[IdleModels]):
    """`prompts = encode(text_encoder, texts)`, and the encoder stays while a U-Net is trained."""

    name = "idle-model"
    summary = "a model that is called no more stays beside the one that is trained"
    fixes = ("del_ref",)

    def matches(self, window: Window) -> Iterator[IdleModels]:
        """Parameters of models that nothing trains, calls or reads any more, by their variables."""
        names = window.owners.module.names
        root_of = np.array([name.partition(".")[0] for name in names])
        trained = set(root_of[window.module[np.isin(window.category, _OF_TRAINING)]].tolist())
        parameters = window.at_peak & (window.category == Category.PARAMETER)
        models = []
        for root in sorted(set(root_of[window.module[parameters]].tolist()) - trained - {""}):
            rows = np.flatnonzero(parameters & (root_of[window.module] == root))
            if window.share(int(window.lives.size[rows].sum())) >= _LEAST_SHARE:
                idle = _idle(window, root, rows)
                models += [idle] if idle is not None else []
        if not trained - {""}:
            return
        by_function: dict[int, list[_Idle]] = {}
        for one in sorted(models, key=lambda one: (one.place.line, one.name)):
            by_function.setdefault(id(one.place.scope), []).append(one)
        yield from (_match(window, of_function) for of_function in by_function.values())

    def title(self, match: IdleModels) -> str:
        """Say which they are."""
        models = "a model that is" if len(match.models) == 1 else "models that are"
        return f"are {models} called no more, in {_names(match)}"

    def advice(self, match: IdleModels, case: Case) -> Iterator[Advice]:
        """Let go of them after the last use."""
        last = max(match.models, key=lambda one: one.last_line)
        if last.is_attribute:
            kept = f"`self.{last.name}` keeps a model of {format_bytes(match.nbytes)}"
            why = (
                f"{kept} that nothing has called since line {last.last_line} did last: set it to "
                "`None` then, or keep none there."
            )
            yield Advice("del_ref", why, last.place, typed=f"self.{last.name} = None")
            return
        variables = list(dict.fromkeys(one.name for one in match.models))
        names = ", ".join(variables)
        keep, them = ("keeps", "it") if len(variables) == 1 else ("keep", "them")
        models = "a model" if len(match.models) == 1 else "models"
        why = (
            f"{_names(match)} {keep} {models} of {format_bytes(match.nbytes)} that nothing calls "
            f"any more: `del {names}` after line {last.last_line}, the last that reads {them}, and "
            f"let go of whatever else holds {them}."
        )
        place = case.place_at(last.place.program.filename, last.last_line)
        yield Advice("del_ref", why, place or case.site, typed=f"del {names}")


def _match(window: Window, models: list[_Idle]) -> IdleModels:
    """Those of one function, whose variables one statement can drop."""
    every = np.concatenate([one.rows for one in models])
    ends = np.concatenate([one.ends for one in models])
    return IdleModels(
        row=int(every[np.argmax(window.lives.size[every])]),
        rows=every,
        nbytes=int(window.lives.size[every].sum()),
        saving=window.replayed(window.ended_at(every, ends)),
        models=tuple(models),
    )


def _names(match: IdleModels) -> str:
    return " and ".join(dict.fromkeys(f"`{one.name}`" for one in match.models))


def _idle(window: Window, root: str, rows: Ints) -> _Idle | None:
    """The model of a name, where it was called and is no more; None for others."""
    labels = window.trace.tables.labels
    is_called = np.array(
        [one.module.partition(".")[0] == root and one.phase == Phase.FORWARD for one in labels]
    )
    calls = np.flatnonzero(is_called[window.trace.events.label])
    if not len(calls) or int(calls[-1]) >= window.peak.event:
        return None
    later = window.steps[window.steps > window.step_of_event[calls[-1]]]
    if len(later) < _LEAST_STEPS or 2 * len(later) < len(window.steps):
        return None
    made_by = window.stack(int(rows[np.argmax(window.lives.size[rows])]))
    now = window.trace.stack(int(window.trace.events.stack[window.peak.event]))
    ends = np.full(len(rows), int(calls[-1]) + 1)
    attribute = idle_attribute(made_by, now, window.programs)
    if attribute is not None:
        return _Idle(rows, ends, attribute.name, attribute.place, attribute.line)
    if window.reaches_end:  # whatever the source says, nothing called it again
        given = given_attribute(made_by, window.programs)
        if given is not None and not _is_saved(window.programs, given.name):
            line = _last_line(window, calls)
            return _Idle(rows, ends, given.name, given.place, line, is_attribute=True)
    back = still_running(made_by, now)
    place = place_of(made_by[-back]) if back is not None else None
    if back is None or place is None:
        return None
    name, line_now = variable_of(place, made_by[:-back], root.partition("#")[0]), now[-back].line
    if not name or reads_again(place, name, line_now):
        return None
    return _Idle(rows, ends, name, place, last_read_before(place, name, line_now))


def _last_line(window: Window, calls: Ints) -> int:
    """The line that calls the model in the stack of the last of some events; 0 without one."""
    stacks = window.trace.events.stack[calls]
    stacks = stacks[stacks != EMPTY]
    stack = window.trace.stack(int(stacks[-1])) if len(stacks) else ()
    within = [at for at, frame in enumerate(stack) if "_call_impl" in frame.name]
    frames = window.user_frames(stack[max(within, default=-1) + 1 :])
    return frames[0].line if frames else 0


def _is_saved(programs: Sequence[Program], attribute: str) -> bool:
    """Whether a program saves an attribute of that name, which calls nothing of it."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == attribute
        for program in programs
        for call in calls_in(program.tree, *SAVING)
        for node in ast.walk(call)
    )


RULE = IdleModel()
