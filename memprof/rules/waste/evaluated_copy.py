"""evaluated-copy: a model is copied to be evaluated, which changes nothing of it."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import (
    LOOPS,
    Place,
    Program,
    arguments,
    bound_names,
    called_name,
    calls_in,
    place_of,
    root_name,
)
from memprof.source_code.scopes import nodes_around, reads_of
from memprof.trace import SURVIVOR_AGE, Category, Frame
from memprof.units import format_bytes
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, in one copy."""
_COPY = "deepcopy"
_SETTINGS = frozenset(("cpu", "eval", "float", "requires_grad_", "to"))
"""Methods of a model that are called of the copy, besides the copy itself."""
_METHOD_CALL = 2
"""Nodes around a name of which a method is called: the attribute, and the call."""
_CHANGING = ("add_", "backward", "copy_", "half", "lerp_", "load_state_dict", "mul_", "step")
"""Calls by which a copy may become something else than the model."""
_LOADING = "load_state_dict"
_DEEPEST = 2
"""Functions that hand the copy on, down to what calls it."""


@dataclass(frozen=True, slots=True, eq=False)
class EvaluatedCopy(Match):
    """What is copied, by which statement."""

    model: str = ""
    place: Place | None = None


class EvaluatedCopyRule(WasteRule[EvaluatedCopy]):
    """`net = copy.deepcopy(model).eval()` in a function that computes a score."""

    name = "evaluated-copy"
    summary = "a model is copied to be evaluated"
    fixes = ("evaluate_itself",)

    def matches(self, window: Window) -> Iterator[EvaluatedCopy]:
        """Copies of parameters at the peak that are gone again in the same step."""
        if window.peak.event < 0:
            return
        lives = window.lives
        is_copy = ~window.has_owner | (window.category == Category.PARAMETER)  # one may be known
        brief = is_copy & (window.freed_in - window.made_in < SURVIVOR_AGE)
        sizes = np.unique(lives.requested[window.category == Category.PARAMETER])
        brief &= (lives.alloc >= 0) & np.isin(lives.requested, sizes)
        models = {path.partition(".")[0] for path in window.owners.module.names}
        for frame, place in _statements(window, brief & window.at_peak):
            model = _copied(place, models)
            if not model:
                continue
            every = brief & _made_below(window, frame)
            there = every & window.at_peak
            yield EvaluatedCopy(
                row=window.largest(there),
                rows=np.flatnonzero(there),
                nbytes=window.bytes_of(there),
                saving=window.replayed(window.whole(np.flatnonzero(every))),
                look_at=frame,
                model=model,
                place=place,
            )
            return

    def title(self, match: EvaluatedCopy) -> str:
        """Say what it is a copy of."""
        return f"are a copy of `{match.model}`, which is only called"

    def advice(self, match: EvaluatedCopy, _case: Case) -> Iterator[Advice]:
        """Call the model itself."""
        why = (
            f"A copy of `{match.model}` takes {format_bytes(match.nbytes)}, and what is called of "
            f"it changes nothing: call `{match.model}.eval()`, the model itself without gradients, "
            f"and `{match.model}.train()` when that is done."
        )
        yield Advice("evaluate_itself", why, match.place, typed=f"{match.model}.eval()")


def _statements(window: Window, mask: Bools) -> Iterator[tuple[Frame, Place]]:
    """Statements below which enough of these tensors were made, those of the most bytes first."""
    lives = window.lives
    nbytes: dict[Frame, int] = {}
    for stack in np.unique(lives.stack[mask]).tolist():
        made = int(lives.size[mask & (lives.stack == stack)].sum())
        for frame in dict.fromkeys(window.user_frames(window.trace.stack(stack))):
            nbytes[frame] = nbytes.get(frame, 0) + made
    for frame in sorted(nbytes, key=lambda one: -nbytes[one]):
        place = place_of(frame) if window.share(nbytes[frame]) >= _LEAST_SHARE else None
        if place is not None:
            yield frame, place


def _made_below(window: Window, frame: Frame) -> Bools:
    """Per lifetime: whether a statement, or what it calls, made it."""
    stacks = map(window.trace.stack, range(len(window.trace.tables.stacks)))
    below: Bools = np.array([frame in stack for stack in stacks], dtype=bool)[window.lives.stack]
    return below


def _copied(place: Place, models: Collection[str]) -> str:
    """What a statement copies, where the copy is called and nothing else is done with it.

    ``models`` are the classes that models are of.
    """
    for copy in calls_in(place.statement, _COPY):
        node, around = _with_settings(copy, nodes_around(place.statement, copy))
        if copy.args and (
            _is_called(node, around) or _is_handed_on(place.program, node, around, _DEEPEST)
        ):
            return _text(copy.args[0])
    names = [one for one in bound_names(place.statement) if isinstance(one, ast.Name)]
    if place.function is None or len(names) != 1:
        return ""
    model, loading = _model_of(place, names[0].id, models)
    if model is None or not _is_only_called(place, _text(model), loading):
        return ""
    return _text(model)


def _text(model: ast.expr) -> str:
    """The name of a model; empty for anything else."""
    return ast.unparse(model) if isinstance(model, (ast.Name, ast.Attribute)) else ""


def _model_of(
    place: Place, name: str, models: Collection[str]
) -> tuple[ast.expr | None, ast.Call | None]:
    """What a statement copies as a whole, or makes anew for its values, and the call that loads."""
    copies = [one for one in calls_in(place.statement, _COPY) if one.args]
    if len(copies) == 1:
        return copies[0].args[0], None
    loading = calls_in(place.scope, _LOADING)
    if copies or len(loading) != 1 or len([*arguments(loading[0])]) != 1:
        return None, None
    (load,) = loading
    states = next(iter(arguments(load)))
    is_of_copy = isinstance(load.func, ast.Attribute) and ast.unparse(load.func.value) == name
    if not is_of_copy or called_name(states) != "state_dict":
        return None, None
    function = states.func if isinstance(states, ast.Call) else None
    model = function.value if isinstance(function, ast.Attribute) else None
    if model is None or not _is_made_like(place, ast.unparse(model), models):
        return None, None
    return model, load


def _is_made_like(place: Place, model: str, models: Collection[str]) -> bool:
    """Whether a statement makes another of a model's class, by nothing but what the model has.

    ``type(model)(*model.args)``, ``model.__class__()``. Or of a class of the program that a model
    is of, as ``Policy(width)``: it takes the model's values as they are.
    """
    made = getattr(place.statement, "value", None)
    while isinstance(made, ast.Call) and called_name(made) in _SETTINGS:
        made = made.func.value if isinstance(made.func, ast.Attribute) else None
    if not isinstance(made, ast.Call):
        return False
    given = [one.value if isinstance(one, ast.Starred) else one for one in arguments(made)]
    if called_name(made) in models and any(
        class_.name == called_name(made) for class_ in place.program.classes()
    ):
        return not any(calls_in(one) for one in given)
    of_class = ast.unparse(made.func) in (f"type({model})", f"{model}.__class__")
    root = model.partition(".")[0]
    return of_class and all(
        isinstance(one, ast.Constant) or root_name(one) == root for one in given
    )


def _is_only_called(place: Place, model: str, loading: ast.Call | None = None) -> bool:
    """Whether what a statement binds is called, here or where the function returns it to.

    ``loading`` is the call that gives a copy its values; any other that changes it, or the
    ``model`` before the copy is read, is none.
    """
    names = [one for one in bound_names(place.statement) if isinstance(one, ast.Name)]
    if len(names) != 1:
        return False
    own = {id(node) for node in ast.walk(place.statement)}
    reads = [
        (load, around)
        for load, around in reads_of(place.scope, names[0].id)
        # before the statement, the name is that of the model
        if id(load) not in own and (load.lineno > place.line or place.loop is not None)
    ]
    others = [one for one in reads if loading is None or loading not in one[1]]
    if _changes_meanwhile(place, model, loading, others):
        return False
    returned = [one for one in others if _is_returned(*one)]
    calls = [one for one in others if _is_called(*one)]
    handed = [one for one in others if _is_handed_on(place.program, *one, _DEEPEST)]
    uses = [*returned, *calls, *handed]
    if not all(one in uses or _is_set(*one) for one in others):
        return False
    return _is_only_called_outside(place) if returned else bool(calls or handed)


def _changes_meanwhile(
    place: Place,
    model: str,
    loading: ast.Call | None,
    reads: Sequence[tuple[ast.expr, list[ast.AST]]],
) -> bool:
    """Whether a model may be changed between the copy of it and where that is read last."""
    own = {id(node) for node in ast.walk(place.statement)}
    # Of what stands around the copy alone, the copy may be one that an earlier turn has made.
    branches = [one for one in place.around if isinstance(one, (*LOOPS, ast.If, ast.Try))]
    reading = [
        _is_returned(load, around)
        or load.lineno < place.line
        or any(one not in around for one in branches)
        for load, around in reads
    ]
    first, last = place.line, place.line
    if any(reading):
        first, last = 0, max(getattr(node, "lineno", 0) for node in ast.walk(place.scope))
    for load, around in reads:
        loops = [one for one in around if isinstance(one, LOOPS) and one not in place.around]
        last = max(last, load.lineno, *(one.end_lineno or 0 for one in loops))
    return any(
        first <= call.lineno <= last and _may_change(place.program, call, model)
        for call in calls_in(place.scope)
        if call is not loading and id(call) not in own
    )


def _may_change(program: Program, call: ast.Call, model: str) -> bool:
    """Whether a call changes parameters, by itself or in a function of the program.

    Or whether the model is handed to what is none of the program's functions.
    """
    name = called_name(call)
    functions = program.functions(name)
    if name in _CHANGING or any(calls_in(one, *_CHANGING) for one in functions):
        return True
    is_known = functions or name == _COPY or hasattr(builtins, name)
    return not is_known and any(ast.unparse(one) == model for one in arguments(call))


def _is_only_called_outside(place: Place) -> bool:
    """Whether all who call the function around a statement do no more with what it returns."""
    function = place.function
    if function is None:
        return False
    calls = [
        (call, at)
        for call in calls_in(place.program.tree, function.name)
        if (at := place.program.place(call)) is not None and at.function is not function
    ]
    return bool(calls) and all(
        _is_bound_or_called(call, at) and not calls_in(at.scope, *_CHANGING) for call, at in calls
    )


def _is_bound_or_called(call: ast.Call, at: Place) -> bool:
    """Whether a statement calls what a call returns, or binds it to a name that is only called."""
    if any(one.func is call for one in calls_in(at.statement)):
        return True
    bound = isinstance(at.statement, ast.Assign) and at.statement.value is call
    return bound and at.function is not None and _is_only_called(at, "")


def _is_called(load: ast.expr, around: list[ast.AST]) -> bool:
    """Whether the copy is what a call calls."""
    parent = around[-1] if around else None
    return isinstance(parent, ast.Call) and parent.func is load


def _is_handed_on(program: Program, load: ast.expr, around: list[ast.AST], deepest: int) -> bool:
    """Whether the copy is given to functions of the program that call it, and do no more."""
    node, around = _with_settings(load, around)
    given: ast.AST = node
    if around and isinstance(around[-1], ast.keyword):
        given, around = around[-1], around[:-1]
    call = around[-1] if around else None
    if not isinstance(call, ast.Call) or call.func is given or deepest == 0:
        return False
    functions = program.functions(called_name(call))
    return bool(functions) and all(
        _calls_parameter(program, function, name, deepest)
        for function in functions
        for name in [_parameter(function, call, given)]
    )


def _calls_parameter(
    program: Program, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, deepest: int
) -> bool:
    """Whether a function calls what it is given by a name, and does nothing else with it."""
    if not name or calls_in(function, *_CHANGING):
        return False
    reads = [*reads_of(function, name)]
    uses = [one for one in reads if _is_called(*one) or _is_handed_on(program, *one, deepest - 1)]
    return bool(uses) and all(one in uses or _is_set(*one) for one in reads)


def _parameter(
    function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call, given: ast.AST
) -> str:
    """The parameter of a function that an argument of a call is bound to; empty if not known."""
    if isinstance(given, ast.keyword):
        return given.arg or ""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    if names[:1] in (["self"], ["cls"]) and isinstance(call.func, ast.Attribute):
        names = names[1:]
    at = next((number for number, one in enumerate(call.args) if one is given), len(names))
    is_spread = any(isinstance(one, ast.Starred) for one in call.args)
    return names[at] if at < len(names) and not is_spread else ""


def _with_settings(node: ast.expr, around: list[ast.AST]) -> tuple[ast.expr, list[ast.AST]]:
    """A copy with the methods called of it that leave its values, and the nodes around these."""
    while len(around) >= _METHOD_CALL and _is_set(node, around):
        call = around[-2]
        if not isinstance(call, ast.Call):
            break
        node, around = call, around[:-2]
    return node, around


def _is_returned(load: ast.expr, around: list[ast.AST]) -> bool:
    """Whether the copy is returned, also by a chain of methods that leave its values."""
    _, around = _with_settings(load, around)
    return bool(around) and isinstance(around[-1], ast.Return)


def _is_set(load: ast.AST, around: list[ast.AST]) -> bool:
    """Whether a method of the copy is called that leaves its values as they are."""
    if len(around) < _METHOD_CALL:
        return False
    method, call = around[-1], around[-2]
    is_method = isinstance(method, ast.Attribute) and method.value is load
    return is_method and isinstance(call, ast.Call) and _leaves_values(call)


def _leaves_values(call: ast.Call) -> bool:
    """``eval()`` and its like; ``train(False)``, which is the same."""
    mode = next(iter(arguments(call)), None)
    is_eval = called_name(call) == "train" and isinstance(mode, ast.Constant) and not mode.value
    return called_name(call) in _SETTINGS or is_eval


RULE = EvaluatedCopyRule()
