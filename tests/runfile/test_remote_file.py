"""Recordings at URLs: read as files here are, in few requests, and with errors a person can act on."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path

import pytest

import memprof
from memprof.errors import FileFormatError, MemprofError, MissingError
from memprof.runfile.head_and_tail import read_ends
from memprof.runfile.remote_file import RemoteFile, location
from memprof.testing import TraceBuilder, save_snapshot, snapshot, write_rank, write_run
from tests.cli.test_report import run_main

fsspec = pytest.importorskip("fsspec", reason="needs fsspec, which torch brings")

MIB = 1 << 20


@pytest.fixture
def memory():
    """The filesystem behind ``memory://``, empty."""
    made = fsspec.filesystem("memory")
    made.store.clear()
    made.pseudo_dirs[:] = [""]
    yield made
    made.store.clear()


def put(memory, path: Path, name: str = "") -> str:
    url = f"memory://job/{name or path.name}"
    memory.pipe_file(url, path.read_bytes())
    return url


@pytest.fixture
def requests(memory, monkeypatch):
    """The ranges that are asked for."""
    made: list[tuple[int, int]] = []
    fetch = type(memory).cat_file

    def counted(self, path, start=None, end=None, **more):
        made.append((start, end))
        return fetch(self, path, start=start, end=end, **more)

    monkeypatch.setattr(type(memory), "cat_file", counted)
    return made


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_run_at_a_url_is_the_run(tmp_path, memory, suffix):
    path = write_run(tmp_path / f"run.json{suffix}", TraceBuilder().alloc(MIB, "a").build())
    here, there = memprof.load(path), memprof.load(put(memory, path))
    assert there.source == f"memory://job/run.json{suffix}"
    assert there.header == here.header
    assert there.footer == here.footer
    assert [d.windows[0].events.size.tolist() for d in there.devices] == [
        d.windows[0].events.size.tolist() for d in here.devices
    ]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_snapshot_at_a_url_is_the_snapshot(tmp_path, memory, suffix):
    path = save_snapshot(tmp_path / f"s.pickle{suffix}", snapshot(TraceBuilder().alloc(MIB, "a").build()))  # fmt: skip
    there = memprof.load(put(memory, path))
    assert there.is_snapshot
    assert MIB in there.devices[0].windows[0].events.size.tolist()


def test_the_ends_of_a_file_take_two_requests_however_long_it_is(tmp_path, memory, requests):
    trace = TraceBuilder()
    for number in range(60_000):
        trace.alloc(512, number)
    path = write_rank(tmp_path, 3, 8, trace.build(), peak=70 * MIB)
    size = path.stat().st_size
    assert size > 4 << 16
    ends = read_ends(location(put(memory, path)))
    assert (ends.header.rank, ends.summary.devices[0].peak_allocated_bytes) == (3, 70 * MIB)
    assert requests == [(0, 1 << 16), (size - (1 << 16), size)]


def test_a_file_that_is_read_on_comes_in_ever_larger_pieces(memory, requests):
    content = bytes(range(256)) * (1 << 13)
    memory.pipe_file("memory://large", content)
    with location("memory://large").open() as file:
        assert b"".join(iter(lambda: file.read(1000), b"")) == content
        assert [end - start for start, end in requests] == [1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 16]  # fmt: skip
        assert file.seek(-10, io.SEEK_END) == len(content) - 10
        assert file.read() == content[-10:]


def test_a_name_is_a_url_or_a_path_and_can_be_pickled():
    there = location("s3://bucket/out/run.rank3.json")
    assert (str(there), there.name) == ("s3://bucket/out/run.rank3.json", "run.rank3.json")
    assert pickle.loads(pickle.dumps(there)) == there
    assert len({there, RemoteFile(str(there))}) == 1
    assert location("out/run.json") == Path("out/run.json")
    assert location(Path("x")) == Path("x")


def test_what_is_not_there_is_an_error_with_its_name(memory):
    with pytest.raises(FileFormatError, match=r"cannot read memory://job/no\.json: No such file"):
        memprof.load("memory://job/no.json")


def test_a_folder_is_refused_by_a_command_for_one_file(tmp_path, memory, capsys):
    put(memory, write_rank(tmp_path, 0, 1))
    assert run_main("leaks", "memory://job") == 1
    assert "memprof report memory://job" in capsys.readouterr().err


def test_a_missing_fsspec_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingError) as caught:
        memprof.load("s3://bucket/run.json")
    assert caught.value.hint == "pip install 'cuda-memprof[remote]' s3fs"


@pytest.mark.parametrize(
    ("url", "module", "package"),
    [
        ("s3://bucket/run.json", "s3fs", "s3fs"),
        ("gs://bucket/run.json", "gcsfs", "gcsfs"),
        ("hf://datasets/me/runs/run.json", "huggingface_hub", "huggingface_hub"),
    ],
)
def test_a_missing_package_of_a_protocol_is_named(monkeypatch, capsys, url, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    protocol = url.partition(":")[0]
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    assert run_main("report", url) == 1
    error = capsys.readouterr().err
    assert f"{url} is remote, which needs a package that is not here" in error
    assert f"pip install 'cuda-memprof[remote]' {package}" in error


def test_an_unknown_protocol_is_said():
    with pytest.raises(MissingError, match="nosuch://x is no URL that fsspec knows"):
        memprof.load("nosuch://x")


def test_whatever_a_filesystem_raises_is_an_error_of_ours(tmp_path, memory, monkeypatch):
    url = put(memory, write_rank(tmp_path, 0, 1))

    def refuse(*args, **options):
        raise KeyError("no credentials")

    monkeypatch.setattr(type(memory), "cat_file", refuse)
    with pytest.raises(MemprofError, match="KeyError: 'no credentials'"):
        memprof.load(url)


@pytest.mark.parametrize("command", ["leaks", "replay", "what-if", "oom", "export"])
def test_every_command_that_reads_takes_a_url(tmp_path, memory, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    here = write_run(tmp_path / "run.json", TraceBuilder().alloc(MIB, "a").build())
    url = put(memory, here)
    statuses = [run_main(command, name) for name in (here.name, url)]
    assert statuses[0] == statuses[1]
    captured = capsys.readouterr()
    assert "No such file" not in captured.err
    assert "Traceback" not in captured.err
    if command == "export":
        assert (tmp_path / "run.pickle").exists()


def test_the_page_of_a_remote_recording_goes_here(tmp_path, memory, monkeypatch, capsys):
    url = put(memory, write_run(tmp_path / "run.json", TraceBuilder().alloc(MIB, "a").build()))
    monkeypatch.chdir(tmp_path)
    assert run_main("report", url) == 0
    assert "page: run.html" in capsys.readouterr().out
    assert (tmp_path / "run.html").exists()


def test_a_limit_may_be_a_remote_run(tmp_path, memory, capsys):
    here = write_run(tmp_path / "run.json", TraceBuilder().alloc(MIB, "a").build())
    url = put(memory, here)
    assert run_main("report", here, "--no-page", "--fail-above", f"{url}+2%") == 0
