"""The leaking programs beside the repository, on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.fixture
def corpus() -> Path:
    """The folder of the programs: beside the repository, or taken along in it."""
    for folder in (ROOT.parent / "shared", ROOT / "shared"):
        if (folder / "leak_corpus" / "score.py").is_file():
            return folder / "leak_corpus"
    pytest.skip("needs shared/leak_corpus in the repository or beside it")


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
def test_leaks_of_the_corpus_are_found_on_cuda(corpus, python, tmp_path, record_property, half):
    """In halves: where the time ends in the second, the first has its table."""
    cases = tmp_path / "cases"
    cases.mkdir()
    for path in sorted(corpus.glob("cases/*.py"))[half::2]:
        (cases / path.name).symlink_to(path)
    jobs = str(max(2, min(12, (os.cpu_count() or 2) * 3 // 4)))
    result = tmp_path / "score.json"
    done = subprocess.run(
        [python, corpus / "score.py", "-j", jobs, "--cases", cases, "--json", result],
        env=os.environ | {"CASE_DEVICE": "cuda"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)  # the table, for whoever reads a failure
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(result.read_text())["summary"]
    for name, figure in summary.items():
        record_property(name, round(figure, 1))
    assert summary["errors"] == 0
    assert summary["leaks"] > 0
    assert summary["recall"] >= 90
    assert summary["false_alarms"] == 0
