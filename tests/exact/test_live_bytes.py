"""Live bytes against an independent count of storages and against a preloaded allocator counter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

HERE = Path(__file__).parent
JOBS = (
    "mlp", "cnn", "transformer", "transformer_foreach", "transformer_fused", "amp", "accumulation",
    "reentrant", "not_reentrant", "recurrent", "lbfgs",
)  # fmt: skip


@pytest.fixture(scope="session")
def counter(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library to preload that counts what torch's CPU allocator has given out."""
    source = shared / "leak_corpus" / "tools" / "cpualloc_shim.c"
    compiler = shutil.which("cc")
    if not source.is_file() or compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux, a C compiler and the source of the counter")
    library = tmp_path_factory.mktemp("counter") / "counter.so"
    flags = ["-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl", "-lpthread"]
    subprocess.run([compiler, *flags], check=True)
    return library


@pytest.fixture(scope="module")
def results(counter: Path) -> dict[tuple[str, bool], dict]:
    """What each job printed, with our windows and without."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "LD_PRELOAD": str(counter),
        "PYTHONPATH": str(HERE.parent.parent),
    }
    asked = [f"{job}:{mode}" for job in JOBS for mode in ("windows", "none")]
    command = [sys.executable, str(HERE / "live_bytes.py"), *asked]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = map(json.loads, done.stdout.splitlines())
    return {(job, windows): result for job, windows, result in rows}


def steps(result: dict) -> list[dict]:
    assert result["ended"] == [0, 1, 2, 3, 4, 5]
    assert result["notes"] == []
    return result["steps"]


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_live_bytes_are_exact_and_the_job_is_left_alone(job, results):
    seen, plain = steps(results[job, True]), steps(results[job, False])
    for step in seen:
        assert step["source"] == step["alive"]
    beside = {step["shim"] - step["source"] for step in seen}
    assert len(beside) == 1  # what kernels cache; the rest is the source's to the byte
    assert seen[-1]["events"] > 0
    for ours, theirs in zip(seen, plain, strict=True):
        assert ours["loss"] == theirs["loss"]
        assert ours["shim"] == theirs["shim"]
    assert [s["shim_peak"] for s in seen[1:]] == [s["shim_peak"] for s in plain[1:]]
