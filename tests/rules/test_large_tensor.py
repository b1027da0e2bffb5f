"""Of the rules about the one large tensor, the one that says most is reported, and no other."""

from __future__ import annotations

import pytest
import torch

from tests.rules.recorded import names


def grown(half, vector):
    half = torch.cat((half, half)).float()
    return half.sum()


def grown_by_broadcasting(half, vector):
    vector = torch.cat((vector, vector)) - vector.T
    return vector.sum()


def broadcast(half, vector):
    return (vector.repeat(1, 1) - vector.flatten()).sum()


def repeated(half, vector):
    return half.repeat(2, 1).float().sum()


def upcast(half, vector):
    return half.float().sum()


def plain(half, vector):
    return (half * 2).sum()


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (grown, "grown-by-copy"),
        (grown_by_broadcasting, "grown-by-copy"),
        (broadcast, "broadcast"),
        (repeated, "repeated"),
        (upcast, "upcast"),
        (plain, "largest"),
    ],
)
def test_of_what_a_statement_does_one_thing_is_reported(make, rule, tmp_path):
    def program():
        def step(number):
            half, vector = torch.ones(512, 512, dtype=torch.bfloat16), torch.ones(1024, 1)
            make(half, vector).item()

        return step

    ours = {"grown-by-copy", "broadcast", "repeated", "upcast", "largest"}
    assert [one for one in names(program, tmp_path / "run.json") if one in ours] == [rule]
