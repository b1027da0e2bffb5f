"""Commands of memprof that serve until they are interrupted, for tests; no test is here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.tracked import PYTHONPATH

__all__ = ["serving"]


@contextmanager
def serving(*words: str, until: signal.Signals = signal.SIGINT) -> Iterator[str]:
    """The first line that ``memprof`` prints; at the block's end the signal ends it, without error."""
    with subprocess.Popen(
        [sys.executable, "-m", "memprof_cli", *words],
        env=os.environ | {"PYTHONPATH": PYTHONPATH, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout is not None
        try:
            yield job.stdout.readline()
        finally:
            job.send_signal(until)
        try:
            assert job.wait(30) == 0
        except subprocess.TimeoutExpired:
            job.kill()
            raise
