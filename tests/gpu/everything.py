"""All that is wanted of a machine with a GPU, in parts that survive one another's failure.

    python tests/gpu/everything.py FOLDER                     the most valuable first, ten minutes
    python tests/gpu/everything.py FOLDER leaks recordings    what there was no time for
    python tests/gpu/everything.py FOLDER bench               the benchmark of every program
    python tests/gpu/everything.py FOLDER budget              whole recordings, for the claim of 1 %
    python tests/gpu/everything.py FOLDER compared            programs, to compare a dry run with
    memprof dry-run --gpu 8GiB --gpus 2 --no-record python tests/gpu/everything.py FOLDER facts truth

It needs a Python that has torch, msgspec, numpy and psutil, and memprof neither installed nor built. Where
pytest is not there, what needs no test runs. Each part writes
``FOLDER/PART.log`` and its results as JSON lines, ``FOLDER/PART.jsonl``. ``FOLDER/summary.jsonl``
has all of them with versions; what is printed is in ``FOLDER/summary.txt`` too. A call takes ten
minutes at most: a part that is not over then is stopped, and what it had found is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GPU = "tests/gpu"
RESULTS = "MEMPROF_TEST_RESULTS"
"""`tests.results.FILE`, which is not imported: nothing is, before it is known to be there."""
RECORDED = "RECORDED"
"""Stands for a folder whose files are kept as one archive."""
LONGEST_S = 585.0
"""Of one call."""
PATIENCE_S = 10.0
"""Between asking a part to end, which lets it tell what it had found, and ending it."""
TEST_S = 60
"""Of one test, where pytest-timeout is there."""
LIBRARY = ("msgspec", "numpy", "psutil", "torch")
TESTS = (*LIBRARY, "hypothesis", "pytest")
COMMANDS = (*TESTS, "click", "rich")
GOOD = ("passed", "holds", "measured", "met")
NEUTRAL = ("skipped", "not told")


@dataclass(frozen=True)
class Part:
    """Commands for Python that run one after another within a limit; they share a log."""

    commands: tuple[tuple[str, ...], ...]
    longest_s: int
    needs: tuple[str, ...] = LIBRARY
    """Of its tests; a command that is none needs `LIBRARY` alone."""

    @property
    def missing(self) -> list[str]:
        """Packages that are not there and without which no test of it runs."""
        return [name for name in self.needs if not _is_there(name)]

    @property
    def possible(self) -> tuple[tuple[str, ...], ...]:
        """Commands that can run with what is there."""
        return tuple(one for one in self.commands if not self.missing or "pytest" not in one)


def run_tests(*names: str, processes: int = 1, longest_test_s: int = TEST_S) -> tuple[str, ...]:
    """Arguments of Python for some files of tests; no plugin that may be missing is named."""
    command = ["-m", "pytest", "-v", "-rA", "--durations=15", "-p", "no:cacheprovider"]
    command += ["-p", "no:benchmark"]  # where it is, it warns of xdist, and a warning is an error
    command += ["-p", "tests.results", *(f"{GPU}/{name}.py" for name in names)]
    if _is_there("xdist"):  # even for one: a process that crashes or hangs is replaced
        command += ["-n", str(max(1, min(processes, os.cpu_count() or 1)))]
    if _is_there("pytest_timeout"):
        command += [f"--timeout={longest_test_s}", "--timeout-method=thread"]
    return tuple(command)


def parts() -> dict[str, Part]:
    """All parts by name, the most valuable first."""
    truth = ("test_counters", "test_labels", "test_holders", "test_disturbance", "test_untouched")
    claims = (f"{GPU}/probe.py", "labels", "peak", "bits", "compiled", "recompilations")
    claims += ("thread", "inference", "blocks", "operators", "stall")
    bench = "tests/benchmarks/bench_cuda.py"
    short = (bench, "--seconds", "1.5", "--rounds", "2", "--limit-s", "80")
    short += ("--only", "tiny", "gpt", "inference")
    return {
        "facts": Part(((f"{GPU}/facts.py",),), 120),
        "truth": Part((claims, run_tests(*truth, processes=4)), 180, TESTS),
        "ooms": Part((run_tests("test_ooms"),), 90, TESTS),
        "placement": Part((run_tests("test_recorded_snapshots", processes=6),), 60, TESTS),
        "cost": Part(((f"{GPU}/probe.py", "operator_costs", "block_costs"), short), 120),
        "leaks": Part((run_tests("test_leak_corpus", longest_test_s=300),), 150, COMMANDS),
        "compiled": Part((run_tests("test_compiled"),), 120, TESTS),
        "time_to_full": Part((run_tests("test_time_to_full", "test_loops"),), 60, TESTS),
        "sharing": Part((run_tests("test_sharing"),), 60, TESTS),
        "recordings": Part(((f"{GPU}/record_small.py", RECORDED),), 150),
        "compared": Part(((f"{GPU}/compare_dry_run.py", "record", RECORDED),), 250),
        "budget": Part(((bench, "--long-s", "30", "--only", "gpt"),), 300),
        "bench": Part(((bench,),), 585),
    }


def usual(every: dict[str, Part]) -> list[str]:
    """What a call runs that names no part."""
    return [name for name in every if name not in ("compared", "budget", "bench")]


def _is_there(name: str) -> bool:
    return util.find_spec(name) is not None


# -- running ---------------------------------------------------------------------------------------


def run(name: str, part: Part, folder: Path, longest_s: float) -> tuple[str, float]:
    """Run a part: how it ended, and after how many seconds."""
    began_s = time.monotonic()
    deadline_s = began_s + min(part.longest_s, longest_s)
    results = folder / f"{name}.jsonl"
    results.unlink(missing_ok=True)
    endings: list[str] = []
    log_path = folder / f"{name}.log"
    with tempfile.TemporaryDirectory() as recorded, log_path.open("w") as log:
        for arguments in part.possible:
            command = [sys.executable, *(recorded if a == RECORDED else a for a in arguments)]
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            endings.append(_ended(command, log, results, deadline_s))
        if any(Path(recorded).iterdir()):
            with tarfile.open(folder / f"{name}.tar", "w") as archive:
                archive.add(recorded, arcname=name)
    how = ", then ".join(dict.fromkeys(one for one in endings if one != "ok"))
    return how or "ok", time.monotonic() - began_s


def _ended(command: Sequence[str], log: Any, results: Path, deadline_s: float) -> str:
    """Run a command, and stop it and its children when it takes too long."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        return "no time left for all of it"
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**environment(), RESULTS: str(results)},
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            code = process.wait(left_s)
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
            return f"stopped after {left_s:.0f} s"


def environment() -> dict[str, str]:
    """This repository's code, installed or not; what is printed is there when a part is stopped."""
    path = [str(ROOT / below) for below in ("", "cli", "dashboards")]
    path += filter(None, [os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def warm() -> dict[str, Any]:
    """Load torch and start CUDA once, which takes a minute from a cold disk; the versions.

    Raises:
        SystemExit: torch or its CUDA does not start.
    """
    done = subprocess.run(
        [sys.executable, f"{GPU}/facts.py", "--versions"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"nothing was run: {(done.stderr or done.stdout).strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- telling ---------------------------------------------------------------------------------------


class Summary:
    """What is known so far: on the terminal, as text and as JSON lines; written as it comes."""

    def __init__(self, folder: Path) -> None:
        self._text = folder / "summary.txt"
        self._lines = folder / "summary.jsonl"

    def tell(self, line: str, record: dict[str, Any]) -> None:
        """One line for people, and the same as a record."""
        print(line, flush=True)
        with self._text.open("a") as text:
            text.write(line + "\n")
        self.keep(record)

    def keep(self, record: dict[str, Any]) -> None:
        """A record alone."""
        with self._lines.open("a") as lines:
            lines.write(json.dumps(record) + "\n")


def results_of(path: Path) -> Iterator[dict[str, Any]]:
    """Results as far as they were written."""
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):  # the last of a process that was killed
            yield json.loads(line)


def tell(name: str, how: str, seconds: float, folder: Path, summary: Summary) -> bool:
    """Tell how a part ended and what it found; whether all of it was good."""
    found = list(results_of(folder / f"{name}.jsonl"))
    counts = Counter(str(one["outcome"]) for one in found)
    bad = [one for one in found if one["outcome"] not in (*GOOD, *NEUTRAL)]
    tally = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    first = f"{bad[0]['result']}: {bad[0]['detail']}" if bad else ""
    record = {"part": name, "how": how, "seconds": round(seconds, 1), "counts": dict(counts)}
    summary.tell(
        f"== {name}: {how}, {seconds:.0f} s{'; ' if tally else ''}{tally}",
        {**record, "first_failure": first},
    )
    for one in found:
        told = {"part": name, **one}
        if one["outcome"] == "passed" and not one["detail"]:
            summary.keep(told)  # there are hundreds, and they say nothing more
        else:
            summary.tell(f"  {one['outcome']:9} {one['result']}: {one['detail']}", told)
    if how != "ok" and not bad:
        for line in (folder / f"{name}.log").read_text(errors="replace").splitlines()[-6:]:
            print(f"  | {line}")
    return how == "ok" and not bad


def how_to_bring(missing: Sequence[str]) -> str:
    """The two lines that bring packages to a machine that reaches no network."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    names = " ".join(missing)
    return (
        f"not there: {names}. Where there is a network, and then here:\n"
        f"  python3 -m pip download -d wheels --no-deps --only-binary=:all: "
        f"--python-version {version} --platform manylinux_2_17_{platform.machine()} {names}\n"
        f"  {sys.executable} -m pip install --no-index --no-deps --target site wheels/*.whl; "
        f"export PYTHONPATH=$PWD/site"
    )


def main() -> int:
    every = parts()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(every)}")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(every):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    began_s = time.monotonic()
    if missing := [name for name in LIBRARY if not _is_there(name)]:
        parser.error(how_to_bring(missing))
    if missing := [name for name in COMMANDS if not _is_there(name)]:
        print(how_to_bring(missing))
    options.folder.mkdir(parents=True, exist_ok=True)
    summary = Summary(options.folder)
    versions = warm()
    line = ", ".join(f"{name} {value}" for name, value in versions.items())
    warmed_s = time.monotonic() - began_s
    summary.tell(f"{line}; torch was there after {warmed_s:.0f} s", {"machine": versions})
    good, left_out = True, []
    for name in options.parts or usual(every):
        part = every[name]
        if part.missing:
            good = False
            without = f"not run without {', '.join(part.missing)}"
            summary.tell(f"== {name}: tests {without}", {"part": name, "how": without})
            if not part.possible:
                continue
        left_s = LONGEST_S - PATIENCE_S - (time.monotonic() - began_s)
        if left_s <= 0:
            left_out.append(name)
            continue
        how, seconds = run(name, part, options.folder.resolve(), left_s)
        good &= tell(name, how, seconds, options.folder, summary)
    if left_out:
        good = False
        again = f"python tests/gpu/everything.py {options.folder} {' '.join(left_out)}"
        summary.tell(f"no time was left for: {again}", {"left_out": left_out})
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
