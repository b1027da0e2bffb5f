"""log-record: a handler keeps log records, and they the tensors or the exception they are given."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.rules.rule import Advice, GrowthRule
from memprof.rules.stored_exceptions import LoggedTensors, advice_on_log, logged_tensors

__all__ = ["RULE"]


class LogRecord(GrowthRule[LoggedTensors]):
    """`log.info("loss %s", loss)` or `log.exception(…)`, with a handler that stores records."""

    name = "log-record"
    summary = "log records keep tensors, or exceptions with their frames"
    fixes = ("clear_traceback", "item", "clear_container")

    def match(self, case: Case) -> LoggedTensors | None:
        """A log record in a chain of references."""
        return logged_tensors(case)

    def advice(self, cause: LoggedTensors, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the record says all
        """Log text and numbers; or empty the handler."""
        yield from advice_on_log(cause)


RULE = LogRecord()
