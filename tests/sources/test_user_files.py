"""Digests are taken of the user's files as they ran, and of nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import types
import zipfile
from pathlib import Path

import psutil
import pytest

from memprof.records import SourceFiles
from memprof.runfile.source_digests import MOST_BYTES, MOST_FILES, digest_of
from memprof.sources import user_files as programfiles
from memprof.sources.user_files import ProgramFiles, code_since_s, is_user_file

NEVER = float("inf")
ROOT = Path(__file__).parents[2]


def files(since_s=NEVER):
    """Of a process that began at ``since_s``: files changed before then are what it ran."""
    return ProgramFiles(lambda: since_s)


def written(path, text="x = 1\n"):
    path.write_text(text)
    return str(path)


def test_a_file_is_digested_once_under_the_name_that_frames_give_it(tmp_path):
    name = written(tmp_path / "train.py")
    seen = files()
    assert seen.new([name, name]) == SourceFiles([name], [digest_of(b"x = 1\n")])
    assert seen.new([name]) is None


def test_a_name_from_the_current_folder_is_read_from_there(tmp_path, monkeypatch):
    written(tmp_path / "train.py")
    monkeypatch.chdir(tmp_path)
    assert files().new(["train.py"]) == SourceFiles(["train.py"], [digest_of(b"x = 1\n")])


def test_libraries_and_what_is_no_file_have_none(tmp_path):
    archive = tmp_path / "job.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("train.py", "x = 1\n")
    installed = tmp_path / "site-packages" / "lib.py"
    installed.parent.mkdir()
    (tmp_path / "folder.py").mkdir()
    names = [
        written(installed), json.__file__, programfiles.__file__, f"{archive}/train.py",
        "<string>", "<stdin>", "<frozen importlib._bootstrap>", "/tmp/ipykernel_7/123.py", "",
        "a\0b.py", "bad\udcff.py", str(tmp_path / "folder.py"), str(tmp_path / "gone.py"),
        written(tmp_path / "notes.txt"), "??", "Function.cpp",
    ]  # fmt: skip
    assert files().new(names) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_does_not_block_the_job(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    assert files().new([str(tmp_path / "pipe.py")]) is None


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_has_none(tmp_path):
    name = written(tmp_path / "train.py")
    Path(name).chmod(0)
    assert files().new([name]) is None


def test_a_file_that_was_written_since_the_process_began_has_none(tmp_path):
    name = written(tmp_path / "train.py")
    changed_s = Path(name).stat().st_mtime
    assert files(changed_s).new([name]) is None
    assert files(changed_s + 0.001).new([name]) is not None


def test_setting_the_time_of_writing_back_does_not_help(tmp_path):
    began_s = time.time() - 60
    name = written(tmp_path / "train.py")
    os.utime(name, (1, 1))
    assert files(began_s).new([name]) is None


def test_large_files_are_left_out_and_so_is_what_goes_beyond_the_bounds(tmp_path, monkeypatch):
    large = written(tmp_path / "large.py", "#" * (MOST_BYTES + 1))
    full = written(tmp_path / "full.py", "#" * MOST_BYTES)
    assert files().new([large, full]) == SourceFiles([full], [digest_of(b"#" * MOST_BYTES)])
    monkeypatch.setattr(programfiles, "MOST_READ", 10)
    small = [written(tmp_path / f"{n}.py") for n in range(3)]
    found = files().new(small)
    assert found is not None
    assert found.names == small[:1]


def test_no_more_than_so_many_files_are_read(tmp_path):
    names = [written(tmp_path / f"m{n}.py", "") for n in range(MOST_FILES + 1)]
    found = files().new(names)
    assert found is not None
    assert found.names == names[:-1]


def test_code_is_not_older_than_the_process():
    before_s = time.time()
    code = (
        "import time; from memprof.sources.user_files import *; print(code_since_s(), time.time())"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    since_s, later_s = map(float, told.stdout.split())
    assert before_s <= since_s < later_s


def test_a_process_that_cannot_be_looked_up_has_no_digests(tmp_path, monkeypatch):
    def gone(*_):
        raise psutil.NoSuchProcess(1)

    monkeypatch.setattr(psutil, "Process", gone)
    assert ProgramFiles().new([written(tmp_path / "train.py")]) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_the_code_of_the_first_one():
    code = (
        "import os, time; time.sleep(0.1); from memprof.sources.user_files import *;"
        "pid = os.fork(); pid and os.wait(); print(code_since_s(), flush=True)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    one, other = map(float, told.stdout.split())
    assert abs(one - other) < 0.02


def test_this_process_began_before_its_tests():
    assert code_since_s() < time.time()


def test_the_users_files_are_told_by_their_place():
    assert is_user_file("/home/me/train.py")
    assert not is_user_file(json.__file__)


def test_what_an_installer_put_into_any_folder_is_not_the_users(tmp_path):
    """``pip install --target``: such a package's names and lines are no explanation to a user."""
    folder = tmp_path / "layers"
    (folder / "metrics").mkdir(parents=True)
    written(folder / "metrics" / "state.py")
    written(folder / "train.py")
    (folder / "metrics_suite-1.0.dist-info").mkdir()
    written(folder / "metrics_suite-1.0.dist-info" / "RECORD", "metrics/state.py,sha256=x,6\n")
    assert not is_user_file(str(folder / "metrics" / "state.py"))
    assert is_user_file(str(folder / "train.py"))


def test_a_folder_of_data_is_not_listed_to_its_end(tmp_path, monkeypatch):
    """A script beside a million samples: the job would wait for the list."""

    class Endless:
        listed = 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def __iter__(self):
            return self

        def __next__(self):
            Endless.listed += 1
            return types.SimpleNamespace(name=f"{Endless.listed}.png")

    monkeypatch.setattr(os, "scandir", lambda _: Endless())
    assert is_user_file(str(tmp_path / "beside" / "train.py"))
    assert 0 < Endless.listed <= 10_000 * len(tmp_path.parents) * 2
