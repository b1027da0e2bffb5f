"""Public programs with and without memprof: exit, output, processor time, peak of the process, file.

``python tests/benchmarks/public_programs.py FOLDER [--only NAME …]``: FOLDER holds
checkouts of ``pytorch/examples`` (as ``examples``) and ``karpathy/nanoGPT`` (as ``nanoGPT``). Nothing
is downloaded: data sets are random data of the same shape, handed over by stand-ins of the packages
that would fetch them; the programs themselves are as they are. Programs of these shapes that are no
repository's (a server, a compiled model, LBFGS, a million operators, models made anew in rounds,
generation before training) are in ``tests/benchmarks/programs``. What is not in FOLDER is left out, and said.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWN = Path(__file__).parent / "programs"
PATHS = [ROOT, ROOT / "cli", ROOT / "dashboards"]
LONGEST_S = 1500
WAYS = ("plain", "dispatch", "native")
_TIMES = re.compile(r"\d+(?:\.\d+)? ?(?:ms|s)\b(?:/batch)?|ms/batch +[\d.]+|mfu .*%?|/tmp/\S+")
"""What differs from run to run whatever runs beside it."""


@dataclass(frozen=True)
class Program:
    """One program: what is run, from which folder, on which data."""

    name: str
    command: tuple[str, ...]
    folder: str = ""
    """Below FOLDER; empty for those that are here."""
    data: str = ""
    """The stand-in's function that makes its files."""
    results: tuple[str, ...] = ()
    """Files whose tensors must be equal to the bit."""


@dataclass
class Outcome:
    """What one run came to."""

    code: int = -1
    output: str = ""
    errors: str = ""
    processor_s: float = 0.0
    wall_s: float = 0.0
    peak_bytes: int = 0
    file_bytes: int = 0
    report: list[str] = field(default_factory=list)
    tensors: str = ""


PROGRAMS = (
    Program(
        "examples/mnist",
        ("main.py", "--epochs", "1", "--no-accel", "--save-model"),
        "examples/mnist",
        results=("mnist_cnn.pt",),
    ),
    Program("examples/vae", ("main.py", "--epochs", "1", "--no-accel"), "examples/vae"),
    Program("examples/regression", ("seeded.py", "main.py"), "examples/regression"),
    Program(
        "examples/word_language_model, LSTM",
        ("main.py", "--epochs", "1", "--emsize", "64", "--nhid", "64"),
        "examples/word_language_model",
        data="words",
    ),
    Program(
        "examples/word_language_model, Transformer",
        ("main.py", "--model", "Transformer", "--epochs", "1", "--emsize", "64", "--nhid", "64"),
        "examples/word_language_model",
        data="words",
    ),
    Program(
        "examples/time_sequence_prediction (LBFGS)",
        ("train.py", "--steps", "1"),
        "examples/time_sequence_prediction",
        data="waves",
    ),
    Program(
        "nanoGPT",
        (
            "train.py",
            *("--device=cpu", "--compile=False", "--dtype=float32", "--dataset=random"),
            *("--eval_iters=2", "--eval_interval=20", "--max_iters=40", "--lr_decay_iters=40"),
            *("--n_layer=4", "--n_head=4", "--n_embd=128", "--block_size=64", "--batch_size=8"),
            "--gradient_accumulation_steps=1",
        ),
        "nanoGPT",
        data="tokens",
    ),
    Program("a compiled model", ("compiled.py",)),
    Program("a server answering 200 requests", ("server.py",)),
    Program("LBFGS", ("lbfgs.py",)),
    Program("generate(500), then training", ("generated.py",)),
    Program("a million small operators", ("operators.py",)),
    Program("models made anew in rounds", ("federated.py",)),
)


def environment(way: str, cache: str) -> dict[str, str]:
    """What a run is given; under every way the same stand-ins lie on the path."""
    paths = [*map(str, PATHS), str(OWN / "standins")]
    native = {"MEMPROF_NATIVE": "1" if way == "native" else "0", "MEMPROF_CACHE": cache}
    # An array in a file of torch.save: refused since torch 2.6 unless this is set.
    trusted = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(paths)}
    return {**os.environ, **native, **trusted, **fixed}


def run(program: Program, way: str, folder: Path, cache: str) -> Outcome:
    """One fresh process, in a fresh copy of its folder."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "program"
        shutil.copytree(folder / program.folder if program.folder else OWN, place)
        shutil.copy(OWN / "seeded.py", place)
        env = environment(way, cache)
        if program.data:
            made = [sys.executable, str(OWN / "data.py"), program.data]
            subprocess.run(made, cwd=place, env=env, check=True)
        (place / "results").mkdir(exist_ok=True)
        file = place / "run.json"
        command = [sys.executable, *program.command]
        if way != "plain":
            recorded = ["-m", "memprof_cli", "run", "--quiet", "-o", str(file)]
            command = [sys.executable, *recorded, *program.command]
        outcome = _process(command, place, env)
        outcome.tensors = _tensors([place / name for name in program.results])
        if way != "plain" and file.exists():
            outcome.file_bytes = file.stat().st_size
            report = [sys.executable, "-m", "memprof_cli", "report", str(file), "--no-page"]
            told = subprocess.run(report, env=env, capture_output=True, text=True, check=False)
            outcome.report = told.stdout.splitlines() or told.stderr.splitlines()
        return outcome


def _process(command: list[str], place: Path, env: dict[str, str]) -> Outcome:
    # In a process of its own that has no other child: its figures are those of this one.
    script = (
        "import resource, subprocess, sys, time; began = time.perf_counter();"
        "done = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL);"
        "took = time.perf_counter() - began;"
        "use = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print('\\n@@', use.ru_utime + use.ru_stime, took, use.ru_maxrss, done.returncode)"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-u", "-c", script, *command],
            cwd=place,
            env=env,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(errors="took too long")
    output, _, figures = done.stdout.rpartition("\n@@ ")
    processor_s, wall_s, peak_kib, code = figures.split()
    return Outcome(
        code=int(code),
        output=" ".join(_TIMES.sub("", output).split()),  # figures of times are padded
        errors=_TIMES.sub("", done.stderr),  # a warning names the folder of this run
        processor_s=float(processor_s),
        wall_s=float(wall_s),
        peak_bytes=int(peak_kib) * 1024,
    )


def _tensors(files: list[Path]) -> str:
    import hashlib

    import torch

    digest = hashlib.sha256()
    for file in files:
        for name, tensor in torch.load(file, map_location="cpu").items():
            digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def row(program: Program, outcomes: dict[str, Outcome]) -> str:
    """A line of the table."""
    plain = outcomes["plain"]
    cells = [program.name, f"{plain.processor_s:.1f} s"]
    for way in WAYS[1:]:
        one = outcomes[way]
        same = (one.code, one.output, one.tensors) == (
            plain.code,
            plain.output,
            plain.tensors,
        ) and _warnings(one.errors) == _warnings(plain.errors)
        cells += [
            ("equal" if same else "DIFFERENT") + (f", exit {one.code}" if one.code else ""),
            f"{one.processor_s / plain.processor_s:.2f} ×",
            f"{(one.peak_bytes - plain.peak_bytes) / 2**20:+.0f} MiB",
            f"{one.file_bytes / 1e6:.1f} MB",
        ]
    return "| " + " | ".join(cells) + " |"


def _warnings(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if "Warning" in line or "Error" in line]


HEAD = """\
| program | plain | dispatch mode: output | processor | resident | file | native part: output | processor | resident | file |
|---|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    """Run all, print the table as it grows, then what each report says first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--cache", default=str(Path(tempfile.gettempdir()) / "memprof-programs"))
    parser.add_argument("-j", type=int, default=1, help="programs at a time: blurs wall time")
    options = parser.parse_args()
    date = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    versions = f"torch {metadata.version('torch')}, Python {platform.python_version()}"
    print(f"{versions}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {date}\n\n{HEAD}")
    chosen = [one for one in PROGRAMS if not options.only or one.name in options.only]
    there = [one for one in chosen if not one.folder or (options.folder / one.folder).is_dir()]
    told: list[str] = []

    def all_ways(program: Program) -> None:
        outcomes = {way: run(program, way, options.folder, options.cache) for way in WAYS}
        print(row(program, outcomes), flush=True)
        for way, one in outcomes.items():
            told.append(f"\n== {program.name}, {way}: exit {one.code}, {one.wall_s:.1f} s")
            told.extend(one.report[:30] if one.report else [one.errors[-600:]] * bool(one.code))

    with ThreadPoolExecutor(options.j) as pool:
        list(pool.map(all_ways, there))
    for program in chosen:
        if program not in there:
            print(f"{program.name}: {options.folder / program.folder} is not there, left out")
    print("\n".join(told))


if __name__ == "__main__":
    main()
