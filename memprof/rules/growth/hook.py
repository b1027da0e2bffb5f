"""hook: a registered hook keeps all that its function closes over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from memprof.records import Holder
from memprof.reference_chain import CYCLES, Link, LinkKind, largest_container
from memprof.rules.case import Case
from memprof.rules.containers import FilledContainer, places_in
from memprof.rules.graph_lines import is_forward
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import growing, last_name
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    arguments,
    calls_in,
    loaded_names,
    own_calls,
)

__all__ = ["RULE"]

_MOSTLY = 0.5
"""Of the bytes, that are there without a graph: else it is to be cut off."""
_OF_EVERY_STEP = 0.75
"""Of the steps that made what grows, from which a list has an item of nearly each."""
_FUNCTION_LINKS = frozenset({LinkKind.BOUND_METHOD, LinkKind.CLOSURE, LinkKind.PARTIAL})
"""Links from a function to what it keeps."""
_DEEPEST = 4
"""Functions that are gone through, from the one that registers to a loop."""
_OF_CALLBACKS = re.compile(
    r"on_(?:(?:train|validation|test|predict|eval)_)?(?:epoch|batch|step)_(?:start|begin|end)"
    r"|on_(?:evaluate|log|predict|prediction_step|substep_end|save)|training_step|validation_step"
)
"""Methods that Lightning and transformers call again and again."""
_FASTER = 1.5
"""Times of what came in the first half of the steps that comes in the second where hooks become
more, each of which fills what it has."""


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredHook(Cause):
    """The statement that registers, and the call in it."""

    place: Place
    call: ast.Call
    method: str
    """``register_hook``, ``register_forward_hook`` …"""
    owner: str
    """On what it is called, as written."""
    closes_over_owner: bool
    """The hook's function reads the very thing that it is registered on."""
    filled: FilledContainer | None = None
    """What one hook, in every pass, gives what grows."""


class Hook(GrowthRule[RegisteredHook]):
    """`y.register_hook(lambda g: g * y)`, or a hook for each step whose handle is dropped."""

    name = "hook"
    summary = "a hook keeps what its function closes over"
    fixes = ("break_cycle", "clear_container", "remove_hook")
    precedes = ("kept-graph",)

    def match(self, case: Case) -> RegisteredHook | None:
        """A hook in a chain of references, and the statement that registers it."""
        place = _registration(case) if LinkKind.HOOK in case.links else None
        if place is None:
            return None
        for call in own_calls(place.statement):
            if isinstance(call.func, ast.Attribute) and "hook" in call.func.attr:
                owner = ast.unparse(call.func.value)
                closed = owner in _closed_over(place, call)
                is_one = not (_is_repeated(case, place) or _is_registered_in_loop(case, place))
                filled = _filled_by_one(case) if is_one else None
                return RegisteredHook(place, call, call.func.attr, owner, closed, filled)
        return None

    def advice(self, cause: RegisteredHook, case: Case) -> Iterator[Advice]:
        """Break the cycle through it, empty what it fills, or remove it."""
        owner, in_cycle = cause.owner, bool(case.links & CYCLES)
        if cause.closes_over_owner and in_cycle:
            yield Advice(
                "break_cycle",
                f"The hook of `{owner}` uses `{owner}` itself, and C++ owns the hook, where "
                "no collector looks: compute what it needs beforehand, detached.",
                cause.place,
            )
        if cause.filled is not None:
            yield Advice(
                "clear_container",
                f"{cause.filled}: a hook gives to it in every pass. Empty it when it has been "
                "used, or keep a number of each.",
                cause.filled.place,
            )
        closing = _closing(cause.place)
        if closing is not None:
            yield Advice(
                "remove_hook",
                f"`{cause.method}` keeps the function and all it closes over for as long as "
                f"`{owner}` lives, and the object with it: call its `{closing}()`, which removes "
                "the hook, when it is done with, or make it once.",
                cause.place,
            )
            return
        assigned = isinstance(cause.place.statement, (ast.Assign, ast.AnnAssign))
        why = "its handle is never used" if assigned else "its handle is not kept"
        yield Advice(
            "remove_hook",
            f"`{cause.method}` keeps the function and all it closes over for as long as `{owner}` "
            f"lives, and {why}: keep the handle and call `remove()`.",
            cause.place,
        )


def _is_repeated(case: Case, registration: Place) -> bool:
    """Whether the call within which the passes run registers a hook for each: there are ever more.

    The function that registers calls the model as well, and no loop goes around that call alone: of
    its own, of a function that it calls, or of a library's.
    """
    function = registration.function
    for at, (frame, place) in enumerate(case.frames):
        if function is None or place.function is not function:
            continue
        inner = case.finding.stack[: case.finding.stack.index(frame)]
        by_library = any(frame_kind(one.filename) is FrameKind.LIBRARY for one in inner)
        in_loop = any(
            between.loop is not None and not is_forward(called)
            for called, between in case.frames[:at]
        )
        return place.loop is registration.loop and not (by_library or in_loop)
    return False


def _is_registered_in_loop(case: Case, registration: Place) -> bool:
    """Whether a loop runs the function that registers, or makes the object whose method it is.

    By the calls of its name, and of the names of the functions in which these stand. So is what
    hands its name on as a text: ``self.emit("on_epoch_end")``.
    """
    function, class_ = registration.function, registration.class_
    is_derived = class_ is not None and bool(class_.bases)
    if function is not None and is_derived and _OF_CALLBACKS.fullmatch(function.name):
        return True  # a framework's loop calls it
    is_maker = function is not None and function.name == "__init__" and class_ is not None
    name = class_.name if is_maker and class_ is not None else getattr(function, "name", "")
    names, known = [(name, class_ is not None and not is_maker)], set()
    while names:
        name, is_method = names.pop()
        known.add(name)
        for place in _callers(case, name, is_method=is_method) if name else ():
            if place.loop is not None:
                return True
            outer = place.function.name if place.function is not None else ""
            is_method = place.class_ is not None and outer != "__init__"
            if place.class_ is not None and not is_method:
                outer = place.class_.name  # whoever makes one runs it
            if outer not in known and len(known) < _DEEPEST:
                names.append((outer, is_method))
    return False


def _callers(case: Case, name: str, *, is_method: bool) -> Iterator[Place]:
    """Statements that call a function, or hand its name to another.

    What is called on an object is a method: ``model.train()`` does not call the program's `train`.
    """
    for call, place in case.calls(name):
        if is_method or isinstance(call.func, ast.Name):
            yield place
    for program in case.programs:
        for call in calls_in(program.tree):
            if any(isinstance(one, ast.Constant) and one.value == name for one in call.args):
                handing = program.place(call)
                if handing is not None:
                    yield handing


def _filled_by_one(case: Case) -> FilledContainer | None:
    """The container that a hook fills with what grows, where there is one hook.

    A search has seen that it grows, it has most of the tensors, and as many come as before. Where
    hooks become more, each has its own, or all of them fill one ever faster.
    """
    for holder in case.finding.holders if case.kept_itself > _MOSTLY else ():
        kinds = [link.kind for link in holder.links]
        at = largest_container(holder.links)
        if LinkKind.HOOK not in kinds or at is None or at < kinds.index(LinkKind.HOOK) + 2:
            continue
        container, owned = holder.links[at], _link_of(holder, at)
        tensors = len(case.finding.evidence.allocs)
        # One that has an item of nearly every step was filled in each until the last look.
        is_filled = container.grows or container.length >= _OF_EVERY_STEP * _times(case, holder)
        if not is_filled or 2 * places_in(holder) < tensors or _becomes_faster(case):
            continue
        place = _filling_place(case, owned)
        filling = growing(place)
        if place is not None and filling is not None:
            return FilledContainer(holder, place, filling)
    return None


def _times(case: Case, holder: Holder) -> int:
    """The steps that had made what grows when a search looked at it; of all where none says."""
    for one in case.run.findings:
        births = one.details.get("births") if holder in one.holders else None
        if isinstance(births, int):
            return births
    return case.finding.growth.times


def _link_of(holder: Holder, at: int) -> Link:
    """What names a container, or what it lies in: ``outputs`` of ``self.outputs[layer]``."""
    while at and holder.links[at].kind == LinkKind.ITEM:
        at -= 1
    return holder.links[at]


def _filling_place(case: Case, link: Link) -> Place | None:
    """The statement of a function that fills what has that name, of its own class if there is."""
    owner, places = link.type_name.rpartition(".")[2], list(_filling_places(case, link.name))
    own = (place for place in places if place.class_ is not None and place.class_.name == owner)
    return next(own, next(iter(places), None))


def _filling_places(case: Case, name: str) -> Iterator[Place]:
    name = last_name(name)
    for program in case.programs:
        for node in program.nodes:
            place = program.place(node) if isinstance(node, (ast.Expr, ast.Assign)) else None
            filling = growing(place)
            container = filling.container.partition("[")[0] if filling is not None else ""
            if place is None or last_name(container) != name:
                continue
            if place.function is not None and place.function.name != "__init__":
                yield place


def _becomes_faster(case: Case) -> bool:
    """Whether far more comes in the second half of the steps than in the first."""
    series = case.finding.series
    if series is None or len(series.bytes) < 2:
        return False
    begin, end = int(series.bytes[0]), int(series.bytes[-1])
    middle = int(series.bytes[len(series.bytes) // 2])
    return end - middle > _FASTER * (middle - begin)


def _closing(place: Place) -> str | None:
    """The method of the class around a place that calls ``remove()``, where one does.

    One that registers a hook of its own removes that.
    """
    for node in place.class_.body if place.class_ is not None else ():
        if not isinstance(node, FUNCTIONS) or node is place.function:
            continue
        if calls_in(node, "remove") and not _has_registration(node):
            return node.name
    return None


def _registration(case: Case) -> Place | None:
    """The statement that registers a hook: a link's own, a holder's, or one in the same scope."""
    places = [case.link_place(LinkKind.HOOK), *case.places]
    for place in places:
        if place is not None and _registers(place.statement):
            return place
    near = [(p, p.scope) for p in places if p is not None]
    near += [(p, p.class_) for p in places if p is not None and p.class_ is not None]
    for place, scope in near:
        for call in calls_in(scope):
            where = place.program.place(call)
            if where is not None and _registers(where.statement):
                return where
    return _registration_of_function(case)


def _registration_of_function(case: Case) -> Place | None:
    """The one statement of the program that registers the function that the chain has as its hook.

    By its name, that of the function which defines it, or that of which it is a partial.
    """
    names = {name for holder in case.finding.holders for name in _functions_of_hooks(holder.links)}
    if not names:
        return None
    places = {}
    for program in case.programs:
        for call in calls_in(program.tree):
            place = program.place(call) if _is_registration(call) else None
            if place is not None and names & set(_functions_given(place, call)):
                places[program.filename, place.line] = place
    return next(iter(places.values())) if len(places) == 1 else None


def _functions_of_hooks(links: Sequence[Link]) -> Iterator[str]:
    """The names of functions that are hooks in a chain: ``store`` of a ``partial of store``."""
    for above, link in pairwise(links):
        if above.kind is LinkKind.HOOK and link.kind in _FUNCTION_LINKS:
            yield last_name(link.type_name.rpartition(" ")[2])


def _functions_given(place: Place, call: ast.Call) -> Iterator[str]:
    """The names that a call is handed, and those of functions defined in what these name."""
    for argument in arguments(call):
        for node in ast.walk(argument):
            name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
            for function in place.program.functions(name) if name else ():
                yield from (one.name for one in ast.walk(function) if isinstance(one, FUNCTIONS))


def _registers(statement: ast.stmt) -> bool:
    return not isinstance(statement, (*FUNCTIONS, ast.ClassDef)) and _has_registration(statement)


def _has_registration(node: ast.AST) -> bool:
    return any(map(_is_registration, calls_in(node)))


def _is_registration(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return name.startswith("register_") and "hook" in name


def _closed_over(place: Place, call: ast.Call) -> set[str]:
    """Names that the hook function reads: a lambda's, or those of a function defined near by."""
    names: set[str] = set()
    for argument in arguments(call):
        if isinstance(argument, ast.Name):
            for function in place.program.functions(argument.id):
                names |= loaded_names(function)
        else:
            names |= loaded_names(argument)
    return names


RULE = Hook()
