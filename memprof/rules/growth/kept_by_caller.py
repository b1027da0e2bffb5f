"""kept-by-caller: a library keeps everything that a function of the program returns to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import growing, last_name
from memprof.source_code.program import Place, calls_in, own_calls, source_of
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
        results = (_returned(case, holder) for holder in case.finding.holders)
        return next((result for result in results if result is not None), None)

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
        yield Advice("reduce_predictions", f"{reason}: {less}.", cause.place)


def _returned(case: Case, holder: Holder) -> ReturnedResults | None:
    """The innermost function that a library has called, if that keeps the value it returns."""
    stack = case.finding.stack
    for at, frame in enumerate(stack):
        if frame_kind(frame.filename) is not FrameKind.USER:
            continue
        callers = stack[at + 1 :]
        if not callers or frame_kind(callers[0].filename) is FrameKind.USER:
            continue  # the program's own, called by the program
        place = case.place_at(frame.filename, frame.line)
        filling = _filling(callers, holder)
        if filling is None or place is None or not _returns(place):
            return None
        growth = growing(filling)
        entry, switch = _switch(case, callers, filling)
        container = growth.container if growth is not None else ""
        if not switch and _MODULE_CALL in callers[0].name:
            return None  # what a model computes is what it was called for: a metric's features
        return ReturnedResults(frame.name, container, place, entry, switch)
    return None


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
            place = program.at(call.lineno)
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
