"""Metrics while a job records: what was asked for is started, and ends with the recording.

Nothing here raises into the job: what cannot be exported is a note.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from memprof.cpython.signal_errors import guarded_errors
from memprof.errors import MemprofError
from memprof.log import LOG
from memprof.record.options import Options

if TYPE_CHECKING:
    from memprof.live.live_run import LiveRun

__all__ = ["Exports"]


_ROWS = 128
"""A scrape takes a few milliseconds for so many, in which the job may have to wait for it."""


class _Export(Protocol):
    def close(self) -> None: ...

    def disown(self) -> None: ...


class Exports:
    """The exporters of one recording."""

    def __init__(self, options: Options, note: Callable[[str, str, str], None]) -> None:
        """``note`` takes the source, what is missing, and what to do."""
        self._options = options
        self._note = note
        self._running: list[_Export] = []
        self.figures: LiveRun | None = None
        """Where the records of this run are to be added; None where nothing is exported."""
        if options.exports:
            from memprof.live.live_run import LiveRun

            self.figures = LiveRun(most_rows=_ROWS)

    def start(self, path: str, local_rank: int) -> None:
        """Export what is recorded into ``path``; each rank of a machine has a port of its own."""
        figures = self.figures
        if figures is None:
            return
        figures.source = path
        options = self._options
        if options.prometheus is not None:
            host, port = options.prometheus_address
            self._try("prometheus", lambda: _prometheus(figures, host, port + max(0, local_rank)))
        if options.opentelemetry:
            provider = None if options.opentelemetry is True else options.opentelemetry
            self._try("opentelemetry", lambda: _opentelemetry(figures, provider))

    def _try(self, name: str, start: Callable[[], _Export]) -> None:
        try:
            self._running.append(start())
        except MemprofError as error:
            self._note(name, error.message, error.hint)
            LOG.warning("no metrics, the job goes on: %s (%s)", error.message, error.hint)
        except guarded_errors() as error:  # somebody else's library, in the user's job
            self._note(name, f"{type(error).__name__}: {error}", "")
            LOG.warning("no metrics, the job goes on", exc_info=True)

    def close(self) -> None:
        """End all of them; safe to call twice."""
        self._end(lambda one: one.close())

    def disown(self) -> None:
        """In a forked child: ports and threads are the parent's."""
        self._end(lambda one: one.disown())

    def _end(self, how: Callable[[_Export], None]) -> None:
        while self._running:
            try:
                how(self._running.pop())
            except guarded_errors():  # see _try
                LOG.debug("an exporter did not end", exc_info=True)


def _prometheus(figures: LiveRun, host: str, port: int) -> _Export:
    from memprof.exporters.prometheus import PrometheusServer

    server = PrometheusServer(lambda: [figures], port, host)
    LOG.info("metrics: http://%s:%d/metrics", server.host, server.port)
    return server


def _opentelemetry(figures: LiveRun, provider: object) -> _Export:
    from memprof.exporters.opentelemetry import OpenTelemetryInstruments

    return OpenTelemetryInstruments(lambda: [figures], provider)
