"""The garbage collector of a job, while memprof loads itself and begins."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memprof.cpython.gc_pause import collector_paused

ROOT = Path(__file__).resolve().parents[2]


def test_no_collection_begins_in_the_block_and_afterwards_they_do_again():
    before = gc.get_stats()
    with collector_paused():
        kept = [[] for _ in range(10 * gc.get_threshold()[0])]
        assert gc.get_stats() == before
    kept += [[] for _ in kept]
    assert gc.get_stats() != before


def test_a_collector_that_the_job_switched_off_stays_off():
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_exception_leaves_the_collector_as_it_was():
    with pytest.raises(KeyError), collector_paused():
        raise KeyError
    assert gc.isenabled()


def test_beginning_to_record_sets_off_hardly_a_collection_and_loads_no_search(tmp_path):
    pytest.importorskip("torch", reason="recording begins with torch")
    program = (
        "import gc, sys, torch, memprof\n"
        "collections = []\n"
        "gc.callbacks.append(lambda phase, about: collections.append(phase))\n"
        f"tracker = memprof.track({str(tmp_path / 'run.json')!r}).start()\n"
        "began = collections.count('start')\n"
        "searches = {'memprof.referrers.survivors', 'memprof.referrers.find_holders'}\n"
        "searches &= set(sys.modules)\n"
        "torch.ones(8)\n"
        "memprof.step()\n"
        "assert 'memprof.referrers.survivors' in sys.modules\n"
        "tracker.stop()\n"
        "print(began, searches)\n"
    )
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "cli", "dashboards"))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    began, searches = done.stdout.split(maxsplit=1)
    assert int(began) <= 3  # one as each pause ends
    assert searches.strip() == "set()"
