"""Run: one recording, frozen; what every analysis starts from. Files are `runfile`'s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from memprof.records import (
    BatchSizes,
    DeviceInfo,
    DoubleResults,
    Finding,
    Footer,
    GraphInputs,
    GuessedSteps,
    Header,
    KeptResults,
    LabelledRows,
    LargeValues,
    Note,
    OperatorGraph,
    OverlapCopies,
    PaddedBatches,
    WindowRecord,
)
from memprof.trace import NOT_RECORDED, Column, Columns, Trace, column

__all__ = ["DeviceRun", "ReadingSeries", "Run", "Steps"]


@dataclass(frozen=True, slots=True, eq=False)
class Steps(Columns):
    """Counters at step ends; a row covers the steps ``first`` to ``last``.

    Bytes; `NOT_RECORDED` where a figure was not measured. See `records.StepColumns`.
    """

    first: Column = column("i8")
    last: Column = column("i8")
    start_us: Column = column("i8", missing=NOT_RECORDED)
    end_us: Column = column("i8", missing=NOT_RECORDED)
    allocated: Column = column("i8", missing=NOT_RECORDED)
    allocated_min: Column = column("i8", missing=NOT_RECORDED)
    allocated_max: Column = column("i8", missing=NOT_RECORDED)
    peak_allocated: Column = column("i8", missing=NOT_RECORDED)
    reserved: Column = column("i8", missing=NOT_RECORDED)
    peak_reserved: Column = column("i8", missing=NOT_RECORDED)
    active: Column = column("i8", missing=NOT_RECORDED)
    requested: Column = column("i8", missing=NOT_RECORDED)
    inactive_split: Column = column("i8", missing=NOT_RECORDED)
    retries: Column = column("i8", missing=NOT_RECORDED)
    ooms: Column = column("i8", missing=NOT_RECORDED)
    window: Column = column("i8", missing=NOT_RECORDED)


@dataclass(frozen=True, slots=True, eq=False)
class ReadingSeries:
    """One value of one sampled source over time; NaN where it could not be read."""

    source: str
    device: str
    name: str
    """With its unit where that is not bytes: ``used``, ``power_w``."""
    time_us: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceRun:
    """What was recorded of one device: full traces in windows, counters at every step."""

    device: str
    info: DeviceInfo
    windows: tuple[Trace, ...] = ()
    """In order of time; a short run and a torch snapshot have one that covers everything."""
    steps: Steps = field(default_factory=Steps.build)

    @property
    def events(self) -> int:
        """Events in all windows."""
        return sum(len(window.events) for window in self.windows)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One recording of one process: a run file, or a snapshot that torch wrote."""

    source: str
    """Path it was read from; may be empty."""
    header: Header
    devices: tuple[DeviceRun, ...] = ()
    readings: tuple[ReadingSeries, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: Sequence[Note] = ()
    footer: Footer | None = None
    windows: Sequence[WindowRecord] = ()
    """Why windows opened and ended, in order; a file of schema 1.1 says nothing of it."""
    guessed: GuessedSteps | None = None
    """The steps up to the last one that no mark and no optimizer ended; None: there are none."""
    doubles: Sequence[DoubleResults] = ()
    """What operators returned in double precision."""
    labelled: Sequence[LabelledRows] = ()
    """How many of the rows that they are given losses count."""
    kept_results: Sequence[KeptResults] = ()
    """What was read of results that outlived calls of models."""
    large_values: Sequence[LargeValues] = ()
    """What large tensors are full of."""
    overlap_copies: Sequence[OverlapCopies] = ()
    """What was computed of all of a view that shows memory several times."""
    operator_graphs: Sequence[OperatorGraph] = ()
    """Of what operators made large tensors, and what others made of these."""
    unmoved: frozenset[str] = frozenset()
    """Paths of the modules that no step of an optimizer changes, as its rate for them is 0."""
    padded: PaddedBatches | None = None
    """How much of its batches a model is called with is padding; None where that is not known."""
    batch_sizes: BatchSizes | None = None
    """How many rows models are called with; None where that is not known."""
    graph_inputs: GraphInputs | None = None
    """Which calls of models were given what takes a gradient; None where that is not known."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """`digest_of` the program's own source files as they ran, by name; not of all."""
    is_snapshot: bool = False
    """Read from torch's snapshot: no readings, no holders, one window a device."""

    def device(self, name: str) -> DeviceRun | None:
        """The device of that name, if it was recorded."""
        return next((d for d in self.devices if d.device == name), None)
