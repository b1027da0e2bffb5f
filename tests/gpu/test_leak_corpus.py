"""The leaking programs beside the repository, on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

COMMAND = """#!{python}
import sys
from memprof_cli import main
sys.exit(main())
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python with all that this one imports, and with the command memprof beside it."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "these.pth").write_text("\n".join(path for path in sys.path if path) + "\n")
    made = folder / "bin" / "python"
    command = folder / "bin" / "memprof"
    command.write_text(COMMAND.format(python=made))
    command.chmod(0o755)
    return made


@pytest.mark.slow
def test_leaks_of_the_corpus_are_found_on_cuda(shared, python, tmp_path):
    script = shared / "leak_corpus" / "score.py"
    if not script.is_file():
        pytest.skip("needs ../shared/leak_corpus beside the repository")
    jobs = str(max(2, min(8, (os.cpu_count() or 2) // 2)))
    result = tmp_path / "score.json"
    done = subprocess.run(
        [python, script, "-j", jobs, "--json", result],
        env=os.environ | {"CASE_DEVICE": "cuda"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)  # the table, for whoever reads a failure
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(result.read_text())["summary"]
    assert summary["errors"] == 0
    assert summary["leaks"] > 0
    assert summary["recall"] >= 90
    assert summary["false_alarms"] == 0
