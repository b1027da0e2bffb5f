"""Ranks read and judged by an executor's workers: every one, and as this process would."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import pickle
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from memprof.errors import MemprofError
from memprof.ranks import engines, workers
from memprof.ranks.files import judged_each, report_of
from memprof.ranks.rank_tasks import judge_rank, read_rank
from memprof.ranks.report import LeftOut
from memprof.ranks.workers import Workers
from memprof.testing import write_rank
from tests.cli.test_report import run_main
from tests.ranks.test_files import write_leak

RANKS = 20
# Those of Dask and Ray, and of what they start.
THEIRS = ("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning")  # fmt: skip


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    """Twenty ranks: each third leaks, one was killed, one file is empty, one is rubbish."""
    folder = tmp_path_factory.mktemp("job")
    for rank in range(RANKS):
        if rank % 3:
            ending = "none" if rank == 4 else "footer"
            write_rank(folder, rank, RANKS, ending=ending)
        else:
            write_leak(folder, rank, RANKS, bytes_per_step=4.0e6, rising=1.0)
    (folder / "run.rank7.json").write_text("")
    (folder / "run.rank8.json").write_bytes(b"\x00\xff rubbish")
    return folder


@pytest.fixture(scope="module")
def expected(job):
    """What this process says when it judges each."""
    report = report_of([job])
    assert (len(report.judged), len(report.findings[0].ranks)) == (18, 7)
    return report


class InTurn(Executor):
    """Does everything at once, by way of pickles, as a worker elsewhere would."""

    def submit(self, fn, /, *args, **kwargs) -> Future:
        future: Future = Future()
        try:
            call, its_args = pickle.loads(pickle.dumps((fn, args)))
            future.set_result(pickle.loads(pickle.dumps(call(*its_args, **kwargs))))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future


def test_tasks_and_what_they_return_can_be_pickled(job, expected):
    assert report_of([job], executor=InTurn()) == expected


def test_threads_say_the_same(job, expected):
    with ThreadPoolExecutor(3) as pool:
        assert report_of([job], executor=pool) == expected


@pytest.mark.slow
def test_processes_say_the_same(job, expected):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert report_of([job], executor=pool) == expected


def test_with_an_engine_every_rank_is_judged_and_the_screen_is_that_of_all(
    job, monkeypatch, capsys
):
    monkeypatch.setattr(engines, "ProcessPoolExecutor", lambda count, **more: InTurnPool())
    monkeypatch.chdir(job)
    screens = []
    for options in (["--all"], ["--on", "processes://2"]):
        assert run_main("report", ".", "--no-page", *options) == 0
        screens.append(capsys.readouterr().out)
    assert screens[0] == screens[1]
    assert "on the 18 ranks, all judged" in " ".join(screens[0].split())


class InTurnPool(InTurn):
    def __enter__(self):
        return self


def test_a_worker_in_another_folder_opens_the_file_and_names_it_as_it_was_named(job, tmp_path, monkeypatch):  # fmt: skip
    monkeypatch.chdir(job)
    read = partial(read_rank, folder=Path.cwd())
    judge = partial(judge_rank, folder=Path.cwd(), roots=None)
    names = [Path("run.rank0.json"), Path("run.rank7.json"), Path("run.rank8.json")]
    here = [(read(name), judge(name)) for name in names]
    monkeypatch.chdir(tmp_path)
    assert [(read(name), judge(name)) for name in names] == here
    assert here[1][0] == LeftOut("run.rank7.json", "run.rank7.json is empty")


def die_for(rank: int, file: Path):
    if file.name == f"run.rank{rank}.json":
        os._exit(9)
    return file.name


@pytest.mark.slow
def test_ranks_whose_worker_died_are_left_out_and_said(job):
    files = [job / f"run.rank{rank}.json" for rank in range(3)]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        outcomes = dict(Workers(pool).results(partial(die_for, 1), files, "judging"))
    assert list(outcomes) == files
    assert outcomes[files[1]].file == str(files[1])
    assert outcomes[files[1]].why.startswith("the worker that had it was lost: BrokenProcessPool")


class Lossy(InTurn):
    """Loses one task as a cluster does whose worker was killed for memory."""

    def submit(self, fn, /, *args, **kwargs) -> Future:
        task, files = args or (None, ())
        names = [Path(str(file)).name for file in files]
        if getattr(task, "func", None) is judge_rank and "run.rank6.json" in names:
            lost: Future = Future()
            lost.set_exception(OSError("killed for memory\nat length"))
            return lost
        return super().submit(fn, *args, **kwargs)


def test_a_rank_that_a_cluster_loses_is_left_out_and_the_others_are_judged(job, expected):
    said = report_of([job], executor=Lossy())
    assert {one.rank for one in expected.judged} - {one.rank for one in said.judged} == {"rank 6"}
    assert said.left_out[-1] == LeftOut(
        str(job / "run.rank6.json"), "the worker that had it was lost: OSError: killed for memory"
    )
    assert said.ranks == expected.ranks


class Counting(InTurn):
    """Loses every task that has the file of rank 3 among its own."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def submit(self, fn, /, *args, **kwargs) -> Future:
        self.sizes.append(len(args[1]))
        if Path("run.rank3.json") in args[1]:
            future: Future = Future()
            future.set_exception(RuntimeError("killed worker"))
            return future
        return super().submit(fn, *args, **kwargs)


def name_of(file: Path) -> str:
    return file.name


def test_of_files_that_a_lost_worker_had_together_the_others_are_done_again_one_by_one():
    files = [Path(f"run.rank{rank}.json") for rank in range(10)]
    executor = Counting()
    results = dict(Workers(executor).results(name_of, files, "judging", each=4))
    assert list(results) == files
    assert executor.sizes == [4, 4, 2, 1, 1, 1, 1]
    lost = results.pop(files[3])
    assert lost == LeftOut("run.rank3.json", "the worker that had it was lost: RuntimeError: killed worker")  # fmt: skip
    assert list(results.values()) == [file.name for file in files if file != files[3]]


def test_many_ranks_are_judged_in_a_bounded_number_of_tasks():
    given = [judged_each(count) for count in (0, 1, 256, 257, 4096, 100_000)]
    assert given == [1, 1, 1, 2, 16, 32]


def fail(file: Path):
    raise KeyError("a defect")


def test_a_defect_on_a_worker_is_raised_here_with_its_traceback(job):
    with pytest.raises(RuntimeError, match=r"(?s)judging .*rank0.* failed on a worker.*KeyError: 'a defect'"):  # fmt: skip
        list(Workers(InTurn()).results(fail, [job / "run.rank0.json"], "judging"))


def test_a_bounded_number_of_tasks_is_handed_out_ahead(job, monkeypatch):
    monkeypatch.setattr(workers, "MOST_AHEAD", 3)
    handed_out: list[int] = []

    class Counting(InTurn):
        def submit(self, fn, /, *args, **kwargs) -> Future:
            handed_out.append(len(args[1]))
            return super().submit(fn, *args, **kwargs)

    files = [job / f"run.rank{rank}.json" for rank in range(10)]
    outcomes = Workers(Counting()).results(partial(die_for, -1), files, "reading", each=2)
    assert next(iter(outcomes)) == (files[0], "run.rank0.json")
    assert handed_out == [2] * 3
    assert [name for _, name in outcomes] == [file.name for file in files[1:]]
    assert handed_out == [2] * 5


# -- engines ---------------------------------------------------------------------------------------


def test_workers_of_another_version_are_refused(job, monkeypatch):
    monkeypatch.setattr(workers, "memprof_version", other_version)
    with pytest.raises(
        MemprofError, match=r"the workers have memprof 0\.0\.1, and this is"
    ) as caught:
        report_of([job], executor=InTurn())
    assert "pip install cuda-memprof==" in caught.value.hint


def other_version() -> str:
    return "0.0.1"


class Bare(Executor):
    def submit(self, fn, /, *args, **kwargs) -> Future:
        future: Future = Future()
        future.set_exception(ModuleNotFoundError("No module named 'memprof'"))
        return future


def test_workers_without_memprof_are_refused(job):
    with pytest.raises(MemprofError, match="cannot run memprof: ModuleNotFoundError: No module"):
        report_of([job], executor=Bare())


@pytest.mark.parametrize(
    ("address", "message", "hint"),
    [
        ("slurm://x", "no engine is called 'slurm://x'", "dask://HOST:PORT"),
        ("dask", "no engine is called 'dask'", "dask://HOST:PORT"),
        ("processes://many", "no number of processes: 'many'", "--on processes://4"),
        ("dask://local:2", "--on dask:// needs a package that is not here", "pip install 'cuda-memprof[dask]'"),
        ("ray://auto", "--on ray:// needs a package that is not here", "pip install 'cuda-memprof[ray]'"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_an_error_with_a_hint(job, monkeypatch, capsys, address, message, hint):  # fmt: skip
    for name in ("distributed", "ray"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run_main("report", job, "--on", address) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert hint in error


def test_an_engine_for_a_single_recording_is_an_error(job, capsys):
    assert run_main("report", job / "run.rank0.json", "--on", "processes://2") == 2
    assert "--on is for the ranks of a job" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings(*THEIRS)
def test_a_dask_cluster_of_two_workers_says_the_same(job, expected, capsys):
    distributed = pytest.importorskip("distributed", reason="needs dask and distributed")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster:
        address = cluster.scheduler_address.removeprefix("tcp://")
        assert run_main("report", job, "--on", f"dask://{address}", "--json") == 0
        there = json.loads(capsys.readouterr().out)
        with engines.engine(f"dask://{address}") as executor:
            assert report_of([job], executor=executor) == expected
    assert [one["rank"] for one in there["judged"]] == [one.rank for one in expected.judged]


@pytest.mark.slow
@pytest.mark.filterwarnings(*THEIRS)
def test_a_dask_scheduler_that_is_not_there_is_an_error(job, monkeypatch, capsys):
    distributed = pytest.importorskip("distributed", reason="needs dask and distributed")
    import dask

    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        assert run_main("report", job, "--on", "dask://127.0.0.1:9") == 1
    assert distributed
    assert "nothing answers at dask://127.0.0.1:9" in capsys.readouterr().err


def skip_without_ray() -> None:
    if importlib.util.find_spec("ray") is None:  # its import leaves a hook, which `engine` undoes
        pytest.skip("needs ray")


@pytest.mark.slow
@pytest.mark.filterwarnings(*THEIRS)
def test_ray_says_the_same(job, expected):
    skip_without_ray()
    with engines.engine("ray://local:2") as executor:
        assert report_of([job], executor=executor) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings(*THEIRS)
def test_no_ray_cluster_is_an_error(job, capsys):
    skip_without_ray()
    assert run_main("report", job, "--on", "ray://auto") == 1
    assert "nothing answers at ray://auto" in capsys.readouterr().err
