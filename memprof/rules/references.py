"""Advice that follows from what holds a tensor, whatever the tensor is."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.advice.errors import kept_by_exception
from memprof.advice.placement import small_view
from memprof.rules.case import Case
from memprof.rules.rule import Advice

__all__ = ["advice_on_exceptions", "advice_on_stored_exceptions", "advice_on_views"]


def advice_on_exceptions(case: Case, *, raises: bool = False) -> Iterator[Advice]:
    """``clear_traceback``, where a stored exception holds the frames that hold the tensors.

    ``raises`` where the source says so: no search for holders has to find it.
    """
    for advice in advice_on_stored_exceptions(case, raises=raises):
        if advice.fix == "clear_traceback":  # a log record also has advice about what is logged
            yield advice


def advice_on_stored_exceptions(case: Case, *, raises: bool = False) -> Iterator[Advice]:
    """The same, and what to log where a log record has the tensors themselves."""
    for one in kept_by_exception(case, raises=raises):
        yield Advice(one.fix, one.why, one.place, patch=one.patch)


def advice_on_views(case: Case) -> Iterator[Advice]:
    """``clone_view``, where a small view holds a whole storage."""
    for one in small_view(case):
        yield Advice(one.fix, one.why, one.place, patch=one.patch, remains=one.remains)
