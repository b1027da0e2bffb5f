"""Operators and whole programs in a dry run, under the torch that is there: `programs/`.

`docs/dry-run.md` has the table of what was tried with which torch.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from memprof.loading import load

PROGRAMS = Path(__file__).with_name("programs")
WORKSPACE, LT_WORKSPACE = 8_519_680, 1 << 20
"""What torch keeps for cuBLAS and cuBLASLt, for each thread that multiplied matrices."""

OF_DROPOUT = 108 * 2048 * 24
"""The states of cuDNN's dropout: 24 bytes for each thread that an A100 runs at once."""

EXACT = ("mnist", "resnet", "unet", "gan", "vit", "lstm")
"""Nothing is left of a step but what models and optimizers own, and cuBLAS's workspaces."""


def figures(done, word: str = "figures") -> dict[str, int]:
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(f"{word} "))
    return json.loads(line.removeprefix(word))


def run(dry_run, tmp_path, name: str, *options: object):
    words = ["--gpu", "a100-80gb", *options]
    return dry_run(*words, "--no-record", sys.executable, PROGRAMS / f"{name}.py", cwd=tmp_path)


def workspaces(rest: int) -> bool:
    """Whether bytes are those of workspaces, at most four threads' of each."""
    return any(
        rest == products * WORKSPACE + linear * LT_WORKSPACE
        for products in range(5)
        for linear in range(5)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_a_program_ends_with_what_it_owns_and_no_byte_more(dry_run, tmp_path, name):
    told = figures(run(dry_run, tmp_path, name))
    states = OF_DROPOUT if name == "lstm" else 0  # which torch keeps for the device
    assert workspaces(told["requested"] - told["owned"] - states)
    assert told["owned"] < told["peak"] <= told["reserved"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["graphs", "compiled"])
def test_what_holds_memory_of_its_own_runs(dry_run, tmp_path, name):
    if name == "compiled" and importlib.util.find_spec("triton") is None:
        pytest.skip("torch.compile needs triton")
    if name == "compiled":  # recorded, which has its own part in what torch compiles
        words = ["--gpu", "a100-80gb", "-o", "run.json", PROGRAMS / "compiled.py"]
        told = figures(dry_run(*words, cwd=tmp_path))
    else:
        told = figures(run(dry_run, tmp_path, name))
    assert told["owned"] <= told["requested"] <= told["peak"] <= told["reserved"]
    if name == "graphs":  # what the graphs' pool keeps; a compiled program need not keep anything
        assert told["owned"] < told["requested"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("decoder", "transformers"),
        ("trainer", "transformers"),
        ("lightning_module", "pytorch_lightning"),
    ],
)
def test_programs_of_other_libraries_run(dry_run, tmp_path, name, package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    # Recorded, because only then a generation ends at its limit of length.
    words = ["--gpu", "a100-80gb", "-o", "run.json", PROGRAMS / f"{name}.py"]
    told = figures(dry_run(*words, cwd=tmp_path))
    assert 0 < told["owned"] <= told["requested"] <= told["peak"]


@pytest.mark.slow
def test_each_operator_runs(dry_run, tmp_path):
    told = figures(run(dry_run, tmp_path, "operators"), "operators")
    failed = told["failed"]
    assert "compute capability" in failed.pop("fp8 matmul")  # which an A100 has not
    if told["torch"].startswith("2.4."):
        del failed["attention, cuDNN"]  # torch 2.4 offers it on request only
    assert failed == {}
    assert told["ran"] > 60


@pytest.mark.slow
def test_products_find_their_gradients_in_every_shape(dry_run, tmp_path):
    told = figures(run(dry_run, tmp_path, "products"), "products")
    assert told["passes"] > 1000


@pytest.mark.slow
def test_a_program_that_is_recorded_says_where_its_workspaces_are_estimates(dry_run, tmp_path):
    words = ["--gpu", "a100-80gb", "-o", "run.json", "--json", PROGRAMS / "lstm.py"]
    done = dry_run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert " estimated" in json.loads(done.stdout[done.stdout.index("{\n") :])["workspaces"]
    notes = [note.message for note in load(tmp_path / "run.json").notes if note.source == "dry run"]
    estimates = [
        note for note in notes if note.startswith("estimate: ") and "programs/lstm.py" in note
    ]
    (states,) = (note for note in estimates if "the states of cuDNN's dropout" in note)
    assert ", 5.06 MiB at the most, asked once, " in states
    (estimate,) = (note for note in estimates if "of recurrent nets of cuDNN, " in note)
    line = (PROGRAMS / "lstm.py").read_text().splitlines().index(CALL) + 1
    assert estimate.endswith(f"{PROGRAMS / 'lstm.py'}:{line} in forward")
    assert any("recurrent nets" in note and note.endswith("in the backward pass") for note in notes)


CALL = "        output, hidden = self.rnn(self.drop(self.encoder(text)), hidden)"
