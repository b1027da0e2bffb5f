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


class Agent:
    """A model, and what it has seen."""

    def __init__(self):
        self.net = nn.Sequential(nn.Linear(WIDTH, 64), nn.Linear(64, 4))
        self.memory = torch.randn(ROWS, WIDTH)

    def learn(self):
        self.net.zero_grad()
        self.net(self.memory[torch.randint(ROWS, (32,))]).square().mean().backward()


def keeping_the_best(score_of):
    agent, best = Agent(), {"score": -1.0, "agent": None}

    def step(number):
        agent.learn()
        score = score_of(number)
        if score > best["score"]:
            best["score"] = score
            best["agent"] = copy.deepcopy(agent)

    return step


def improves_twice():
    return keeping_the_best(lambda number: float(number >= 2) + float(number >= 5))


def forks():
    """The copy is a member of a population of its own, with its own memory."""
    agent = Agent()
    other = copy.deepcopy(agent)

    def step(number):
        agent.learn()
        other.learn()
        other.memory[number % ROWS] += 1

    return step


def test_the_best_so_far_is_to_be_copied_without_its_memory(tmp_path):
    found = next(
        one
        for one in findings_of(improves_twice, tmp_path / "run.json")
        if one.rule == "deep-copies"
    )
    (first,) = found.remedies
    assert (found.minor, found.bytes % NBYTES, first.fix) == (False, 0, "store_once")
    assert first.code == 'best["agent"] = copy.deepcopy(agent)'
    assert "are no weights. Copy its model alone" in first.why
    assert first.saves_bytes >= NBYTES


def test_a_copy_that_goes_on_by_itself_is_left_alone(tmp_path):
    assert "deep-copies" not in names(forks, tmp_path / "run.json")
