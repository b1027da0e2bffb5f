"""A job's ranks in a bucket: the report is that of the same files here, but for their names."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from memprof.errors import MemprofError
from memprof.ranks.files import files_of, report_of
from memprof.runfile.remote_file import location
from memprof.testing import write_rank
from tests.cli.test_report import run_main
from tests.ranks.test_files import write_leak

fsspec = pytest.importorskip("fsspec", reason="needs fsspec, which torch brings")


def job(folder: Path) -> Path:
    """Three ranks of twelve leak, one file is empty, one is gzipped, one rank is not there."""
    folder.mkdir()
    for rank in range(11):
        if rank % 4:
            suffix = ".gz" if rank == 5 else ""
            write_rank(folder, rank, 12, name=f"run.rank{rank}.json{suffix}")
        else:
            write_leak(folder, rank, 12, bytes_per_step=4.0e6, rising=1.0)
    (folder / "run.rank7.json").write_text("")
    return folder


@pytest.fixture
def memory():
    made = fsspec.filesystem("memory")
    made.store.clear()
    made.pseudo_dirs[:] = [""]
    yield made
    made.store.clear()


def renamed(report, prefix: str) -> str:
    """The report as JSON with ``prefix`` for where the files lie."""
    return msgspec.json.encode(report).decode().replace(prefix, "OUT")


def test_a_folder_in_memory_is_reported_as_the_folder_here(tmp_path, memory):
    here = job(tmp_path / "out")
    memory.put(str(here), "/out", recursive=True)
    there = report_of(["memory://out"])
    assert len(there.ranks) == 10
    assert renamed(there, "memory:///out") == renamed(report_of([here]), str(here))


def test_a_pattern_and_single_urls_stand_for_the_same_files(tmp_path, memory):
    for rank in range(3):
        write_rank(tmp_path, rank, 3)
    memory.put(str(tmp_path), "/out", recursive=True)
    names = [str(file) for file in files_of([location("memory://out/run.rank*.json")])]
    assert names == [f"memory:///out/run.rank{rank}.json" for rank in range(3)]
    assert [one.file for one in report_of(names).ranks] == names
    with pytest.raises(MemprofError, match="nothing matches memory://out/x"):
        files_of([location("memory://out/x*.json")])
    memory.mkdir("/empty")
    with pytest.raises(MemprofError, match="memory://empty holds no recording"):
        files_of([location("memory://empty")])


def test_the_page_of_remote_ranks_goes_here_and_next_names_the_url(tmp_path, memory, monkeypatch, capsys):  # fmt: skip
    memory.put(str(job(tmp_path / "out")), "/out", recursive=True)
    monkeypatch.chdir(tmp_path)
    assert run_main("report", "memory://out", "--all") == 0
    text = capsys.readouterr().out
    assert "page: run.ranks.html" in text
    assert "memprof leaks memory:///out/run.rank0.json" in text
    assert (tmp_path / "run.ranks.html").exists()


@pytest.fixture(scope="module")
def bucket():
    """A bucket of a server of S3 on this machine."""
    pytest.importorskip("s3fs", reason="needs s3fs, which no extra brings")
    moto = pytest.importorskip("moto.server", reason="needs moto[server], which no extra brings")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        filesystem = fsspec.filesystem("s3", skip_instance_cache=True)
        filesystem.mkdir("runs")
        yield filesystem
    server.stop()


# Those of boto and of the server's thread.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_ranks_in_a_bucket_of_s3_are_reported_as_here(tmp_path, bucket, capsys):
    here = job(tmp_path / "out")
    bucket.put(str(here), "runs/out", recursive=True)
    assert renamed(report_of(["s3://runs/out"]), "s3://runs/out") == renamed(report_of([here]), str(here))  # fmt: skip
    capsys.readouterr()
    assert run_main("leaks", "s3://runs/out/run.rank0.json", "--json") == 0
    there = capsys.readouterr().out
    assert run_main("leaks", here / "run.rank0.json", "--json") == 0
    assert capsys.readouterr().out == there
    assert run_main("report", "s3://runs/nothing") == 1
    assert "cannot read s3://runs/nothing: No such file" in capsys.readouterr().err
    assert run_main("report", "s3://no-such-bucket/out") == 1
    assert "hint:" in capsys.readouterr().err
