"""Metrics for OpenTelemetry, as observable instruments; the only file that names opentelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from memprof.errors import MissingError
from memprof.live.live_run import LiveRun
from memprof.live.metrics import METRICS, Metric, samples
from memprof.version import __version__

__all__ = ["OpenTelemetryInstruments"]

_UNITS = {"bytes": "By", "seconds": "s", "": "1"}


class OpenTelemetryInstruments:
    """The metrics of runs in a meter of the program's own provider, or of the one given.

    Names are those for Prometheus with dots: ``memprof.allocated_bytes`` is ``memprof.allocated``.
    """

    def __init__(self, runs: Callable[[], Sequence[LiveRun]], provider: object = None) -> None:
        """``provider``: a ``MeterProvider``; by default the one that the program has set.

        Raises:
            MissingError: opentelemetry-api is not installed.
        """
        try:
            from opentelemetry import metrics
        except ImportError as error:
            raise MissingError(
                f"metrics for OpenTelemetry need its API, which is not here: {error}",
                "pip install 'cuda-memprof[otel]'",
            ) from error
        self._runs: Callable[[], Sequence[LiveRun]] | None = runs
        self._observation = metrics.Observation
        meter: Any = metrics.get_meter("memprof", __version__, provider)  # type: ignore[arg-type]
        for metric in METRICS:
            create = (
                meter.create_observable_counter
                if metric.is_counter
                else meter.create_observable_gauge
            )
            create(
                _name(metric),
                callbacks=[partial(self._observe, metric)],
                unit=_UNITS[metric.unit],
                description=metric.help,
            )

    def close(self) -> None:
        """Say nothing more: an instrument cannot be taken back. Safe to call twice."""
        self._runs = None

    disown = close

    def _observe(self, metric: Metric, _: object) -> Iterable[Any]:
        if self._runs is None:
            return
        for sample in samples(self._runs()):
            if sample.metric is metric:
                yield self._observation(sample.value, dict(sample.labels))


def _name(metric: Metric) -> str:
    name = metric.name.removeprefix("memprof_").removesuffix("_total")
    if metric.unit and not name.endswith("_per_step"):
        name = name.removesuffix(f"_{metric.unit}")
    return f"memprof.{name}"
