"""``memprof export --prometheus``: metrics of runs that are followed while they are written."""

from __future__ import annotations

import time

import click

from memprof.exporters.prometheus import PrometheusServer, exposition
from memprof.live.watched_runs import WatchedRuns

__all__ = ["export_metrics"]

_INTERVAL_S = 2.0


def export_metrics(target: str, host: str, port: int, *, once: bool) -> None:
    """Serve the metrics of a run file, a folder of ranks or a process until interrupted.

    ``once`` prints them instead, for the textfile collector of Prometheus' node exporter.

    Raises:
        MemprofError: there is nothing to follow, or the port is taken.
        MissingError: prometheus-client is not installed.
    """
    runs = WatchedRuns(target)
    runs.poll()
    if once:
        click.echo(exposition(runs.runs), nl=False)
        return
    server = PrometheusServer(lambda: list(runs.runs), port, host)
    try:
        click.echo(f"metrics of {target}: http://{server.host}:{server.port}/metrics (Ctrl-C ends)")
        while True:
            time.sleep(_INTERVAL_S)
            runs.poll()
    except KeyboardInterrupt:
        return
    finally:
        server.close()
