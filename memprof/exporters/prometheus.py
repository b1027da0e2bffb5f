"""Metrics for Prometheus: over HTTP, or as text; the only file that names prometheus_client."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from memprof.errors import MemprofError, MissingError
from memprof.live.live_run import LiveRun
from memprof.live.metrics import METRICS, samples

__all__ = ["PORT", "PrometheusServer", "exposition"]

PORT = 9464
"""The port that OpenTelemetry has set aside for such an exporter."""


def exposition(runs: Sequence[LiveRun]) -> str:
    """All that is known of ``runs`` in Prometheus' text format.

    Raises:
        MissingError: prometheus-client is not installed.
    """
    client = _client()
    text: bytes = client.generate_latest(_registry(client, lambda: runs))
    return text.decode()


class PrometheusServer:
    """Answers ``/metrics`` on a thread of its own, from what is known at that moment."""

    def __init__(
        self, runs: Callable[[], Sequence[LiveRun]], port: int, host: str = "127.0.0.1"
    ) -> None:
        """Bind at once.

        Raises:
            MissingError: prometheus-client is not installed.
            MemprofError: the port is taken, or may not be used.
        """
        client = _client()
        try:
            self._server, self._thread = client.start_http_server(
                port, addr=host, registry=_registry(client, runs)
            )
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise MemprofError(
                f"cannot serve metrics on {host}:{port}: {reason}", "choose another port"
            ) from error
        self.host, self.port = host, int(self._server.server_port)

    def close(self) -> None:
        """Answer no more, and let the port go; safe to call twice."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join(timeout=5)

    def disown(self) -> None:
        """In a forked child: the thread is the parent's, and so is the port."""
        server, self._server = self._server, None
        if server is not None:
            with contextlib.suppress(OSError):
                server.socket.close()


def _client() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise MissingError(
            f"metrics for Prometheus need prometheus-client, which is not here: {error}",
            "pip install 'cuda-memprof[metrics]'",
        ) from error
    return prometheus_client


def _registry(client: Any, runs: Callable[[], Sequence[LiveRun]]) -> Any:
    registry = client.CollectorRegistry(auto_describe=False)
    registry.register(_Collector(runs))
    return registry


class _Collector:
    """What prometheus_client asks at each scrape."""

    def __init__(self, runs: Callable[[], Sequence[LiveRun]]) -> None:
        self._runs = runs

    def describe(self) -> Sequence[Any]:
        """Nothing is known before a scrape."""
        return ()

    def collect(self) -> Iterator[Any]:
        """A family for each metric that has a value now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families = {}
        for sample in samples(self._runs()):
            metric = sample.metric
            if metric not in families:
                kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
                labels = ("file", "rank", *metric.labels)
                families[metric] = kind(metric.name, metric.help, labels=labels)
            names = ("file", "rank", *metric.labels)
            families[metric].add_metric([sample.labels[name] for name in names], sample.value)
        yield from (families[metric] for metric in METRICS if metric in families)
