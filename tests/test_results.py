"""Results as JSON lines: what pytest tells, and what is left of a part that was stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import results
from tests.gpu import everything

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import pytest

def test_that_passes():
    pass

def test_that_tells(record_property):
    record_property("recall", 96.0)

def test_that_fails():
    assert 1 + 1 == 3

@pytest.mark.skip(reason="no device")
def test_that_is_skipped():
    pass

@pytest.fixture
def left_behind():
    yield
    assert not "left behind"

def test_that_fails_afterwards(left_behind):
    pass
"""


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("processes", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_each_test_is_told_once_with_the_assertion_that_failed(tmp_path, processes):
    if processes:
        pytest.importorskip("xdist", reason="needs pytest-xdist")
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    told = tmp_path / "told.jsonl"
    command = [sys.executable, "-m", "pytest", "-p", "tests.results", "-p", "no:cacheprovider"]
    # This very test may run in a worker, which the other pytest is not.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    done = subprocess.run(
        [*command, *processes, "test_some.py"],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT), results.FILE: str(told)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    found = {str(one["result"]).rpartition("::")[2]: one for one in lines(told)}
    assert len(found) == len(lines(told)) == 6
    assert {name: one["outcome"] for name, one in found.items()} == {
        "test_that_passes": "passed",
        "test_that_tells": "passed",
        "test_that_fails": "failed",
        "test_that_is_skipped": "skipped",
        "test_that_fails_afterwards": "passed",
        "test_that_fails_afterwards (teardown)": "failed",
    }
    assert found["test_that_tells"]["detail"] == "recall=96.0"
    assert found["test_that_fails"]["detail"] == "assert (1 + 1) == 3 (test_some.py:11)"
    assert found["test_that_is_skipped"]["detail"] == "Skipped: no device"


def test_nothing_is_written_where_nobody_collects(tmp_path, monkeypatch):
    monkeypatch.delenv(results.FILE, raising=False)
    monkeypatch.chdir(tmp_path)
    results.write("claim", results.HOLDS)
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_hangs_is_stopped_and_what_it_had_found_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(everything, "PATIENCE_S", 1.0)
    hangs = (
        "import os, time\n"
        f"with open(os.environ[{results.FILE!r}], 'a') as file:\n"
        '    file.write(\'{"result": "claim", "outcome": "violated", "detail": "was 2"}\\n{"resu\')\n'
        "try:\n"
        "    time.sleep(600)\n"
        "except KeyboardInterrupt:\n"
        "    time.sleep(600)\n"  # asked to end, and does not
    )
    written = tmp_path / "truth.jsonl"

    class Stopped(subprocess.Popen):
        """The time is over when the program has written what it has to say."""

        def wait(self, timeout=None):
            if self.args[-1] == hangs:
                while not (written.exists() and written.read_text().endswith("resu")):
                    time.sleep(0.01)
                timeout = timeout and min(timeout, 1.0)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Stopped)
    part = everything.Part((("-c", "print('first')"), ("-c", hangs)), longest_s=600)
    how, seconds = everything.run("truth", part, tmp_path, 600.0)
    assert how.startswith("stopped after")
    assert (tmp_path / "truth.log").read_text().count("first") == 2  # the command, and its output
    summary = everything.Summary(tmp_path)
    assert not everything.tell("truth", how, seconds, tmp_path, summary)
    told, claim = lines(tmp_path / "summary.jsonl")
    assert told["counts"] == {"violated": 1}
    assert told["first_failure"] == "claim: was 2"
    assert claim == {"part": "truth", "result": "claim", "outcome": "violated", "detail": "was 2"}
    assert (tmp_path / "summary.txt").read_text() == capsys.readouterr().out


def test_a_part_is_good_when_every_command_and_every_result_is(tmp_path):
    good = (
        f"import os; open(os.environ[{results.FILE!r}], 'a').write("
        '\'{"result": "a", "outcome": "passed", "detail": ""}\\n\')'
    )
    summary = everything.Summary(tmp_path)
    for codes, is_good in (((0, 0), True), ((0, 3), False)):
        commands = tuple(("-c", f"{good}; raise SystemExit({code})") for code in codes)
        how, seconds = everything.run("ooms", everything.Part(commands, 60), tmp_path, 60.0)
        assert everything.tell("ooms", how, seconds, tmp_path, summary) is is_good
    assert how == "ended with 3"


def test_what_is_missing_is_brought_for_this_python_in_two_lines():
    bring, install = everything.how_to_bring(["msgspec"]).splitlines()[1:]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (
        f"pip download -d wheels --no-deps --only-binary=:all: --python-version {version}" in bring
    )
    assert bring.endswith(" msgspec")
    assert f"{sys.executable} -m pip install --no-index" in install
    assert "--target site" in install
    assert "PYTHONPATH=$PWD/site" in install


def test_the_most_valuable_parts_come_first_and_name_files_that_are_there():
    every = everything.parts()
    assert everything.usual(every)[:5] == ["facts", "truth", "ooms", "placement", "cost"]
    named = {
        word
        for part in every.values()
        for command in part.commands
        for word in command
        if word.endswith(".py")
    }
    assert {name for name in named if not (ROOT / name).is_file()} == set()
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert files <= named  # no file of tests is forgotten
