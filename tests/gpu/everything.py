"""All that is wanted of a machine with a GPU, in parts that survive one another's failure.

    python tests/gpu/everything.py FOLDER                     the facts, tests, leaks and recordings
    python tests/gpu/everything.py FOLDER bench               the benchmark
    python tests/cuda_stub tests/gpu/everything.py FOLDER facts tests

Each part writes ``FOLDER/PART.log``; ``FOLDER/summary.txt`` says how each ended. The parts of one
call take ten minutes at most: one that is not over then is stopped, with what it had found.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from importlib import util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GPU = "tests/gpu"
CORPUS = f"{GPU}/test_leak_corpus.py"
PYTEST = ("-m", "pytest", "-v", "-rA", "--durations=15", "-p", "no:cacheprovider")
RECORDED = "RECORDED"
"""Stands for a folder whose files are kept as one archive."""
PARTS: dict[str, tuple[tuple[str, ...], int]] = {
    "facts": ((f"{GPU}/facts.py",), 60),
    "tests": ((*PYTEST, GPU, f"--ignore={CORPUS}"), 330),
    "leaks": ((*PYTEST, CORPUS), 240),
    "recordings": ((f"{GPU}/record_small.py", RECORDED), 150),
    "bench": (("tests/benchmarks/bench_cuda.py",), 585),
}
"""What Python is given, and the seconds after which it is stopped."""
USUAL = ("facts", "tests", "leaks", "recordings")
NEEDED = ("hypothesis", "msgspec", "numpy", "psutil", "pytest", "torch")
LONGEST_S = 585
"""Of one call."""
PATIENCE_S = 10
"""Between asking a part to end, which lets it tell what it had found, and ending it."""
TAIL = 25
"""Lines of each log that are shown at once."""


def run(name: str, folder: Path, longest_s: float) -> str:
    """Run a part; how it ended."""
    arguments, own_s = PARTS[name]
    log = folder / f"{name}.log"
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as recorded, log.open("w") as output:
        command = [sys.executable, *(recorded if a == RECORDED else a for a in arguments)]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            how = _ended(process, min(own_s, longest_s))
        if any(Path(recorded).iterdir()):
            with tarfile.open(folder / f"{name}.tar", "w") as archive:
                archive.add(recorded, arcname=name)
    print(f"\n== {name}: {how}\n" + "\n".join(_tail(log)), flush=True)
    return f"{name}: {how}, {time.monotonic() - began_s:.0f} s"


def _environment() -> dict[str, str]:
    """This repository's code, installed or not; what is printed is there when a part is stopped."""
    path = [str(ROOT / below) for below in ("", "cli", "dashboards")]
    path += filter(None, [os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def _ended(process: subprocess.Popen[bytes], longest_s: float) -> str:
    """Wait for a process, and stop it and its children when it takes too long."""
    try:
        code = process.wait(longest_s)
        return "ok" if code == 0 else f"ended with {code}"
    except subprocess.TimeoutExpired:
        for kind in (signal.SIGINT, signal.SIGKILL):
            os.killpg(process.pid, kind)
            try:
                process.wait(PATIENCE_S)
                break
            except subprocess.TimeoutExpired:
                continue
        with suppress(ProcessLookupError):  # children that it left
            os.killpg(process.pid, signal.SIGKILL)
        return f"stopped after {longest_s:.0f} s"


def _tail(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-TAIL:]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if missing := [name for name in NEEDED if util.find_spec(name) is None]:
        parser.error(f"nothing can be run without {', '.join(missing)}: pip install them")
    options.folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LONGEST_S
    told = []
    for name in options.parts or USUAL:
        left_s = deadline - time.monotonic() - PATIENCE_S
        told.append(run(name, options.folder, left_s) if left_s > 0 else f"{name}: no time left")
        with (options.folder / "summary.txt").open("a") as summary:
            summary.write(told[-1] + "\n")
    print("\n" + "\n".join(told))
    return 0 if all(": ok" in line for line in told) else 1


if __name__ == "__main__":
    sys.exit(main())
