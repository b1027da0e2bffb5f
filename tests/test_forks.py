"""A forked script is a process of its own, and ends as one that python was started for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the Python that forks imports torch")

from tests import forks


@pytest.mark.parametrize(
    "code",
    [
        "print('out')",
        "import sys; print('err', file=sys.stderr); sys.exit(3)",
        "raise SystemExit('gone')",
        "raise SystemExit",
        "import os; os._exit(9)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit; atexit.register(print, 'bye')",
        "import threading; threading.Timer(0.01, print, ('late',)).start()",
    ],
)
def test_it_prints_and_ends_as_under_python(code: str) -> None:
    plain = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    forked = forks.run(code)
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        plain.returncode,
        plain.stdout,
        plain.stderr,
    )


def test_an_exception_is_told_and_its_status_is_1() -> None:
    done = forks.run("raise ValueError('mine')")
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: mine\n")


def test_it_has_its_own_folder_words_environment_and_modules(tmp_path: Path) -> None:
    code = (
        "import json, os, sys; sys.modules['left'] = sys; os.environ['LEFT'] = '1'\n"
        "print(json.dumps([os.getcwd(), sys.argv, os.environ['WORD'], os.getpid(), __name__]))"
    )
    folder, words, word, pid, name = json.loads(
        forks.run(code, "a", 1, cwd=tmp_path, WORD="here").stdout
    )
    assert (folder, words, word, name) == (str(tmp_path), ["-c", "a", "1"], "here", "__main__")
    assert pid != os.getpid()
    left = "import os, sys; print('left' in sys.modules, 'LEFT' in os.environ)"
    assert forks.run(left).stdout == "False False\n"


@pytest.mark.parametrize("only_torch", [False, True])
def test_what_is_imported_is_asked_for(only_torch: bool) -> None:
    code = "import sys; print([n in sys.modules for n in ('torch', 'memprof', 'torch._dynamo')])"
    has_rest = not only_torch
    expected = f"{[True, has_rest, has_rest]}\n"
    assert forks.run(code, only_torch=only_torch).stdout == expected


def test_one_that_runs_is_read_and_killed() -> None:
    with forks.started("import time; print('go', flush=True); time.sleep(600)") as job:
        assert job.stdout.readline() == b"go\n"
        assert not job.has_ended()
        job.kill()
        assert job.wait() == -signal.SIGKILL
    assert forks.run("print('next')").stdout == "next\n"


def test_one_that_does_not_end_is_killed_and_its_errors_are_told() -> None:
    forever = "import sys, time; print('why', file=sys.stderr, flush=True); time.sleep(600)"
    with pytest.raises(AssertionError, match=r"not ended after 0.5 s:\nwhy"):
        forks.run(forever, limit_s=0.5)
    with (
        forks.started(forever) as job,
        pytest.raises(AssertionError, match=r"not ended after 0.1 s"),
    ):
        job.wait(0.1)
    with forks.started(forever, limit_s=0.5) as job:
        assert job.stdout.readline() == b""
        assert job.wait() == -signal.SIGKILL
    assert forks.run("print('next')").stdout == "next\n"
