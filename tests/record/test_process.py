"""The rank that a launcher gave, and the file names that follow from it."""

from __future__ import annotations

import pytest

from memprof.record.process import Rank, path_of_process, path_of_rank


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
