"""memprof: where the memory of a PyTorch job went, what leaks, who holds it and what to type.

The whole public API is named in ``__all__``; each name is loaded when it is first used, so that
``import memprof`` costs nothing and pulls in neither torch nor plotly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from memprof.cpython.gc_pause import collector_paused
from memprof.errors import (
    FileFormatError,
    MemprofError,
    MissingError,
    SettingsError,
    UnsafeFileError,
)
from memprof.version import __version__

if TYPE_CHECKING:
    from memprof.loading import load
    from memprof.record.tracker import Tracker, annotate, start, step, steps, stop, track
    from memprof.referrers.find_holders import holders
    from memprof.referrers.list_tensors import tensors
    from memprof.run import Run
    from memprof.trace import Trace
    from memprof.what_if.changed_run import replay


__all__ = [
    "FileFormatError",
    "MemprofError",
    "MissingError",
    "Run",
    "SettingsError",
    "Trace",
    "Tracker",
    "UnsafeFileError",
    "__version__",
    "annotate",
    "holders",
    "load",
    "replay",
    "start",
    "step",
    "steps",
    "stop",
    "tensors",
    "track",
]

_HOMES = {
    "Run": "memprof.run",
    "Trace": "memprof.trace",
    "Tracker": "memprof.record.tracker",
    "annotate": "memprof.record.tracker",
    "holders": "memprof.referrers.find_holders",
    "load": "memprof.loading",
    "replay": "memprof.what_if.changed_run",
    "start": "memprof.record.tracker",
    "step": "memprof.record.tracker",
    "steps": "memprof.record.tracker",
    "stop": "memprof.record.tracker",
    "tensors": "memprof.referrers.list_tensors",
    "track": "memprof.record.tracker",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'memprof' has no attribute {name!r}")
    with collector_paused():
        value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
