"""Stored exceptions: they hold the frames of the failed call, with every tensor in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import LinkKind
from memprof.rules.case import Case, says
from memprof.rules.rule import Advice, Cause
from memprof.source_code.exception_handlers import exception_store
from memprof.source_code.idioms import growing
from memprof.source_code.patch import diff, replaced
from memprof.source_code.program import Place, bound_names
from memprof.source_code.values import is_raised
from memprof.trace import Frame

__all__ = [
    "LoggedTensors",
    "StoredException",
    "advice_on_exception",
    "advice_on_log",
    "logged_tensors",
    "stored_exception",
]

_STORED = (LinkKind.TRACEBACK, LinkKind.EXCEPTION)
_OF_ERRORS = frozenset({LinkKind.TRACEBACK, LinkKind.EXCEPTION, LinkKind.FRAME})


@dataclass(frozen=True, slots=True, eq=False)
class StoredException(Cause):
    """An exception that something keeps."""

    store: Place | None
    """The statement that stores it; None where the source does not show one."""


@dataclass(frozen=True, slots=True, eq=False)
class LoggedTensors(Cause):
    """A log record that a handler keeps."""

    place: Place
    """The call that logs."""
    of_exception: bool
    """It has an exception, whose frames hold the tensors; else they are its arguments."""


def stored_exception(case: Case, *, raises: bool = False) -> StoredException | None:
    """The exception that holds the tensors' frames, where one does and no log record holds it.

    ``raises`` where the source says so: no search for holders has to find it.
    """
    if LinkKind.LOG_RECORD in case.links or not (raises or case.links & {*_STORED}):
        return None
    is_stored = bool(case.links & {*_STORED})
    for frame, place in [*case.frames, *_frames_of_tracebacks(case)]:
        statement = exception_store(frame, returned=is_stored)
        if statement is not None:
            return StoredException(place.program.place(statement))
    return StoredException(None)


def _frames_of_tracebacks(case: Case) -> Iterator[tuple[Frame, Place]]:
    """The lines that kept exceptions came through, as the links of their tracebacks have them."""
    for holder in case.finding.holders:
        for link in holder.links:
            place = case.place_at(link.filename, link.line) if link.kind in _STORED else None
            if place is not None:
                yield Frame(link.type_name, link.filename, link.line), place


def advice_on_exception(cause: StoredException, case: Case) -> Iterator[Advice]:
    """Store the exception's text."""
    holder = case.holder(*_STORED)
    what = f": {says(holder)}" if holder is not None else ""
    yield Advice(
        "clear_traceback",
        f"A kept exception holds the local variables of every frame it went through{what}.",
        cause.store or case.place_of(holder) or case.site,
        patch=_text_patch(case, cause.store),
    )


def logged_tensors(case: Case) -> LoggedTensors | None:
    """The call that made a log record through which the tensors are held."""
    place = case.link_place(LinkKind.LOG_RECORD)
    if place is None:
        return None
    links = [link for holder in case.finding.holders for link in holder.links]
    names = [link.name for link in links if link.kind == LinkKind.LOG_RECORD]
    return LoggedTensors(place, bool(case.links & _OF_ERRORS) or "exc_info" in names)


def advice_on_log(cause: LoggedTensors) -> Iterator[Advice]:
    """Log text and numbers."""
    if cause.of_exception:
        yield Advice(
            "clear_traceback",
            "A handler keeps the log record, whose exception holds the frames of the failed call: "
            "log the text of the exception instead (`str(error)`, neither `exc_info` nor the "
            "exception).",
            cause.place,
        )
        return
    why = "A handler keeps the record, and the record its arguments: log numbers, not tensors."
    yield Advice("item", why, cause.place)
    empty = "Or empty the handler's records."
    yield Advice("clear_container", empty, cause.place, otherwise=True)


def _text_patch(case: Case, place: Place | None) -> str:
    """``failure = exc`` becomes ``failure = str(exc)``."""
    if place is None:
        return ""
    growth = growing(place)
    value = growth.values[-1] if growth is not None else getattr(place.statement, "value", None)
    names = [ast.unparse(target) for target in bound_names(place.statement)]
    names += [growth.container] if growth is not None else []
    if not isinstance(value, ast.Name) or not names:
        return ""
    if any(is_raised(place, name, case.everywhere) for name in names):
        return ""
    return diff(place.program, replaced(value, f"str({value.id})"))
