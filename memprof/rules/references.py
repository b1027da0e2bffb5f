"""Advice that follows from what holds a tensor, whatever the tensor is."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.rules.rule import Advice
from memprof.rules.small_views import advice_on_view, small_view
from memprof.rules.stored_exceptions import (
    advice_on_exception,
    advice_on_log,
    logged_tensors,
    stored_exception,
)

__all__ = ["advice_on_exceptions", "advice_on_exceptions_and_logs", "advice_on_views"]


def advice_on_exceptions(case: Case, *, raises: bool = False) -> Iterator[Advice]:
    """``clear_traceback``, where a stored exception holds the frames that hold the tensors.

    ``raises`` where the source says so: no search for holders has to find it.
    """
    for advice in advice_on_exceptions_and_logs(case, raises=raises):
        if advice.fix == "clear_traceback":  # a log record also has advice about what is logged
            yield advice


def advice_on_exceptions_and_logs(case: Case, *, raises: bool = False) -> Iterator[Advice]:
    """The same, and what to log where a log record has the tensors themselves."""
    log_tensors = logged_tensors(case)
    if log_tensors is not None:
        yield from advice_on_log(log_tensors)
    stored_error = stored_exception(case, raises=raises)
    if stored_error is not None:
        yield from advice_on_exception(stored_error, case)


def advice_on_views(case: Case) -> Iterator[Advice]:
    """``clone_view``, where a small view holds a whole storage."""
    part = small_view(case)
    if part is not None:
        yield from advice_on_view(part, case)
