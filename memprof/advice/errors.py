"""Rules for tensors that an exception keeps: its traceback holds the frames of the failed call."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.reference_chain import LinkKind
from memprof.rules.case import Case, Proposal, says
from memprof.source_code.exception_handlers import exception_store
from memprof.source_code.idioms import growing
from memprof.source_code.patch import diff, replaced
from memprof.source_code.program import Place, bound_names
from memprof.source_code.values import is_raised

__all__ = ["kept_by_exception", "rules"]

_KINDS = (LinkKind.TRACEBACK, LinkKind.EXCEPTION, LinkKind.LOG_RECORD)
_OF_ERRORS = frozenset({LinkKind.TRACEBACK, LinkKind.EXCEPTION, LinkKind.FRAME})


def rules(case: Case) -> Iterator[Proposal]:
    """``clear_traceback``, or ``item`` where a log record has tensors for arguments."""
    yield from kept_by_exception(case)


def kept_by_exception(case: Case, *, raises: bool = False) -> Iterator[Proposal]:
    """What to do where an exception, or a log record of one, holds the tensors."""
    yield from _logged(case)
    yield from _kept(case, raises=raises)


def _logged(case: Case) -> Iterator[Proposal]:
    place = case.link_place(LinkKind.LOG_RECORD)
    if place is None:
        return
    links = [link for holder in case.found.holders for link in holder.links]
    names = [link.name for link in links if link.kind == LinkKind.LOG_RECORD]
    if not case.links & _OF_ERRORS and "exc_info" not in names:
        why = "A handler keeps the record, and the record its arguments: log numbers, not tensors."
        yield Proposal("item", 0.9, why, place)
        yield Proposal("clear_container", 0.7, "Or empty the handler's records.", place)
        return
    yield Proposal(
        "clear_traceback",
        0.95,
        "A handler keeps the log record, whose exception holds the frames of the failed call: log "
        "the text of the exception instead (`str(error)`, neither `exc_info` nor the exception).",
        place,
    )


def _kept(case: Case, *, raises: bool) -> Iterator[Proposal]:
    if not case.links & set(_KINDS) and not raises:
        return
    if LinkKind.LOG_RECORD in case.links:
        return
    found = _storing(case)
    holder = case.holder(*_KINDS)
    place = found or case.place_of(holder) or case.site
    what = f": {says(holder)}" if holder is not None else ""
    yield Proposal(
        "clear_traceback",
        0.9,
        f"A kept exception holds the local variables of every frame it went through{what}.",
        place,
        patch=_text_patch(case, found),
    )


def _storing(case: Case) -> Place | None:
    """The statement that stores the exception, in a function that the stack runs through."""
    for frame, place in case.frames:
        statement = exception_store(frame)
        if statement is not None:
            return place.program.place(statement)
    return None


def _text_patch(case: Case, place: Place | None) -> str:
    """``failure = exc`` becomes ``failure = str(exc)``."""
    if place is None:
        return ""
    grown = growing(place)
    value = grown.values[-1] if grown is not None else getattr(place.statement, "value", None)
    names = [ast.unparse(target) for target in bound_names(place.statement)]
    names += [grown.container] if grown is not None else []
    if not isinstance(value, ast.Name) or not names:
        return ""
    if any(is_raised(place, name, case.everywhere) for name in names):
        return ""
    return diff(place.program, replaced(value, f"str({value.id})"))
