"""The rank that a launcher gave, and the file names that follow from it."""

from __future__ import annotations

import pytest

from memprof.record.process import Rank, header, path_of_process, path_of_rank
from memprof.records import DryRun


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Rank(-1, -1, 1)),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, Rank(3, 1, 8)),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, Rank(0, 0, 1)),
        ({"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "4"}, Rank(2, 0, 4)),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1"}, Rank(-1, -1, 1)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Rank(1, -1, 2)),
        ({"RANK": "first"}, Rank(-1, -1, 1)),
    ],
)
def test_the_rank_comes_from_the_launcher(environment, expected):
    assert Rank.of(environment) == expected


@pytest.mark.parametrize(
    ("path", "rank", "pid"),
    [
        ("out/run.json", "out/run.rank3.json", "out/run.pid7.json"),
        ("run.json.gz", "run.rank3.json.gz", "run.pid7.json.gz"),
        ("s3://bucket/run.json", "s3://bucket/run.rank3.json", "s3://bucket/run.pid7.json"),
        ("plain", "plain.rank3", "plain.pid7"),
        ("v1.2/plain", "v1.2/plain.rank3", "v1.2/plain.pid7"),
    ],
)
def test_rank_and_process_go_before_the_suffix(path, rank, pid):
    assert path_of_rank(path, 3) == rank
    assert path_of_rank(path, -1) == path
    assert path_of_process(path, 7) == pid


LIBRARY = "/home/me/.cache/memprof/dry-run/0123456789abcdef/libcuda.so.1"
CARD = "name=NVIDIA L4\ntotal_bytes=23570219008\ncontext_bytes=446693376\nmajor=8\nminor=9"


def test_a_header_says_of_a_dry_run_which_card_it_was_for(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", f"{LIBRARY} libjemalloc.so")
    monkeypatch.setenv("MEMPROF_DRY_RUN_CARD", f"{CARD}\nmultiprocessors=58")
    assert header([], {}, 0).dry_run == DryRun("NVIDIA L4", 23570219008, 446693376, "8.9", 58)


def test_a_process_without_the_library_is_no_dry_run_though_its_parent_was(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "libjemalloc.so")
    monkeypatch.setenv("MEMPROF_DRY_RUN_CARD", CARD)
    assert header([], {}, 0).dry_run is None
