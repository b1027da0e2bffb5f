"""Patches for what only a GPU's allocator shows: run again on a stand-in, not on a GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="a recording needs torch")

import memprof
from memprof.loading import load
from memprof.rules.finding import Remedy, RuleFinding
from memprof.rules.ranked_findings import findings
from memprof.run import Run
from memprof.sources.cuda.snapshot_source import CudaSource
from memprof.testing.cuda import TorchStandIn
from memprof.trace import Action
from memprof.views.examination import examine

SPEC = importlib.util.spec_from_file_location("diffs", Path(__file__).with_name("diffs.py"))
diffs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(diffs)

MIB = 1 << 20
STEPS = 16

EMPTYING = """\
import memprof


def main(torch):
    for _ in range(STEPS):
        batch = torch.randn(8 * MIB)
        del batch
        torch.cuda.empty_cache()
        memprof.step()
"""

LOADING = """\
import memprof


def main(torch):
    net = [torch.randn(2 * MIB) for _ in range(4)]
    checkpoint = torch.load("net.pt", map_location=DEVICE)
    for weight, saved in zip(net, checkpoint):
        weight.copy_(saved)
    for _ in range(STEPS):
        torch.randn(6 * MIB)
        memprof.step()
"""

TENSORS = """\
import weakref


class Tensor:
    def __init__(self, torch, size):
        self.size = size
        if torch is not None:
            weakref.finalize(self, torch.free, torch.alloc(size)).atexit = False

    def copy_(self, other):
        assert self.size == other.size
"""

SERIALIZATION = """\
def load(path, map_location=None):
    where = None if map_location == "cpu" else torch
    return [Tensor(where, 2 << 20) for _ in range(4)]
"""


class Torch(TorchStandIn):
    """With tensors, files of weights, and a cache that can be emptied; which is counted."""

    def __init__(self) -> None:
        super().__init__(capacity=256 * MIB)
        self.cuda.empty_cache = self._empty
        inside: dict[str, Any] = {"torch": self}
        for source, name in ((TENSORS, "_tensor.py"), (SERIALIZATION, "serialization.py")):
            filename = f"/venv/lib/site-packages/torch/{name}"  # no line of the user's is in it
            exec(compile(source, filename, "exec"), inside)
        self.load = inside["load"]
        self.randn = lambda size: inside["Tensor"](self, size)

    def _empty(self) -> None:
        self.calls["empty_cache"] += 1
        self.empty_cache()


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a program's ``main`` on a stand-in; what was found, its peak, and the stand-in."""

    def run(source: str) -> tuple[Run, Torch]:
        torch = Torch()
        # A busy machine makes looks at the stand-in seem too dear, and what is measured is no GPU.
        monkeypatch.setattr("memprof.sources.cuda.read_budget.AIM_US", 1e12)
        monkeypatch.setattr(
            "memprof.record.session.event_sources",
            lambda _, interner, loop_watch, __: [CudaSource(interner, loop_watch, torch)],
        )
        script = tmp_path / f"job{len(list(tmp_path.glob('*.py')))}.py"
        script.write_text(source)
        spec = importlib.util.spec_from_file_location(script.stem, script)
        job = importlib.util.module_from_spec(spec)
        vars(job).update(STEPS=STEPS, MIB=MIB, DEVICE="cuda")
        spec.loader.exec_module(job)
        with memprof.track(script.with_suffix(".json"), sources=("cuda",)):
            job.main(torch)
        return load(script.with_suffix(".json")), torch

    return run


def remedy(found: tuple[RuleFinding, ...], fix: str) -> Remedy:
    return next(r for one in found for r in one.remedies if r.fix == fix)


def patterns(found: tuple[RuleFinding, ...]) -> set[object]:
    return {one.rule for one in found}


def peak(run: Run) -> int:
    """The most bytes allocated in the steps after the first ones."""
    device = examine(run).devices[0]
    return device.windows[0].peak.bytes


def test_without_the_call_the_cache_is_filled_once(run):
    recorded, torch = run(EMPTYING)
    assert torch.calls["empty_cache"] == STEPS
    found = findings(recorded)
    offered = remedy(found, "drop_empty_cache")
    assert offered.code == "torch.cuda.empty_cache()"
    recorded, torch = run(diffs.patched(EMPTYING, offered.patch))
    assert torch.calls["empty_cache"] == 0
    assert "cache-emptied" in patterns(found)
    assert "cache-emptied" not in patterns(findings(recorded))
    events = recorded.devices[0].windows[0].events
    assert (events.action == Action.SEGMENT_ALLOC).sum() == 1


def test_loaded_to_the_host_a_checkpoint_takes_nothing_of_the_device(run):
    recorded, _ = run(LOADING)
    found = findings(recorded)
    assert "loaded" in patterns(found)
    offered = remedy(found, "map_location_cpu")
    assert offered.saves_bytes == 8 * MIB
    again, _ = run(diffs.patched(LOADING, offered.patch))
    assert "loaded" not in patterns(findings(again))
    assert (peak(recorded), peak(again)) == (offered.peak_before, offered.peak_after)
