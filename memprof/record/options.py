"""What `track` can be told, checked; and the same from environment variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from memprof.errors import SettingsError
from memprof.record.window_schedule import Policy
from memprof.records import Finding
from memprof.sources.protocol import EventSource, ReadingSource

__all__ = ["SOURCES", "Options", "Source"]

Source: TypeAlias = "str | EventSource | ReadingSource"
"""The name of one of memprof's own sources, or an object with the methods of one."""

SOURCES = ("cpu", "cuda", "nvml", "host")


class Options(msgspec.Struct, frozen=True):
    """The options of `track`; see there."""

    budget: float = 0.01
    sample_interval_s: float = 1.0
    window_steps: int = 5
    max_events: int = 2_000_000
    max_bytes: int = 44 << 20
    allowance_s: float = 10.0
    sources: Sequence[Source] = SOURCES
    """Where they are `SOURCES` itself, nobody has named them."""
    on_finding: Callable[[Finding], None] | None = None
    prometheus: int | str | None = None
    """A port of this machine alone, or ``host:port``; None: no metrics."""
    opentelemetry: object = False
    """True: to the program's own ``MeterProvider``; or one."""
    last_step: int = 0
    """The program is ended when it has made so many steps; 0: it ends by itself. Not for `track`:
    a recorder changes nothing, only a dry run does."""
    in_progress: bool = False
    """The program runs already: the modules and optimizers that it has are looked for."""

    def __post_init__(self) -> None:
        _check(0 <= self.budget <= 1, "budget", self.budget, "a share between 0 and 1")
        _check(self.sample_interval_s > 0, "sample_interval_s", self.sample_interval_s, "positive")
        _check(self.window_steps >= 1, "window_steps", self.window_steps, "at least 1")
        _check(self.max_events >= 0, "max_events", self.max_events, "0 or more")
        _check(self.max_bytes >= 0, "max_bytes", self.max_bytes, "0 or more")
        _check(self.allowance_s >= 0, "allowance_s", self.allowance_s, "0 or more seconds")
        if self.prometheus is not None:
            good = 0 <= self.prometheus_address[1] < 1 << 16
            _check(good, "prometheus", self.prometheus, "a port, or host:port")
        for source in self.sources:
            is_source = not isinstance(source, str) or source in SOURCES
            _check(is_source, "a source", source, f"one of {', '.join(SOURCES)}")

    @property
    def names_cpu(self) -> bool:
        """Whether the CPU was asked for by name, and is not only one of the default sources."""
        return self.sources is not SOURCES and "cpu" in self.sources

    @property
    def exports(self) -> bool:
        """Whether metrics are to be told to somebody."""
        return self.prometheus is not None or bool(self.opentelemetry)

    @property
    def prometheus_address(self) -> tuple[str, int]:
        """Host and port; the port is -1 where what was given is none."""
        host, _, port = str(self.prometheus).rpartition(":")
        return host or "127.0.0.1", int(port) if port.isascii() and port.isdecimal() else -1

    @property
    def policy(self) -> Policy:
        """The same for the window schedule."""
        return Policy(
            budget=self.budget,
            allowance_us=round(self.allowance_s * 1e6),
            window_steps=self.window_steps,
            max_events=self.max_events,
            max_bytes=self.max_bytes,
        )

    def as_record(self) -> dict[str, object]:
        """For the run file's header."""
        return {
            "budget": self.budget,
            "sample_interval_s": self.sample_interval_s,
            "window_steps": self.window_steps,
            "max_events": self.max_events,
            "max_bytes": self.max_bytes,
            "allowance_s": self.allowance_s,
            "sources": [s if isinstance(s, str) else s.name for s in self.sources],
        }

    @staticmethod
    def of(environment: Mapping[str, str]) -> Options:
        """From ``MEMPROF_BUDGET``, ``MEMPROF_SAMPLE_INTERVAL`` and the like; defaults where unset.

        Raises:
            SettingsError: a value is no number, or not one that `track` takes.
        """
        values = {
            field: _number(environment, name, kind)
            for name, field, kind in _VARIABLES
            if environment.get(name)
        }
        return Options(**values)  # type: ignore[arg-type]


_VARIABLES: tuple[tuple[str, str, type[int | float | str]], ...] = (
    ("MEMPROF_BUDGET", "budget", float),
    ("MEMPROF_SAMPLE_INTERVAL", "sample_interval_s", float),
    ("MEMPROF_WINDOW_STEPS", "window_steps", int),
    ("MEMPROF_MAX_EVENTS", "max_events", int),
    ("MEMPROF_MAX_BYTES", "max_bytes", int),
    ("MEMPROF_ALLOWANCE", "allowance_s", float),
    ("MEMPROF_PROMETHEUS", "prometheus", str),
)


def _number(
    environment: Mapping[str, str], name: str, kind: type[int | float | str]
) -> int | float | str:
    try:
        return kind(environment[name])
    except ValueError as error:
        raise SettingsError(f"{name}={environment[name]!r} is no number") from error


def _check(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise SettingsError(f"{name} is {value!r}", f"give {expected}")
