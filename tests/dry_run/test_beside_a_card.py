"""Programs in a dry run for an H200, allocation by allocation beside what one recorded of them.

`tests/data/h200-torch2.11.0` was written on it by `tests/gpu/compare_dry_run.py record`, 2026-11-26.
"""

from __future__ import annotations

import gzip
import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from memprof.dry_run.build import find_torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "gpu" / "compare_dry_run.py"
FOLDER = ROOT / "tests" / "data" / "h200-torch2.11.0"
ALLOC = 0
RECORDINGS = sorted(FOLDER.glob("*.json.gz"))


def load(path: Path) -> dict:
    return json.loads(gzip.decompress(path.read_bytes()))


def sizes(recording: dict) -> list[int]:
    return [event[1] for event in recording["events"] if event[0] == ALLOC]


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_every_allocation_is_the_cards(dry_run, tmp_path, path):
    if not find_torch().version.startswith("2.11."):
        pytest.skip("the recordings are of torch 2.11")
    name, real = path.name.removesuffix(".json.gz"), load(path)
    needed = {"transformers": ("bert", "llama", "gpt2"), "torchvision": ("swin",)}
    for package, programs in needed.items():
        if any(program in name for program in programs):
            _need(package, real["versions"][package])
    words = [sys.executable, SCRIPT, "--one", name, tmp_path / "ours.json.gz"]
    done = dry_run("--gpu", FOLDER / "card.json", "--no-record", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    ours = load(tmp_path / "ours.json.gz")
    assert sizes(ours) == sizes(real)
    # Where segments lie is the driver's matter, and decides which of two free blocks is taken.
    for kind, most in (("requested", 0.0), ("allocated", 0.002), ("reserved", 0.033)):
        peak = real["bytes"][f"{kind} peak"]
        assert abs(ours["bytes"][f"{kind} peak"] - peak) <= most * peak


def _need(package: str, version: str) -> None:
    try:
        there = metadata.version(package)
    except metadata.PackageNotFoundError:
        pytest.skip(f"the program needs {package}")
    if there.partition("+")[0] != version.partition("+")[0]:
        pytest.skip(f"the recording is of {package} {version}")
