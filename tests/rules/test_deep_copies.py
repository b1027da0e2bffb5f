"""deep-copies: objects are copied with the data that they refer to."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of

ROWS, WIDTH, MEMBERS = 1024, 128, 6
NBYTES = ROWS * WIDTH * 4


@dataclass
class Settings:
    rate: float
    table: torch.Tensor


def by_deep_copy(settings):
    child = copy.deepcopy(settings)
    child.rate *= 2
    return child


def by_replacing(settings):
    return replace(settings, rate=2 * settings.rate)


def population(child_of):
    base = Settings(0.1, torch.randn(ROWS, WIDTH))
    members = [child_of(base) for _ in range(MEMBERS)]
    layer = nn.Linear(WIDTH, 4)

    def step(number):
        layer.zero_grad()
        member = members[number % MEMBERS]
        layer(member.table[:32]).square().mean().backward()
        return base.rate

    return step


def fires():
    return population(by_deep_copy)


def looks_alike():
    """One copy, which the program writes to."""
    table = torch.randn(ROWS, WIDTH)
    mine = copy.deepcopy(table)
    layer = nn.Linear(WIDTH, 4)

    def step(number):
        mine[number] += 1
        layer.zero_grad()
        (layer(mine[:32]) - layer(table[:32])).square().mean().backward()

    return step


def test_the_statement_that_copies_is_told(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix, only.typed) == (
        "deep-copies",
        "store_once",
        "copy.copy(settings)",
    )
    assert only.code == "child = copy.deepcopy(settings)"
    assert found.bytes == MEMBERS * NBYTES
    findings_of(lambda: population(by_replacing), tmp_path / "replaced.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "replaced.json")
    assert only.saves_bytes == pytest.approx(saved, rel=0.02)


def test_one_copy_is_left_alone(tmp_path):
    assert "deep-copies" not in names(looks_alike, tmp_path / "run.json")
