"""Programs that were not written for memprof run under it unchanged, to the last bit."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from memprof.loading import load
from memprof.views.examination import DeviceExamination, alive_at_peak, examine
from memprof.views.owners import top
from tests import forks

HERE = Path(__file__).parent
DEMO = HERE.parents[1] / "docs" / "examples" / "train_gpt.py"

pytest.importorskip("torch")


@dataclass(frozen=True)
class Program:
    """A script, the module paths that its peak must name, and its parameters' bytes."""

    script: Path
    modules: tuple[str, ...]
    steps: int
    parameter_bytes: int
    needs: str = "torch"


PROGRAMS = [
    Program(DEMO, ("GPT.blocks.0.attention", "GPT.blocks.2.mlp.0"), 40, 1_409_664),
    Program(HERE / "data_loader.py", ("Sequential.0", "Sequential.2"), 12, 2_572),
    Program(HERE / "compiled.py", ("_orig_mod.0", "_orig_mod.2"), 8, 2_572),
    Program(
        HERE / "transformers_gpt2.py",
        ("GPT2LMHeadModel.transformer.h.0.mlp.c_fc", "GPT2LMHeadModel.transformer.wte"),
        12,
        0,
        "transformers",
    ),
]


@dataclass(frozen=True)
class Recorded:
    """What a program printed under memprof, and where its run is."""

    printed: str
    run_file: Path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Program], Recorded]:
    """Runs each program under memprof once."""

    @cache
    def once(program: Program) -> Recorded:
        path = tmp_path_factory.mktemp(program.script.stem) / "run.json"
        return Recorded(memprof_run("-o", path, program.script), path)

    return once


def memprof_run(*words: object) -> str:
    # However busy the machine is, each program is recorded whole.
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONHASHSEED="0", MEMPROF_ALLOWANCE="600")
    done = subprocess.run(
        [sys.executable, "-m", "memprof_cli", "run", *map(str, words)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.script.stem)
def test_a_program_prints_the_same_and_its_bytes_have_owners(
    program: Program, recorded: Callable[[Program], Recorded]
) -> None:
    if importlib.util.find_spec(program.needs) is None:
        pytest.skip(f"{program.needs} is not installed")
    plain, ours = forks.run_file(program.script, PYTHONHASHSEED="0"), recorded(program)
    assert plain.returncode == 0, plain.stderr
    assert ours.printed == plain.stdout
    (device,) = examine(load(ours.run_file)).devices
    assert int(device.steps.last.max()) + 1 == program.steps
    names = {group.name for group in _groups(device, "module")}
    for module in program.modules:
        assert any(name.endswith(module) for name in names), (module, names)
    categories = {group.name: group for group in _groups(device, "category")}
    assert {"parameter", "activation"} <= set(categories)


def _groups(device: DeviceExamination, grouping: str) -> list[object]:
    window = device.peak_window
    assert window is not None
    chosen = getattr(window.owners, grouping)
    return list(top(chosen, window.line.lives.requested, alive_at_peak(window), 1000))


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.parameter_bytes])
def test_parameters_add_up_to_the_byte(
    program: Program, recorded: Callable[[Program], Recorded]
) -> None:
    (device,) = examine(load(recorded(program).run_file)).devices
    categories = {group.name: group for group in _groups(device, "category")}
    assert categories["parameter"].bytes == program.parameter_bytes
