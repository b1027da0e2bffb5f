"""idle-model: a model that is called no more stays beside the one that is trained."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.rules.running_variables import still_running, variable_of
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.given_attributes import (
    GivenAttribute,
    derived_classes,
    given_attribute,
    is_module,
)
from memprof.source_code.idle_attributes import idle_attribute
from memprof.source_code.last_reads import (
    deleted_before,
    handed_to,
    last_read_before,
    reads_again,
)
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    bound_names,
    called_name,
    calls_in,
    own_calls,
    place_of,
)
from memprof.source_code.verbs import SAVING
from memprof.trace import EMPTY, Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_STEPS = 8
"""In which it is not called: an evaluation may come now and then."""
_LEAST_SHARE = 0.05
"""Of the peak, that a model has: there may be several."""
_INIT = "__init__"
_Names = npt.NDArray[np.str_]
_OF_TRAINING = (Category.GRADIENT, Category.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True, eq=False)
class _Resting:
    """A model that was called, and is no more."""

    class_names: Collection[str]
    """What its class may be called where it is made."""
    rows: Ints
    ends: Ints
    """The event after its last call, for each."""
    calls: Ints
    """The events in its calls."""
    around: int = 0
    """The frames around its `__init__` where others call its parts; 0 where it is called itself."""


@dataclass(frozen=True, slots=True, eq=False)
class HandedModel:
    """``Trainer(ref_model=copied(policy))``."""

    call: str
    """What is called, as written."""
    argument: str
    """The keyword; empty without one."""
    target: str
    """The variable that the statement binds; empty for none."""

    @property
    def dropped_by(self) -> str:
        """What to type so that it goes; empty where its attribute is not known."""
        return f"{self.target}.{self.argument} = None" if self.target and self.argument else ""


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
    given: GivenAttribute | None = None
    """The attribute, the field or the entry that ``place`` sets; ``last_line`` calls it last."""
    deleted_line: int = 0
    """Where the variable is deleted, and something else keeps the model; 0: it is not."""
    handed: HandedModel | None = None
    """The call that the model is made for, with no variable of its own."""


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
        root_of = np.array([name.partition(".")[0] for name in window.owners.module.names])
        trained = set(root_of[window.module[np.isin(window.category, _OF_TRAINING)]].tolist())
        if not trained - {""}:
            return
        resting = _resting(window, root_of, trained | {""})
        models: list[_Idle] = []
        is_done = np.zeros(len(window.lives), dtype=np.bool_)
        for root, part in resting.items():
            whole = _module_around(window, root_of, resting, root)
            rests = part if whole is None or not len(whole.rows) else whole
            if is_done[rests.rows].any() or not _is_large(window, rests):
                continue
            idle = _idle(window, rests, is_part=whole is not None and rests is part)
            if idle is not None:
                models.append(idle)
                is_done[idle.rows] = True
        by_function: dict[int, list[_Idle]] = {}
        for one in sorted(models, key=lambda one: (one.place.line, one.name)):
            apart = one.given if one.given is not None else one.place.scope
            by_function.setdefault(id(apart), []).append(one)
        yield from (_match(window, of_function) for of_function in by_function.values())

    def title(self, match: IdleModels) -> str:
        """Say which they are."""
        models = "a model that is" if len(match.models) == 1 else "models that are"
        where = "once in" if all(one.deleted_line for one in match.models) else "in"
        return f"are {models} called no more, {where} {_names(match)}"

    def advice(self, match: IdleModels, case: Case) -> Iterator[Advice]:
        """Let go of them after the last use."""
        last = max(match.models, key=lambda one: one.last_line)
        if last.given is not None:
            why = (
                f"`{last.given.text}` keeps a model of {format_bytes(match.nbytes)} that nothing "
                f"has called since line {last.last_line} did last: let go of it then "
                f"(`{last.given.dropped_by}`), or keep none there."
            )
            yield Advice("del_ref", why, last.place, typed=last.given.dropped_by)
            return
        if last.handed is not None:
            nbytes, handed = format_bytes(match.nbytes), last.handed
            since = f" since line {last.last_line} did last" if last.last_line else ""
            why = (
                f"`{handed.call}` is handed a model of {nbytes} that nothing has called{since}: do "
                "without it there, or let go of it then."
            )
            yield Advice("del_ref", why, last.place, typed=handed.dropped_by)
            return
        if last.deleted_line:
            yield self._of_another(last, match, case)
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

    def _of_another(self, model: _Idle, match: IdleModels, case: Case) -> Advice:
        """Have it let go of who was handed it: the variable is gone."""
        why = (
            f"`del {model.name}` in line {model.deleted_line} lets go of the name, and "
            f"{format_bytes(match.nbytes)} of a model that nothing calls any more stay"
        )
        call = handed_to(model.place, model.name, model.deleted_line)
        if call is None:
            return Advice("del_ref", f"{why}: something else has it.", model.place)
        assert isinstance(call.func, ast.Attribute)
        place = case.place_at(model.place.program.filename, call.lineno)
        engine = ast.unparse(call.func.value)
        why += (
            f": `{ast.unparse(call.func)}` was handed it in line {call.lineno}. Have `{engine}` "
            "let go of it (by `free_memory`, `clear` or `reset`, if it has one), or do not hand it "
            "over."
        )
        return Advice("del_ref", why, place or model.place)


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


def _resting(window: Window, root_of: _Names, others: Collection[str]) -> dict[str, _Resting]:
    """By their names, the models with parameters at the peak that were called and are no more."""
    labels = window.trace.tables.labels
    called = np.array(
        [one.module.partition(".")[0] if one.phase == Phase.FORWARD else "" for one in labels]
    )
    parameters = window.at_peak & (window.category == Category.PARAMETER)
    resting = {}
    for root in sorted(set(root_of[window.module[parameters]].tolist()) - set(others)):
        calls = np.flatnonzero((called == root)[window.trace.events.label])
        if not len(calls) or int(calls[-1]) >= window.peak.event:
            continue
        later = window.steps[window.steps > window.step_of_event[calls[-1]]]
        if len(later) >= _LEAST_STEPS and 2 * len(later) >= len(window.steps):
            rows = np.flatnonzero(parameters & (root_of[window.module] == root))
            ends = np.full(len(rows), int(calls[-1]) + 1)
            resting[root] = _Resting((root.partition("#")[0],), rows, ends, calls)
    return resting


def _is_large(window: Window, model: _Resting) -> bool:
    return window.share(int(window.lives.size[model.rows].sum())) >= _LEAST_SHARE


def _made_by(window: Window, model: _Resting) -> tuple[Frame, ...]:
    """The frames that made the largest parameter of a model, innermost first."""
    return window.stack(int(model.rows[np.argmax(window.lives.size[model.rows])]))


def _module_around(
    window: Window, root_of: _Names, resting: Mapping[str, _Resting], root: str
) -> _Resting | None:
    """The model in whose `__init__` the one of a name was made as a part; None where there is none.

    So it is where a method of it calls its parts: ``vae.encode(images)``. It has no rows where one
    of its parts does not rest. Whatever else was made there goes with it: a part that was never
    called.
    """
    made_by = _made_by(window, resting[root])
    at, class_ = _outermost_init(made_by, window.programs)
    names = derived_classes(window.programs, class_.name) if class_ is not None else frozenset()
    if class_ is None or names & set(resting[root].class_names):
        return None
    outer = made_by[at + 1 :]
    stacks = [
        number
        for number in np.unique(window.lives.stack[window.at_peak]).tolist()
        for stack in [window.trace.stack(number)]
        if stack[len(stack) - len(outer) :] == outer and len(stack) > len(outer)
        if (place := place_of(stack[-len(outer) - 1])) is not None and place.class_ is class_
    ]
    rows = np.flatnonzero(window.at_peak & np.isin(window.lives.stack, stacks))
    roots = root_of[window.module[rows]]
    parts = [resting[one] for one in sorted(set(roots.tolist()) & resting.keys())]
    if set(roots[window.module[rows] > 0].tolist()) - resting.keys():
        rows = rows[:0]
    calls = np.unique(np.concatenate([one.calls for one in parts]))
    last = {one: int(resting[one].calls[-1]) + 1 for one in resting}
    ends = [last.get(one, int(calls[-1]) + 1) for one in root_of[window.module[rows]].tolist()]
    return _Resting(names, rows, np.array(ends, dtype=np.int64), calls, len(outer))


def _outermost_init(
    made_by: Sequence[Frame], programs: Sequence[Program]
) -> tuple[int, ast.ClassDef | None]:
    """The outermost frame in which a module of the program's is made, and the module's class."""
    for at in range(len(made_by) - 1, -1, -1):
        place = place_of(made_by[at])
        function = place.function if place is not None else None
        is_init = function is not None and function.name == _INIT
        if place is not None and is_init and is_module(programs, place.class_):
            return at, place.class_
    return -1, None


def _idle(window: Window, model: _Resting, *, is_part: bool) -> _Idle | None:
    """What keeps a model that rests; None where nothing is known of that.

    Of one that ``is_part`` of another, which does not rest, only an attribute that nothing reads.
    """
    made_by, now = _made_by(window, model), window.stack_at_peak
    attribute = idle_attribute(made_by[-model.around :], now, window.programs)
    if attribute is not None:
        return _Idle(model.rows, model.ends, attribute.name, attribute.place, attribute.line)
    if is_part:
        return None
    if window.reaches_end:  # whatever the source says, nothing called it again
        given = given_attribute(made_by, window.programs, now)
        if given is not None and not _is_saved(window.programs, given):
            line = _last_line(window, model.calls)
            return _Idle(model.rows, model.ends, given.text, given.place, line, given)
        handed = _handed(made_by)
        if handed is not None:
            at, of = handed
            line, name = _last_line(window, model.calls), of.argument or of.call
            return _Idle(model.rows, model.ends, name, at, line, handed=of)
    back = still_running(made_by, now)
    place = place_of(made_by[-back]) if back is not None else None
    if back is None or place is None:
        return None
    name, line_now = variable_of(place, made_by[:-back], *model.class_names), now[-back].line
    if not name or reads_again(place, name, line_now):
        return None
    last_line = last_read_before(place, name, line_now)
    deleted_line = deleted_before(place, name, line_now)
    return _Idle(model.rows, model.ends, name, place, last_line, deleted_line=deleted_line)


def _handed(made_by: Sequence[Frame]) -> tuple[Place, HandedModel] | None:
    """The statement that makes a model within the arguments of a library's call, and the call."""
    for inner, frame in pairwise(made_by):
        place = place_of(frame)
        if place is None or frame_kind(frame.filename) is not FrameKind.USER:
            continue
        maker = inner.name.rpartition(".")[2]
        for call in own_calls(place.statement):
            given = [("", one) for one in call.args]
            given += [(one.arg or "", one.value) for one in call.keywords]
            for argument, value in given:
                is_made = isinstance(value, ast.Call) and called_name(value) == maker
                if is_made and not _is_own(place.program, call):
                    targets = bound_names(place.statement)
                    target = ast.unparse(targets[0]) if len(targets) == 1 else ""
                    return place, HandedModel(ast.unparse(call.func), argument, target)
    return None


def _is_own(program: Program, call: ast.Call) -> bool:
    """Whether a call is of a class or a function of the file."""
    own = {node.name for node in program.nodes if isinstance(node, (*FUNCTIONS, ast.ClassDef))}
    return called_name(call) in own


def _last_line(window: Window, calls: Ints) -> int:
    """The line that calls the model in the stack of the last of some events; 0 without one."""
    stacks = window.trace.events.stack[calls]
    stacks = stacks[stacks != EMPTY]
    stack = window.trace.stack(int(stacks[-1])) if len(stacks) else ()
    within = [at for at, frame in enumerate(stack) if "_call_impl" in frame.name]
    frames = window.user_frames(stack[max(within, default=-1) + 1 :])
    return frames[0].line if frames else 0


def _is_saved(programs: Sequence[Program], given: GivenAttribute) -> bool:
    """Whether a program saves what has that name, or all that its holder has: that is no call."""
    holding = given.holding.scope if given.holding is not None else None
    saving = [call for program in programs for call in calls_in(program.tree, *SAVING)]
    own = calls_in(holding, *SAVING) if holding is not None else []
    return any(
        (isinstance(node, ast.Attribute) and node.attr == given.name)
        or (isinstance(node, ast.Subscript) and _is_key(node.slice, given.name))
        for call in saving
        for node in ast.walk(call)
    ) or any(ast.unparse(node) == given.holder for call in own for node in ast.walk(call))


def _is_key(key: ast.expr, name: str) -> bool:
    return isinstance(key, ast.Constant) and key.value == name


RULE = IdleModel()
