"""The last look holds no program up for longer than half a second, however large its heap is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="holders are searched for of tensors")

PROGRAM = """
import gc, json, sys, time

import torch
import memprof
from memprof.referrers.survivors import Survivors

class Framework:
    parts = [[None] for _ in range(int(sys.argv[1]))]

looks, holders, notes = [], [], []
look = Survivors.last_look

def timed(self, step, **options):
    began = time.thread_time()
    announcements = look(self, step, **options)
    looks.append(time.thread_time() - began)
    return announcements

Survivors.last_look = timed
gc.disable()  # so cycles stay
for again in range(3):
    kept = []
    with memprof.track(f"{sys.argv[2]}{again}.json", sources=["cpu"], allowance_s=60) as tracker:
        for _ in range(7):  # no look before the last one
            kept.append(torch.zeros(1000))
            cycle = [torch.zeros(2000)]
            cycle.append(cycle)
            del cycle
            tracker.step()
    run = memprof.load(f"{sys.argv[2]}{again}.json")
    holders.append([one.description for f in run.findings for one in f.holders])
    notes.append([one.message for one in run.notes if one.source == "survivors"])
print(json.dumps({"looks_s": looks, "holders": holders, "notes": notes}))
"""

NOT_SEARCHED = "who holds some of what stays alive was not searched for to the end"


def last_looks(objects: int, path: Path) -> Any:
    """What three last looks took and found, in a process where limits are as users have them."""
    command = [sys.executable, "-c", PROGRAM, str(objects), str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("objects", [150_000, 600_000, 1_500_000])
def test_the_last_look_takes_less_than_half_a_second(objects: int, tmp_path: Path) -> None:
    """By the processor's time of its thread; the least of three, as others use the machine, too.

    Nothing explains the cycles, so that each look takes as long as it may.
    """
    measured = last_looks(objects, tmp_path / "run")
    assert len(measured["looks_s"]) == 3
    assert min(measured["looks_s"]) < 0.5
    kept = "list `kept` (7 items), global `kept` of __main__"
    assert any(kept in holders for holders in measured["holders"])
    if objects == 1_500_000:  # the whole heap is too large
        assert [len(notes) for notes in measured["notes"]] == [1, 1, 1]
        assert all(one.startswith(NOT_SEARCHED) for (one,) in measured["notes"])
