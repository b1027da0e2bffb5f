"""collector-off: the program has switched the garbage collector off, and cycles stay."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import pytest

from tests.rules.recorded import findings_of, names

NBYTES = 128 * 128 * 4
PROGRAM = """\
import gc
import torch


class Trainer:
    def __init__(self):
        self.module = Module(self)


class Module:
    def __init__(self, trainer):
        self.trainer = trainer
        self.weight = torch.zeros(128, 128)


job = {{}}
trainers = []
{off}


def objective(trial):
    {kept}


def run(study):
    {run}
"""
NAMED, LISTED = 'job["last"] = Trainer()', "trainers.append(Trainer())"
FOLDER = Path(tempfile.gettempdir(), f"memprof-programs-{os.getuid()}")
"""It stays: a recording that was made in another process is read when that has ended."""


def in_program(off="", kept=NAMED, run="pass"):
    """The program as a file of its own, which alone may switch the collector off."""
    text = PROGRAM.format(off=off, kept=kept, run=run)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"tune_{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
    own = path.with_suffix(f".{os.getpid()}")
    own.write_text(text)
    own.replace(path)  # at once: other workers of the tests may read it
    namespace = {}
    exec(compile(text, str(path), "exec"), namespace)
    return namespace["objective"]


def fires():
    """A trainer in each trial, which its module knows; the last one has a name."""
    return in_program("gc.disable()")


def looks_alike():
    """A list keeps all of them, whatever a collector does."""
    return in_program("gc.disable()", LISTED)


def test_the_collector_is_to_run(tmp_path):
    found = findings_of(fires, tmp_path / "run.json", steps=40)[0]
    first = found.remedies[0]
    expected = ("collector-off", "collect_garbage", "gc.collect()")
    assert (found.rule, first.fix, first.typed) == expected
    assert found.bytes_per_step == NBYTES
    assert first.code == "gc.disable()"


def test_a_study_has_a_switch_of_its_own(tmp_path):
    call = "study.optimize(objective, n_trials=40)"
    found = findings_of(lambda: in_program("gc.disable()", run=call), tmp_path / "run.json", 40)[0]
    first = found.remedies[0]
    assert (first.fix, first.typed) == ("collect_garbage", "gc_after_trial=True")
    assert first.code == call
    assert "`gc.disable()` in line 18" in first.why


@pytest.mark.parametrize(
    ("off", "kept", "run"),
    [
        ("", NAMED, "pass"),
        ("gc.disable()", NAMED, "gc.collect()"),
        ("gc.disable()", LISTED, "pass"),
    ],
    ids=["on", "called", "kept anyway"],
)
def test_nothing_is_said_where_it_would_not_help(off, kept, run, tmp_path):
    found = names(lambda: in_program(off, kept, run), tmp_path / "run.json")
    assert found
    assert "collector-off" not in found
