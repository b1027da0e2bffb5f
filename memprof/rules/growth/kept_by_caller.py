"""kept-by-caller: a library keeps everything that a function of the program returns to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind, largest_container
from memprof.rules.being_made import making_in_library
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import attribute_set, growing, last_name
from memprof.source_code.program import (
    Place,
    arguments,
    assigned,
    calls_in,
    own_calls,
    source_of,
)
from memprof.source_code.verbs import FILLING
from memprof.trace import Frame

__all__ = ["RULE"]

_MODULE_CALL = "_call_impl"
"""How the function of torch's is named that calls a module's ``forward``."""


@dataclass(frozen=True, slots=True, eq=False)
class ReturnedResults(Cause):
    """The function that returns them, and what its caller keeps them in."""

    function: str
    container: str
    """As the library writes it: ``self._predictions[dataloader_idx]``."""
    place: Place
    """The statement of the function that made the tensors."""
    entry: Place | None = None
    """The program's statement that calls the library; None where it is not here."""
    switch: str = ""
    """The argument of that call which has the library keep nothing; empty where there is none."""


class KeptByCaller(GrowthRule[ReturnedResults]):
    """`return {"probabilities": …}` in a `predict_step`, and a trainer that lists all results."""

    name = "kept-by-caller"
    summary = "a library keeps what a function of the program returns to it"
    fixes = ("reduce_predictions",)
    precedes = ("kept-attribute", "collecting-object", "growing-container", "unbounded-dict")

    def match(self, case: Case) -> ReturnedResults | None:
        """A function that returns a value, called by the library's code that fills a container."""
        called = _called_by_library(case)
        if called is None:
            return None
        for keeping in (_returned, _listed, _kept_by_object):
            for holder in case.finding.holders:
                result = keeping(case, holder, *called)
                if result is not None:
                    return result
        return None

    def advice(self, cause: ReturnedResults, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the cause says all
        """Have it keep none; return less."""
        reason = f"`{cause.container}` keeps every value that `{cause.function}` returns"
        less = f"return only what is read later from `{cause.function}`: a class, a number"
        if cause.switch:
            yield Advice(
                "reduce_predictions",
                f"{reason}: where nothing reads them, pass `{cause.switch}=False` here; "
                f"else {less}.",
                cause.entry,
            )
            return
        yield Advice("reduce_predictions", f"{reason}: {less}.", _return_of(cause.place))


def _called_by_library(case: Case) -> tuple[Frame, Place, Sequence[Frame]] | None:
    """The innermost function that a library calls, if it returns a value, and what calls it."""
    stack = case.finding.stack
    for at, frame in enumerate(stack):
        if frame_kind(frame.filename) is not FrameKind.USER:
            continue
        callers = stack[at + 1 :]
        if not callers or frame_kind(callers[0].filename) is FrameKind.USER:
            continue  # the program's own, called by the program
        place = case.place_at(frame.filename, frame.line)
        return (frame, place, callers) if place is not None and _returns(place) else None
    return None


def _returned(
    case: Case, holder: Holder, frame: Frame, place: Place, callers: Sequence[Frame]
) -> ReturnedResults | None:
    """What a statement of the library's on the stack puts into a chain's container."""
    filling = _filling(callers, holder)
    if filling is None:
        return None
    growth = growing(filling)
    entry, switch = _switch(case, callers, filling)
    container = growth.container if growth is not None else ""
    if not switch and _MODULE_CALL in callers[0].name:
        return None  # what a model computes is what it was called for: a metric's features
    return ReturnedResults(frame.name, container, place, entry, switch)


def _listed(
    case: Case,  # noqa: ARG001 - as the others
    holder: Holder,
    frame: Frame,
    place: Place,
    callers: Sequence[Frame],
) -> ReturnedResults | None:
    """What a library makes a list of as the function runs, before anybody has the list."""
    own = list(takewhile(lambda one: frame_kind(one.filename) is not FrameKind.USER, callers))
    is_of_model = any(_MODULE_CALL in one.name for one in own)
    if is_of_model or making_in_library(holder, own) is None or len(own) == len(callers):
        return None
    return ReturnedResults(frame.name, own[-1].name, place)


def _kept_by_object(
    case: Case, holder: Holder, frame: Frame, place: Place, callers: Sequence[Frame]
) -> ReturnedResults | None:
    """What a library's object collects of a function that its method is handed.

    ``pool.map(work, batches)``: the object's class, or that of a part which has the container, is
    of the library that calls the function, and its methods store under that attribute.
    """
    container = _container_of(holder.links)
    if container is None or not _is_stored_by(container, callers[0]):
        return None
    names = {last_name(link.name) for link in holder.links}
    function = frame.name.rpartition(".")[2]
    for program in case.programs:
        for call in calls_in(program.tree):
            handed = [one for one in arguments(call) if isinstance(one, (ast.Name, ast.Attribute))]
            receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
            if receiver is None or last_name(ast.unparse(receiver)) not in names:
                continue
            if any(last_name(ast.unparse(one)) == function for one in handed):
                return ReturnedResults(frame.name, ast.unparse(call.func), place)
    return None


def _container_of(links: Sequence[Link]) -> Link | None:
    """The attribute by which an object has the container of many items; None without one."""
    at = largest_container(links)
    above = links[at - 1] if at else None
    return above if above is not None and above.kind is LinkKind.ATTRIBUTE else None


def _is_stored_by(attribute: Link, caller: Frame) -> bool:
    """Whether the caller's file has the attribute's class, and that stores items there."""
    library = source_of(caller.filename)
    name = attribute.type_name.rpartition(".")[2]
    classes = library.classes() if library is not None else []
    for node in (inner for one in classes if one.name == name for inner in ast.walk(one)):
        targets = [target for target, _ in assigned(node) if isinstance(target, ast.Subscript)]
        if any(attribute_set(target.value) == f"self.{attribute.name}" for target in targets):
            return True
    return False


def _return_of(place: Place) -> Place:
    """The one statement by which a function returns a value; else the given one."""
    returns = [one for one in ast.walk(place.scope) if isinstance(one, ast.Return) and one.value]
    at = place.program.place(returns[0]) if len(returns) == 1 else None
    return at if at is not None and at.function is place.function else place


def _filling(callers: Sequence[Frame], holder: Holder) -> Place | None:
    """The statement of a function of the library's on the stack that fills a chain's container.

    What other functions of its file put there, they were handed by somebody else.
    """
    kinds = [link.kind for link in holder.links]
    at = kinds.index(LinkKind.ITEM) if LinkKind.ITEM in kinds else 0
    name = last_name(holder.links[at - 1].name) if at else ""
    for frame in callers if name else ():
        if frame_kind(frame.filename) is FrameKind.USER:
            return None
        program = source_of(frame.filename)
        if program is None or name not in program.text:
            continue  # to look at each call of a large file takes a third of a second
        for call in calls_in(program.tree, *FILLING):
            place = program.place(call)
            filling = growing(place)
            function = place.function.name if place is not None and place.function else ""
            if filling is None or function != frame.name.rpartition(".")[2]:
                continue
            if last_name(filling.container) == name:
                return place
    return None


def _returns(place: Place) -> bool:
    function = place.function
    return function is not None and any(
        isinstance(node, ast.Return) and node.value is not None for node in ast.walk(function)
    )


def _switch(case: Case, callers: Sequence[Frame], filling: Place) -> tuple[Place | None, str]:
    """The program's call of the library, and its argument on which the filling depends.

    That is a parameter of the function called with the name of an attribute that an ``if`` around
    the filling asks.
    """
    asked = _asked_around(filling)
    for inner, outer in pairwise(callers):
        if frame_kind(outer.filename) is not FrameKind.USER:
            continue
        entry = case.place_at(outer.filename, outer.line)
        library = source_of(inner.filename)
        name = inner.name.rpartition(".")[2]
        functions = library.functions(name) if library is not None else []
        if entry is None or not own_calls(entry.statement, name):
            return entry, ""
        parameters = {
            argument.arg
            for function in functions
            for argument in (*function.args.args, *function.args.kwonlyargs)
        }
        return entry, min(asked & parameters, default="")
    return None, ""


def _asked_around(place: Place) -> set[str]:
    """Names of the attributes that the nearest ``if`` around a statement reads, without ``_``."""
    test = next((node.test for node in reversed(place.around) if isinstance(node, ast.If)), None)
    nodes = ast.walk(test) if test is not None else ()
    return {node.attr.lstrip("_") for node in nodes if isinstance(node, ast.Attribute)}


RULE = KeptByCaller()
