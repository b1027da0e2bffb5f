from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from memprof import load
from memprof.analysis.examination import examine
from memprof.analysis.findings import Found, Kind, Remedy
from memprof.analysis.scene import Scene
from memprof.findings import findings

pytest.importorskip("torch", reason="the programs that are patched train with torch")

SPEC = importlib.util.spec_from_file_location("programs", Path(__file__).with_name("programs.py"))
programs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(programs)
LEAKS, WASTE, program = programs.LEAKS, programs.WASTE, programs.program

PEAKS: dict[Path, int] = {}
"""The peak after warm-up of every run."""

LEFT = {"clone_view": 0.02}
"""Share of the growth that is meant to stay: the clones themselves."""

GROWTH = (Kind.LEAK, Kind.CYCLE)
FIXES = (*LEAKS, *WASTE)

RECORD = """
import gc, importlib.util, sys
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location(path.rsplit("/", 1)[-1][:-3], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.main(path[:-3] + ".json")
    del module
    sys.modules.pop(spec.name)
    while __import__("torch").is_autocast_enabled("cpu"):
        __import__("torch").set_autocast_enabled("cpu", False)
    gc.collect()
"""


def record(folder: Path, sources: dict[str, str]) -> dict[str, tuple[Found, ...]]:
    paths = {fix: folder / f"job_{fix}.py" for fix in sources}
    for fix, source in sources.items():
        paths[fix].write_text(source)
    command = [sys.executable, "-W", "ignore", "-c", RECORD, *map(str, paths.values())]
    subprocess.run(command, check=True, env={"OMP_NUM_THREADS": "1", "PYTHONPATH": _root()})
    return {fix: _examined(path.with_suffix(".json")) for fix, path in paths.items()}


def _examined(path: Path) -> tuple[Found, ...]:
    run = load(path)
    examination = examine(run)
    device = examination.devices[0]
    PEAKS[path] = Scene(device.name, 0, device.windows[0]).peak.bytes
    return findings(run, examination)


def _root() -> str:
    return str(Path(__file__).resolve().parents[2])


def patched(source: str, diff: str) -> str:
    """The source after a unified diff, applied strictly: every context line must be there."""
    old, new, at = source.splitlines(keepends=True), [], 0
    for line in diff.splitlines(keepends=True)[2:]:
        if line.startswith("@@"):
            start = int(line.split()[1].lstrip("-").split(",")[0]) - 1
            new += old[at:start]
            at = start
        elif line.startswith("+"):
            new.append(line[1:])
        else:
            assert old[at] == line[1:]
            new += [old[at]] if line.startswith(" ") else []
            at += 1
    return "".join(new + old[at:])


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    return record(tmp_path_factory.mktemp("before"), {fix: program(fix) for fix in FIXES})


@pytest.fixture(scope="module")
def after(tmp_path_factory, before):
    sources = {}
    for fix in FIXES:
        offered = remedy(before[fix], fix)
        if offered is not None and offered.patch:
            sources[fix] = patched(program(fix), offered.patch)
    return record(tmp_path_factory.mktemp("after"), sources)


def remedy(found: tuple[Found, ...], fix: str) -> Remedy | None:
    offered = [r for one in found for r in one.remedies if r.fix == fix]
    return next((r for r in offered if r.patch), next(iter(offered), None))


@pytest.mark.slow
@pytest.mark.parametrize("fix", LEAKS)
def test_after_the_patch_nothing_grows(fix, before, after):
    assert any(one.kind in GROWTH for one in before[fix])
    assert remedy(before[fix], fix).patch
    grew = sum(one.bytes_per_step for one in before[fix] if one.kind in GROWTH)
    grows = sum(one.bytes_per_step for one in after[fix] if one.kind in GROWTH)
    assert grows <= LEFT.get(fix, 0.0) * grew


@pytest.mark.slow
@pytest.mark.parametrize("fix", WASTE)
def test_after_the_patch_the_waste_is_not_there(fix, before, after):
    patterns = _patterns(before[fix], fix)
    assert patterns
    assert not patterns & {one.evidence.facts.get("pattern") for one in after[fix]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fix", ["set_to_none", "foreach_false", "disable_autocast_cache", "no_grad"]
)
def test_the_peak_after_the_patch_is_what_the_replay_promised(fix, before, after):
    offered = remedy(before[fix], fix)
    assert offered.peak_after < offered.peak_before
    promised = offered.peak_before - offered.peak_after
    assert offered.saves_bytes == promised
    peaks = [nbytes for path, nbytes in PEAKS.items() if path.stem == f"job_{fix}"]
    assert peaks[0] == offered.peak_before
    assert promised == pytest.approx(peaks[0] - peaks[1], rel=0.15)


def _patterns(found: tuple[Found, ...], fix: str) -> set[object]:
    return {
        one.evidence.facts.get("pattern")
        for one in found
        if any(r.fix == fix and r.patch for r in one.remedies)
    }
