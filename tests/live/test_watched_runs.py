"""What is watched by which name: a file, a folder of ranks, a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from memprof.errors import MemprofError
from memprof.live.watched_runs import WatchedRuns, files_of_process
from memprof.records import SCHEMA_VERSION, Footer, Header
from memprof.runfile.writer import RunWriter
from memprof.testing.ranks import write_rank
from tests.tracked import PYTHONPATH


def test_a_folder_has_the_ranks_in_order_and_those_that_come_later(tmp_path):
    for rank in (10, 2):
        write_rank(tmp_path, rank, 16)
    (tmp_path / "config.json").write_text('{"lr": 1}')
    runs = WatchedRuns(tmp_path)
    assert runs.poll() == 4
    assert [run.rank for run in runs.runs] == [2, 10]
    write_rank(tmp_path, 0, 16)
    assert runs.poll() == 2
    assert [run.rank for run in runs.runs] == [0, 2, 10]
    assert runs.poll() == 0


def test_a_job_that_starts_again_into_the_same_file_is_shown_anew(tmp_path):
    path = tmp_path / "run.json"
    RunWriter(path, Header(schema=SCHEMA_VERSION, created_us=1, argv=["a.py"])).close(Footer(1))
    runs = WatchedRuns(path)
    runs.poll()
    assert runs.runs[0].footer is not None
    RunWriter(path, Header(schema=SCHEMA_VERSION, created_us=2, argv=["b.py"])).close()
    runs.poll()
    assert runs.runs[0].footer is None
    assert runs.runs[0].header.argv == ["b.py"]


def test_a_process_is_followed_by_the_files_that_it_has_open(tmp_path):
    code = (
        "import sys, memprof.records as r, memprof.runfile.writer as w;"
        "x = w.RunWriter(sys.argv[1], r.Header(schema=r.SCHEMA_VERSION, created_us=1));"
        "print('open', flush=True); sys.stdin.read(); x.close()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "its-run.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": PYTHONPATH, "MEMPROF": "off"},
    ) as job:
        assert job.stdout.readline() == b"open\n"
        assert files_of_process(job.pid) == (tmp_path / "its-run.json",)
        runs = WatchedRuns(str(job.pid))
        assert runs.poll() == 1
        job.stdin.close()


def test_a_process_that_is_not_recorded_says_so():
    # One of its own: processes that other tests have begun may be children of this one.
    waiting = [sys.executable, "-c", "input()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE) as process:
        with pytest.raises(MemprofError, match="writes no run file") as told:
            files_of_process(process.pid)
        process.communicate(b"\n")
    assert "memprof run" in told.value.hint


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(MemprofError, match="is not there"):
        WatchedRuns(tmp_path / "no.json")
    with pytest.raises(MemprofError, match="there is no process"):
        WatchedRuns("4194303")
    with pytest.raises(MemprofError, match="holds no run file yet"):
        WatchedRuns(tmp_path)
