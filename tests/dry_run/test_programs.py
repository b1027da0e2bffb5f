"""Public programs in a dry run against what a real card recorded of them: `../shared/programs`.

The card is not named in the snapshots. It has 8.125 MiB of workspace for cuBLAS, so it is no Hopper, and of
the cards of the list an L40S gives all that was recorded.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from memprof.dry_run.build import find_torch
from memprof.snapshot import load_snapshot
from memprof.trace import Action

KIB = 1 << 10
SIZES = ("--d_model", 1024, "--d_ff", 4096, "--num_layers", 24, "--num_heads", 16)
TRAINING, INFERENCE = "full-training-step", "forward-only"


@dataclass(frozen=True)
class Recorded:
    """What a snapshot says; bytes."""

    events: list[tuple[int, int]]
    start: int
    peak: int
    end: int
    reserved: int
    segments: list[int]


def recorded(path: Path) -> Recorded:
    (trace,) = load_snapshot(path)
    kinds = np.isin(trace.events.action, (Action.ALLOC, Action.FREE_COMPLETED))
    action, size = trace.events.action[kinds], trace.events.size[kinds]
    held = np.cumsum(np.where(action == Action.ALLOC, size, -size))
    start = trace.end.allocated - int(held[-1])
    return Recorded(
        events=list(zip(action.tolist(), size.tolist(), strict=True)),
        start=start,
        peak=start + int(held.max()),
        end=trace.end.allocated,
        reserved=trace.end.reserved,
        segments=sorted(trace.end.segments.size.tolist()),
    )


@pytest.fixture
def gpt_medium(dry_run, shared, tmp_path):
    """Runs the program on an L40S; the snapshot that it writes."""
    if not find_torch().version.startswith("2.11."):
        pytest.skip("the snapshots are of torch 2.11")
    for package in ("einops", "einx", "jaxtyping"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the program needs {package}")
    shutil.copytree(shared / "programs" / "gpt-medium", tmp_path / "gpt-medium")
    results = tmp_path / "results"
    results.mkdir()

    def run(context: int, pattern: str, autocast: str) -> Recorded:
        words = ["--context_length", context, "--pattern", pattern, "--autocast", autocast]
        words += ["--model_name", "medium", "--memory-profile", "true", "--warmup-steps", 5]
        program = [sys.executable, "nsys_profile.py", *SIZES, *words]
        done = dry_run("--gpu", "l40s", "--no-record", *program, cwd=tmp_path / "gpt-medium")
        assert done.returncode == 0, done.stderr[-3000:]
        (snapshot,) = results.iterdir()
        return recorded(snapshot)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gpt-medium-512-inference", (512, INFERENCE, "true")),
        ("gpt-medium-1024-training", (1024, TRAINING, "true")),
    ],
)
def test_a_run_is_the_cards_in_every_event_and_to_the_byte(gpt_medium, shared, name, arguments):
    real = recorded(shared / "snapshots" / f"{name}.pickle")
    assert gpt_medium(*arguments) == real


@pytest.mark.slow
def test_a_run_differs_by_one_block_that_was_not_split(gpt_medium, shared):
    """Where two free blocks are of one size torch takes the one at the lower address.

    Which that is depends on where the driver put their segments. Here one of 4 MiB was taken from
    a block that was 480 KiB larger before the recording began; all else is equal.
    """
    real = recorded(shared / "snapshots" / "gpt-medium-128-training.pickle")
    ours = gpt_medium(128, TRAINING, "false")
    assert ours.events == real.events
    assert (ours.reserved, ours.segments) == (real.reserved, real.segments)
    for name in ("start", "peak", "end"):
        assert getattr(real, name) - getattr(ours, name) == 480 * KIB
