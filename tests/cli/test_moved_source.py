"""A program that is recorded in one folder and read about in another, or edited while it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from memprof.digests import digest_of
from memprof.loading import load
from memprof_cli.leaks import command
from memprof_cli.report import command as report
from tests.tracked import PYTHONPATH

pytest.importorskip("torch", reason="there is nothing to record without torch")

TRAIN = """\
import torch
from parts import keeper
EDIT
net = torch.nn.Linear(8, 8)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(24):
    loss = net(torch.randn(4, 8)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    keeper.keep(loss)
"""
KEEPER = """\
losses = []


def keep(loss):
    losses.append(loss)
"""
EDIT = "open(keeper.__file__, 'a').write('# edited')"


def recorded(folder, train):
    """The run file of a project that is gone from where it ran; a clone of it is made anew."""
    ran = folder / "cluster" / "project"
    (ran / "parts").mkdir(parents=True)
    (ran / "train.py").write_text(train)
    (ran / "parts" / "keeper.py").write_text(KEEPER)
    subprocess.run(
        [sys.executable, "-m", "memprof_cli", "run", "-o", folder / "run.json", "train.py"],
        cwd=ran, check=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "MEMPROF_ALLOWANCE": "600"},
    )  # fmt: skip
    ran.rename(folder / "gone")
    clone = folder / "clone"
    (clone / "parts").mkdir(parents=True)
    (clone / "train.py").write_text(train)
    (clone / "parts" / "keeper.py").write_text(KEEPER)
    return folder / "run.json"


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("moved"), TRAIN.replace("EDIT", ""))


@pytest.fixture
def told(tmp_path, monkeypatch):
    """What `memprof leaks` writes as its patch, in an empty folder, and what it says beside it."""
    monkeypatch.chdir(tmp_path)

    def tell(*arguments):
        done = CliRunner().invoke(command, [*map(str, arguments), "--patch", "fix.diff"])
        assert done.exit_code == 0, done.output
        return Path("fix.diff").read_text(), done.output

    return tell


def test_every_file_of_the_program_that_is_named_has_its_digest(moved):
    ran = moved.parent / "cluster" / "project"
    assert load(moved).digests == {
        str(ran / "train.py"): digest_of(TRAIN.replace("EDIT", "").encode()),
        str(ran / "parts" / "keeper.py"): digest_of(KEEPER.encode()),
    }


def test_where_the_source_is_not_there_is_no_patch_and_it_is_said_how_to_get_one(moved, told):
    patch, said = told(moved)
    assert patch == ""
    assert "not here as it ran, so not patched: project/train.py, parts/keeper.py" in said
    assert "--source FOLDER" in said


def test_a_clone_elsewhere_is_patched_however_young_it_is(moved, told):
    clone = moved.parent / "clone"
    patch, said = told(moved, "--source", clone)
    assert patch.startswith(f"--- {clone}/train.py\n+++ {clone}/train.py\n")
    assert "-    keeper.keep(loss)\n+    keeper.keep(loss.detach())\n" in patch
    assert "made at  clone/train.py:7 loss = net(" in " ".join(said.split("   "))
    assert "not here" not in said


def test_in_the_folder_of_the_clone_the_patch_applies(moved, monkeypatch):
    monkeypatch.chdir(moved.parent / "clone")
    done = CliRunner().invoke(command, [str(moved), "--patch", "../fix.diff"])
    assert done.exit_code == 0
    subprocess.run(["git", "apply", "--check", "../fix.diff"], check=True)


def test_the_report_names_the_lines_of_the_clone(moved):
    options = [str(moved), "--no-page", "--source", str(moved.parent / "clone")]
    assert "clone/train.py:7" in CliRunner().invoke(report, options).output


def test_a_file_that_was_edited_after_its_import_has_no_digest(tmp_path):
    run = load(recorded(tmp_path, TRAIN.replace("EDIT", EDIT)))
    assert [*run.digests] == [str(tmp_path / "cluster" / "project" / "train.py")]
