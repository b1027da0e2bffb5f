"""Rules for objects that collect what they are called with: metrics, recorders, histories."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.rules.case import Case, Proposal
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import growing, last_name
from memprof.source_code.program import calls_in

__all__ = ["rules"]


def rules(case: Case) -> Iterator[Proposal]:
    """``clear_container``, at the statement in the stack that calls the object.

    Else where the object is handed something, or made. Not where the program's own source fills the
    container: that is the line to mend.
    """
    if case.of_model or not case.grows or any(growing(place) for place in case.places):
        return
    for holder in case.found.holders:
        owner, kept, length = _collected_in(holder)
        for _, place in case.frames if owner else ():
            call = next((c for c in calls_in(place.statement) if owner in _receivers(c)), None)
            if call is not None and growing(place) is None:
                yield Proposal(
                    "clear_container",
                    0.8,
                    f"At every call of `{ast.unparse(call.func)}` its `{kept}` ({length} items) "
                    "becomes longer: empty it when its result is done with (`reset()`, `clear()`).",
                    place,
                )
                return
    yield from _handed_over(case)
    yield from _constructed(case)


def _handed_over(case: Case) -> Iterator[Proposal]:
    """What a function gives to a library's object that it has in a name: ``loop.call_later(…)``."""
    for holder in case.found.holders:
        owner, kept, length = _collected_in(holder)
        place = case.place_of(holder)
        if not owner or place is None or growing(place) is not None:
            continue
        calls = [call for call in calls_in(place.scope) if _hands(call, owner)]
        if calls:
            call = max(calls, key=lambda one: len(one.args))
            yield Proposal(
                "clear_container",
                0.6,
                f"`{ast.unparse(call.func)}` is handed what `{owner}` keeps in its `{kept}` "
                f"({length} items): have it taken out when it is done with.",
                place.program.place(call),
            )
            return


def _hands(call: ast.Call, owner: str) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute) or last_name(ast.unparse(function.value)) != owner:
        return False
    return any(isinstance(argument, (ast.Name, ast.Attribute)) for argument in call.args)


def _constructed(case: Case) -> Iterator[Proposal]:
    """Where the program makes the library's object that keeps it, if that is one place only."""
    for holder in case.found.holders:
        if frame_kind(holder.filename) is FrameKind.USER:
            continue
        for link in reversed(holder.links):
            name = link.type_name.rpartition(".")[2]
            places = [place for call, place in case.calls(name) if call.args or call.keywords]
            if name[:1].isupper() and len({place.line for place in places}) == 1:
                yield Proposal(
                    "del_ref",
                    0.6,
                    f"`{name}` keeps what it is given here as long as it lives: hand it no more "
                    "than it needs, or end it.",
                    places[0],
                )
                return


def _collected_in(holder: Holder) -> tuple[str, str, int]:
    """The name of the object whose container holds it, the container's, and its length."""
    at = next((at for at, link in enumerate(holder.links) if link.kind == LinkKind.ITEM), 0)
    names = ".".join(link.name for link in holder.links[:at]).split(".")
    if len(names) < 2 or holder.links[at].length < 2:
        return "", "", 0
    return names[-2], names[-1], holder.links[at].length


def _receivers(call: ast.Call) -> set[str]:
    """``{"update", "metric"}`` of ``self.metric.update(…)``: what is called, and on what."""
    function = call.func
    inner = function.value if isinstance(function, ast.Attribute) else function
    return {last_name(ast.unparse(function)), last_name(ast.unparse(inner))}
