"""What a recording on a simulated card notes besides: what nobody computed, what is estimated.

The process was started by `memprof dry-run`, and has the library of `memprof.dry_run` loaded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from memprof.dry_run.absent_ranks import lines_without_sender, prepare
from memprof.dry_run.assumptions import ASSUMPTIONS, Assumptions
from memprof.dry_run.checks import DistributionChecks
from memprof.dry_run.estimates import Estimates
from memprof.dry_run.generation import GenerationLimit
from memprof.dry_run.library import Library
from memprof.dry_run.packed_sequences import PackedSequences
from memprof.dry_run.values import ValuesRead
from memprof.dry_run.verdict import NCCL, NCCL_LACKING
from memprof.record.tracker import Tracker
from memprof.records import Readings

__all__ = ["begin"]


def begin(tracker: Tracker) -> Callable[[], None]:
    """Listen to what a simulated card does not know; a function that ends that and notes it."""
    prepare()
    library = Library()
    assumptions = Assumptions.of([os.environ.get(ASSUMPTIONS, "")])
    if assumptions:
        assumptions.begin()
    values_read, estimates = ValuesRead(library), Estimates(library)
    wrapped = (GenerationLimit(), PackedSequences(), DistributionChecks())
    listeners = (values_read, estimates, *wrapped)
    for listener in listeners:
        listener.open()

    def note() -> None:
        """Listen no more, and write what was heard into the run: NCCL's bytes and "not seen"."""
        for listener in listeners:
            listener.close()
        now_us = time.time_ns() // 1000
        nccl_bytes, lacking = library.nccl_bytes, library.nccl_lacking_bytes
        for device in sorted({*nccl_bytes, *lacking}):
            values: dict[str, list[float | int | None]] = {NCCL: [nccl_bytes.get(device, 0)]}
            if device in lacking:
                values[NCCL_LACKING] = [lacking[device]]
            tracker.add_readings(Readings("dry run", f"cuda:{device}", [now_us], values))
        for sentence in (
            *assumptions.sentences(),
            *library.sentences(),
            *estimates.sentences(),
            *lines_without_sender(),
            *values_read.sentences(),
        ):
            tracker.note("dry run", sentence)

    return note
