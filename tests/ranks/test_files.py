"""The files of a job's ranks in, one report out."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from memprof.errors import MemprofError
from memprof.ranks.files import RankRecordings, files_of, gather_ranks, job_report
from memprof.ranks.text import roll_call
from memprof.testing import (
    TraceBuilder,
    save_snapshot,
    snapshot,
    step_columns,
    write_rank,
    write_run,
)
from memprof.trace import Frame, Phase, Trace
from memprof_dashboards.ranks import render_job

GIB = 1 << 30
MIB = 1 << 20
HOUR = 3600 * 1_000_000
START = 1_700_000_000_000_000
STEPS = 20


def gather(*names: Path, named: bool = True) -> RankRecordings | None:
    return gather_ranks(files_of(names), by_name=named)


def report(*names: Path, judge_all: bool = False):
    job = gather(*names, named=False)
    assert job is not None
    return job_report(job, judge_all=judge_all)


def leaking(size: int = 4 * MIB, line: int = 31) -> Trace:
    """Twenty steps that leave a tensor each."""
    stack = (Frame("step", "/home/u/job/train.py", line), Frame("main", "/home/u/job/train.py", 7))
    builder = TraceBuilder(step_us=100).existing(8 * MIB, "w")
    for step in range(STEPS):
        builder.label(step=step, phase=Phase.FORWARD)
        builder.alloc(2 * MIB, "passing", stack=stack[1:]).alloc(size, f"kept{step}", stack=stack)
        builder.free("passing")
    return builder.build()


def counters(size: int):
    return step_columns(
        allocated=[8 * MIB + size * (n + 1) for n in range(STEPS)], window=[0] * STEPS
    )


def write_leak(folder: Path, rank: int, world: int, size: int = 4 * MIB, **more: object) -> Path:
    return write_rank(folder, rank, world, leaking(size), steps=counters(size), **more)  # type: ignore[arg-type]


# -- finding files ---------------------------------------------------------------------------------


def test_a_folder_stands_for_the_files_of_its_ranks(tmp_path):
    ranks = [write_rank(tmp_path, n, 2) for n in (0, 1)]
    packed = write_rank(tmp_path, 2, 3, name="run.rank2.json.gz")
    (tmp_path / "config.json").write_text("{}")
    assert sorted(files_of([tmp_path])) == sorted([*ranks, packed])


def test_a_folder_without_ranks_stands_for_all_recordings(tmp_path):
    run = write_run(tmp_path / "a.json", TraceBuilder().alloc(1, "x").build())
    dump = save_snapshot(tmp_path / "b.pickle", snapshot(TraceBuilder().build()))
    (tmp_path / "notes.txt").write_text("")
    assert files_of([tmp_path]) == (run, dump)


def test_a_quoted_pattern_is_matched_and_every_file_is_told_once(tmp_path):
    ranks = [write_rank(tmp_path, n, 2) for n in (0, 1)]
    assert files_of([tmp_path / "run.rank*.json", ranks[0]]) == tuple(ranks)


def test_a_pattern_reaches_into_the_folders_of_nodes(tmp_path):
    nodes = [tmp_path / f"node{n}" for n in (0, 1)]
    for node in nodes:
        node.mkdir()
    ranks = [write_rank(node, n, 2) for n, node in enumerate(nodes)]
    assert files_of([tmp_path / "**" / "run.rank*.json"]) == tuple(ranks)


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path):
    path = write_rank(tmp_path, 0, 1, name="run[0].json")
    assert files_of([path]) == (path,)


def test_nothing_found_is_an_error_with_a_hint(tmp_path):
    with pytest.raises(MemprofError, match="holds no recording"):
        files_of([tmp_path])
    with pytest.raises(MemprofError, match="nothing matches"):
        files_of([tmp_path / "run.rank*.json"])


# -- whom to tell together -------------------------------------------------------------------------


def test_ranks_of_one_job_are_told_together(tmp_path):
    job = gather(*[write_rank(tmp_path, n, 2) for n in (1, 0)])
    assert job is not None
    assert [one.header.rank for one in job.recordings] == [0, 1]


def test_a_few_named_files_of_different_jobs_are_told_one_by_one(tmp_path):
    files = [write_rank(tmp_path, n, 2, name=f"{a}.rank{n}.json", argv=[a]) for a in ("a.py", "b.py") for n in (0, 1)]  # fmt: skip
    assert gather(*files) is None
    assert gather(files[0], files[2]) is None
    assert gather(files[0]) is None


def test_in_a_folder_the_latest_job_counts_and_the_rest_is_named(tmp_path):
    for rank in range(4):
        write_rank(tmp_path, rank, 4, started_us=START)
    for rank in range(2):  # the same names: they replace the first two
        write_rank(tmp_path, rank, 2, started_us=START + HOUR)
    job = gather(tmp_path, named=False)
    assert job is not None
    assert [(one.header.rank, one.header.world_size) for one in job.recordings] == [(0, 2), (1, 2)]
    assert [(Path(one.file).name, one.why) for one in job.left_out] == [
        ("run.rank2.json", "of another job, or of an earlier launch"),
        ("run.rank3.json", "of another job, or of an earlier launch"),
    ]


def test_an_earlier_recording_of_the_same_rank_is_left_out_and_named(tmp_path):
    files = [write_rank(tmp_path, n, 2) for n in (0, 1)]
    (tmp_path / "old").mkdir()
    old = write_rank(tmp_path / "old", 1, 2, started_us=START - 1000)
    job = gather(*files, old)
    assert job is not None
    assert [one.path for one in job.recordings] == files
    assert [(one.file, one.why) for one in job.left_out] == [(str(old), "an earlier recording of rank 1")]  # fmt: skip


def test_a_child_process_of_a_rank_does_not_take_its_place(tmp_path):
    files = [write_rank(tmp_path, n, 2) for n in (0, 1)]
    child = write_rank(tmp_path, 1, 2, name="run.rank1.pid4711.json", started_us=START + 1000)
    job = gather(tmp_path, named=False)
    assert job is not None
    assert [one.path for one in job.recordings] == files
    assert [(one.file, one.why) for one in job.left_out] == [
        (str(child), "a child process of rank 1, to be told by itself")
    ]


def test_what_cannot_be_read_is_named_and_the_rest_is_told(tmp_path):
    files = [write_rank(tmp_path, n, 5) for n in (0, 1)]
    (tmp_path / "run.rank2.json").write_text("")
    (tmp_path / "run.rank3.json").write_bytes(b"\x00\xff rubbish")
    (tmp_path / "run.rank4.json").write_text('[\n{"kind":"header","schema":[9,0],"created_us":1}')
    job = gather(tmp_path, named=False)
    assert job is not None
    assert [one.path for one in job.recordings] == files
    whys = {Path(one.file).name: one.why for one in job.left_out}
    assert "is empty" in whys["run.rank2.json"]
    assert "no pickle" in whys["run.rank3.json"]
    assert "schema version 9.0" in whys["run.rank4.json"]


def test_more_than_eight_recordings_of_no_job_are_told_together_by_their_files(tmp_path):
    for n in range(9):
        write_rank(tmp_path, -1, 1, name=f"sweep{n}.json", argv=[f"{n}.py"])
    said = report(tmp_path)
    assert (said.command, said.world_size, said.missing) == ((), 0, ())
    assert [Path(rank.name).name for rank in said.ranks] == [f"sweep{n}.json" for n in range(9)]


def test_snapshots_are_summed_up_from_their_whole(tmp_path):
    for n in range(9):
        trace = TraceBuilder().alloc((n + 1) * MIB, "a").build()
        save_snapshot(tmp_path / f"{n}.pickle", snapshot(trace))
    said = report(tmp_path)
    assert [rank.peak_allocated_bytes for rank in said.ranks] == [(n + 1) * MIB for n in range(9)]
    assert {rank.ended for rank in said.ranks} == {"ok"}


# -- the report ------------------------------------------------------------------------------------


def test_a_leak_on_some_ranks_is_one_finding_with_its_bytes_in_sum(tmp_path):
    for rank in range(6):
        if rank % 2:
            write_leak(tmp_path, rank, 6, bytes_per_step=4.0 * MIB, rising=1.0)
        else:
            write_rank(tmp_path, rank, 6, TraceBuilder().existing(MIB, "w").alloc(512, "a").build())
    said = report(tmp_path)
    leak = said.findings[0]
    assert (leak.kind, leak.ranks) == ("leak", ("rank 1", "rank 3", "rank 5"))
    assert (leak.site.line, leak.bytes_per_step) == (31, 3 * 4 * MIB)
    assert leak.bytes == 3 * (STEPS - 2) * 4 * MIB  # those of the last two steps may still go
    assert said.verdict.level == "leak"
    assert said.verdict.line.endswith("; on 3 of 6 judged")
    assert "allocated bytes rise on 3 of 6 ranks, by 4 MiB per step" in said.verdict.why
    assert said.next == f"memprof leaks {tmp_path / 'run.rank1.json'}"
    assert [one.rank for one in said.judged] == [f"rank {n}" for n in range(6)]


def test_of_many_ranks_a_few_are_judged_and_with_all_each(tmp_path):
    for rank in range(12):
        write_leak(tmp_path, rank, 12, peak=(8 + (rank == 7)) * GIB)
    few, all_of_them = report(tmp_path), report(tmp_path, judge_all=True)
    assert [(one.rank, one.chosen) for one in few.judged] == [
        ("rank 7", "highest peak"),
        ("rank 5", "median peak"),
    ]
    assert few.findings[0].ranks == ("rank 5", "rank 7")
    assert len(all_of_them.judged) == len(all_of_them.findings[0].ranks) == 12


def test_killed_ranks_are_there_with_what_they_last_summed_up_or_else_recorded(tmp_path):
    write_rank(tmp_path, 0, 4, ooms=1, status="OutOfMemoryError: x", peak=79 * GIB)
    write_rank(tmp_path, 1, 4, ending="interim", peak=60 * GIB)
    write_leak(tmp_path, 2, 4, ending="none")
    said = report(tmp_path)
    assert [rank.ended for rank in said.ranks] == ["failed", "cut off", "cut off"]
    peaks = [rank.peak_allocated_bytes for rank in said.ranks]
    # Of the last, the highest is in the last step: all that was kept, and what passes.
    assert peaks == [79 * GIB, 60 * GIB, 8 * MIB + STEPS * 4 * MIB + 2 * MIB]
    assert said.missing == ((3, 3),)
    assert said.verdict.level == "oom"
    assert said.next == f"memprof oom {tmp_path / 'run.rank0.json'}"


def test_a_file_that_is_written_in_another_style_is_read_whole(tmp_path):
    for rank in (0, 1):
        path = write_rank(tmp_path, rank, 2, TraceBuilder().alloc(MIB, "a").build(), status="ValueError: x")  # fmt: skip
        path.write_text(path.read_text().replace('"kind":"footer"', '"kind": "footer"'))
    said = report(tmp_path)
    assert [(rank.ended, rank.status) for rank in said.ranks] == [("failed", "ValueError: x")] * 2
    assert [rank.peak_allocated_bytes for rank in said.ranks] == [MIB] * 2


def test_a_thousand_ranks_take_seconds_and_read_no_trace(tmp_path):
    trace = leaking()
    for rank in range(1000):
        ending = "footer" if rank % 2 else "interim"
        write_rank(tmp_path, rank, 1000, trace, peak=(8 + (rank == 123)) * GIB, ending=ending)
    began = time.process_time()
    said = report(tmp_path)
    took_s = time.process_time() - began
    assert (len(said.ranks), said.missing) == (1000, ())
    assert [one.rows for one in said.deviations] == [(123,), (123,)]
    assert len(said.judged) == 2
    assert took_s < 10  # half a second on a quiet machine


def test_ranks_of_an_impossible_world_are_told(tmp_path):
    for rank in (0, 5):
        write_rank(tmp_path, rank, 1 << 30)
    said = report(tmp_path)
    assert said.missing == ((1, 4), (6, (1 << 30) - 1))
    assert said.missing_count == (1 << 30) - 2


@pytest.mark.parametrize("seed", range(60))
def test_damaged_files_never_end_in_a_traceback(tmp_path, seed):
    choose = random.Random(seed)
    trace = TraceBuilder().alloc(MIB, "a").build()
    for rank in range(3):
        ending = choose.choice(["footer", "interim", "none"])
        suffix = choose.choice(["", ".gz"])
        path = write_rank(tmp_path, rank, 3, trace, name=f"r.rank{rank}.json{suffix}", ending=ending, bytes_per_step=1.5)  # fmt: skip
        data = bytearray(path.read_bytes())
        for _ in range(choose.randrange(1, 12)):
            at = choose.randrange(len(data))
            data[at] = choose.choice([*b'0123456789-[]{},:"en', choose.randrange(256)])
        path.write_bytes(data[: choose.choice([len(data), choose.randrange(len(data))])])
    job = gather(tmp_path, named=False)
    if job is not None:
        said = job_report(job, judge_all=True)
        assert len(said.ranks) + len(said.left_out) >= 3
        assert list(roll_call(said))
        assert render_job(said)
