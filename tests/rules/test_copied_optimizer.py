"""copied-optimizer: a deep copy of what trains a model has its optimizer's state as well."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names

WIDTH = 192
STATES = 2 * 2 * WIDTH * WIDTH * 4
"""Two averages for each of two layers."""


class Agent:
    def __init__(self):
        self.net = nn.Sequential(
            nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False)
        )
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def fit(self, batch, wanted):
        self.optimizer.zero_grad()
        (self.net(batch) - wanted).square().mean().backward()
        self.optimizer.step()


def learned(agent, target_of):
    for _ in range(2):
        agent.fit(torch.rand(8, WIDTH), torch.rand(8, WIDTH))
    target = target_of(agent)

    def step(number):
        batch = torch.rand(8, WIDTH)
        with torch.no_grad():
            wanted = target.net(batch)
        agent.fit(batch, wanted)

    return step


def with_all_it_has(agent):
    return copy.deepcopy(agent)


def fires():
    return learned(Agent(), with_all_it_has)


def looks_alike():
    """The copy trains on, as a member of a population does."""
    agent = Agent()
    for _ in range(2):
        agent.fit(torch.rand(8, WIDTH), torch.rand(8, WIDTH))
    other = copy.deepcopy(agent)

    def step(number):
        for one in (agent, other):
            one.fit(torch.rand(8, WIDTH), torch.rand(8, WIDTH))

    return step


def put_back():
    """The copy is what training goes on with if it fails, and is not called until then."""
    agent = Agent()
    for _ in range(2):
        agent.fit(torch.rand(8, WIDTH), torch.rand(8, WIDTH))
    best = copy.deepcopy(agent)

    def step(number):
        agent.fit(torch.rand(8, WIDTH), torch.rand(8, WIDTH))
        return best if number > 99 else agent

    return step


class Model:
    def __init__(self, net):
        self.net = copy.deepcopy(net)


def model_alone():
    return learned(Agent(), lambda agent: Model(agent.net))


class SelfCopying(Agent):
    def snapshot(self):
        return copy.deepcopy(self)


def now_and_then():
    """The copy is made anew every few steps, and called until the next."""
    agent = SelfCopying()
    for _ in range(2):
        agent.fit(torch.rand(8, WIDTH), torch.rand(8, WIDTH))
    holder, emptied = {"old": agent.snapshot()}, []

    def step(number):
        batch = torch.rand(8, WIDTH)
        agent.optimizer.zero_grad()
        if number % 6 == 5:
            emptied.append(holder["old"].net)  # a later model is then no object at its address
            for one in holder["old"].net.parameters():
                one.data = torch.empty(0)
            holder["old"] = None
            holder["old"] = agent.snapshot()
        with torch.no_grad():
            wanted = holder["old"].net(batch)
        agent.fit(batch, wanted)

    return step


def pool_of_opponents():
    """Each copy stays, and now one and now another is called."""
    agent = Agent()
    for _ in range(2):
        agent.fit(torch.rand(8, WIDTH), torch.rand(8, WIDTH))
    pool = []

    def step(number):
        batch = torch.rand(8, WIDTH)
        agent.optimizer.zero_grad()
        if number < 9 and number % 3 == 0:
            pool.append(copy.deepcopy(agent))
        with torch.no_grad():
            wanted = pool[number % len(pool)].net(batch)
        agent.fit(batch, wanted)

    return step


@pytest.mark.parametrize(
    ("program", "copies", "code"),
    [
        (now_and_then, 1, "return copy.deepcopy(self)"),
        (pool_of_opponents, 3, "pool.append(copy.deepcopy(agent))"),
    ],
)
def test_copies_that_are_made_again_have_states_each(program, copies, code, tmp_path):
    found = findings_of(program, tmp_path / "run.json", 24)
    (one,) = [one for one in found if one.rule == "copied-optimizer"]
    (first,) = one.remedies
    assert (one.minor, one.bytes) == (False, copies * STATES)
    assert (first.fix, first.code) == ("copy_model", code)


def test_the_states_are_told_and_the_statement_that_copies(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    (first,) = found.remedies
    assert (found.rule, found.minor, found.bytes) == ("copied-optimizer", False, STATES)
    assert (first.fix, first.saves_bytes) == ("copy_model", STATES)
    assert first.code == "return copy.deepcopy(agent)"


@pytest.mark.parametrize("program", [looks_alike, put_back, model_alone])
def test_copies_that_are_trained_put_back_or_of_a_model_alone_are_none(program, tmp_path):
    assert "copied-optimizer" not in names(program, tmp_path / "run.json")
