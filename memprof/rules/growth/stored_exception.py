"""stored-exception: exceptions are stored, and hold the frames of the calls that failed."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.rules.rule import Advice, GrowthRule
from memprof.rules.stored_exceptions import StoredException, advice_on_exception, stored_exception

__all__ = ["RULE"]


class StoredExceptions(GrowthRule[StoredException]):
    """`failures.append(error)`: each has a traceback, and that the frames with their tensors."""

    name = "stored-exception"
    summary = "stored exceptions hold the tensors of the calls that failed"
    fixes = ("clear_traceback",)

    def match(self, case: Case) -> StoredException | None:
        """An exception or a traceback in a chain of references."""
        return stored_exception(case)

    def advice(self, cause: StoredException, case: Case) -> Iterator[Advice]:
        """Store the exception's text."""
        yield from advice_on_exception(cause, case)


RULE = StoredExceptions()
