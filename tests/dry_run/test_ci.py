"""The workflow of docs/ci.md: its own commands, run in a shell on two branches."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memprof_cli.limits import EXIT_ABOVE

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "ci.md"
SIZE, GROWN = "batches(data, 8, 64, device)", "batches(data, 10, 64, device)"
WITHIN = "batches(data, 8, 63, device)"


def commands() -> Iterator[tuple[str, bool]]:
    """What the workflow's steps run, and whether in the folder of the base branch."""
    workflow = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert workflow is not None
    for step in re.split(r"\n      - ", workflow[1])[1:]:
        found = re.search(r"(?:^|\n)\s*run: (>\n)?(.*)", step, re.DOTALL)
        if found:
            lines = found[2].strip().splitlines()
            told = " ".join(line.strip() for line in lines) if found[1] else lines[0]
            yield told, "working-directory: ../base" in step


@pytest.fixture
def branches(tmp_path, environment):
    """A checkout of a pull request; a function that changes its program and runs the workflow."""
    binaries, repository = tmp_path / "bin", tmp_path / "project"
    binaries.mkdir()
    shim = binaries / "memprof"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m memprof_cli "$@"\n')
    shim.chmod(0o755)
    shutil.copytree(ROOT / "docs" / "examples", repository / "docs" / "examples")
    variables = {
        **environment,
        "PATH": f"{binaries}:{environment['PATH']}",
        "GITHUB_BASE_REF": "main",
        "RUNNER_TEMP": str(tmp_path),
        **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "A. Nobody"),
        **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "nobody@example.com"),
    }

    def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def run(before: str, after: str) -> subprocess.CompletedProcess[str]:
        begin = "git init -q && git add . && git commit -qm base"
        made = shell(f"{begin} && git update-ref refs/remotes/origin/main HEAD", repository)
        assert made.returncode == 0, made.stderr
        program = repository / "docs" / "examples" / "train_gpt.py"
        text = program.read_text()
        assert before in text
        program.write_text(text.replace(before, after))
        for command, in_base in commands():
            if command.startswith("pip "):
                continue
            done = shell(command, tmp_path / "base" if in_base else repository)
            if done.returncode:
                return done
            if "--fail-above" in command:  # what follows it is for a failure
                return done
        raise AssertionError("no step has a limit")

    return run


def test_the_page_has_the_steps_that_are_run_here():
    told = [command for command, _ in commands()]
    assert told[0].startswith("pip install torch")
    assert told[1].startswith("git worktree add ../base")
    assert [base for _, base in commands()] == [False, False, True, False, False]
    assert '--fail-above "$RUNNER_TEMP/base.json+2%"' in told[3]


def test_a_pull_request_that_takes_more_fails(branches):
    done = branches(SIZE, GROWN)
    assert done.returncode == EXIT_ABOVE, done.stderr[-3000:]
    assert re.search(
        r"base\.json\+2% \([\d.]+ MiB\): peak allocated [\d.]+ MiB on cuda:0", done.stderr
    )


def test_one_that_takes_no_more_passes(branches):
    done = branches(SIZE, WITHIN)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_run_for_another_card_is_no_limit(dry_run, tmp_path):
    (tmp_path / "train.py").write_text("import torch\ntorch.ones(3, device='cuda')\n")
    assert dry_run("--gpu", "t4", "-o", "base.json", "train.py", cwd=tmp_path).returncode == 0
    words = ["--gpu", "a10", "--fail-above", "base.json+2%", "-o", "head.json", "train.py"]
    done = dry_run(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "base.json+2% is a run for another card: Tesla T4" in done.stderr
    assert not (tmp_path / "head.json").exists()


def test_a_run_is_the_same_to_the_byte_each_time(dry_run, tmp_path):
    program = ROOT / "docs" / "examples" / "train_gpt.py"
    words = ["--gpu", "t4", "--steps", 3]
    dry_run(*words, "-o", "base.json", program, cwd=tmp_path)
    done = dry_run(*words, "-o", "head.json", "--fail-above", "base.json", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
