"""repeated-call: a step runs a model twice on the same input, and keeps what both runs make."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memprof.rules.values_read import Values
from memprof.rules.waste import repeated_call
from tests.rules.recorded import findings_of, names, peak_of

BATCH, WIDTH = 4096, 128


class Agent(nn.Module):
    def __init__(self, *more):
        super().__init__()
        self.encoder = nn.Sequential(
            *(nn.Linear(8, WIDTH), nn.Tanh(), *more, nn.Linear(WIDTH, WIDTH), nn.Tanh()),
            nn.Linear(WIDTH, 8),
        )
        self.actor, self.critic = nn.Linear(8, 4), nn.Linear(8, 1)

    def value(self, x):
        return self.critic(self.encoder(x))

    def policy(self, x):
        return self.actor(self.encoder(x))

    def both(self, x):
        features = self.encoder(x)
        return self.critic(features), self.actor(features)

    def of_heads(self, x):
        return [head(self.encoder(x)) for head in (self.actor, self.critic, self.actor)]


def training(agent, results):
    def step(number):
        agent.zero_grad()
        sum(one.square().mean() for one in results(torch.randn(BATCH, 8))).backward()

    return step


def fires():
    agent = Agent()

    def results(x):
        value = agent.value(x)
        policy = agent.policy(x)
        return value, policy

    return training(agent, results)


def looks_alike():
    """Each run drops other values."""
    agent = Agent(nn.Dropout(0.1))
    return training(agent, lambda x: (agent.value(x), agent.policy(x)))


def run_once():
    agent = Agent()
    return training(agent, agent.both)


def test_the_second_run_is_named_and_saved(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert found.rule == "repeated-call"
    assert "a second run of `Sequential` on the same input" in found.title
    assert (only.fix, only.code) == ("run_once", "policy = agent.policy(x)")
    # the results of both tangents, which autograd keeps; the linear layers' are gone by then
    assert found.bytes == 2 * BATCH * WIDTH * 4
    findings_of(run_once, tmp_path / "once.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "once.json")
    assert only.saves_bytes == pytest.approx(saved, rel=0.06)


def test_all_runs_but_one_are_saved_where_one_line_makes_them(tmp_path):
    def program():
        agent = Agent()
        return training(agent, agent.of_heads)

    found = findings_of(program, tmp_path / "run.json")[0]
    assert "2 more runs of `Sequential` on the same input" in found.title
    assert found.bytes == 2 * 2 * BATCH * WIDTH * 4


def test_runs_on_other_inputs_are_no_repetition(tmp_path):
    def program():
        agent = Agent()
        return training(agent, lambda x: (agent.value(x), agent.policy(x + 1)))

    assert "repeated-call" not in names(program, tmp_path / "run.json")


class Automaton(nn.Module):
    """It adds nothing to its state before it has learned to: then each turn is like the first."""

    def __init__(self):
        super().__init__()
        self.perceive = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.update = nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.update.weight)
        nn.init.zeros_(self.update.bias)

    def forward(self, x):
        return x + self.update(self.perceive(x))


def test_turns_that_are_alike_in_the_first_step_alone_are_no_repetition(tmp_path):
    def program():
        net = Automaton()
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)

        def step(number):
            optimizer.zero_grad()
            x = torch.randn(BATCH, WIDTH)
            (net(net(x)) - 1).square().mean().backward()
            optimizer.step()

        return step

    assert "repeated-call" not in names(program, tmp_path / "run.json")


def with_an_accuracy():
    """The first run is for the loss, and the second one for a number."""
    agent = Agent()

    def step(number):
        agent.zero_grad()
        x = torch.randn(BATCH, 8)
        loss = agent.policy(x).square().mean()
        (agent.policy(x).argmax(1) == 0).float().mean().item()
        loss.backward()

    return step


def test_a_run_for_a_number_beside_the_graph_is_one_as_well(tmp_path):
    found = findings_of(with_an_accuracy, tmp_path / "run.json")[0]
    assert found.rule == "repeated-call"
    assert found.remedies[0].code == "(agent.policy(x).argmax(1) == 0).float().mean().item()"


@pytest.mark.parametrize(
    ("known", "twice"),
    [
        # of the first run's tensor a look was taken before there was a second one
        ({1: (2, 1), 2: (1, 2)}, {1, 2}),
        ({1: (2, 2), 2: (2, 2)}, {1, 2}),
        # alike in one step alone
        ({1: (2, 1), 2: (2, 1)}, set()),
        # it is of the same values as another one of its size, at one look
        ({1: (2, 1), 2: (2, 2), 3: (2, 2)}, {2, 3}),
        ({1: (2, 1), 2: (1, 2), 3: (2, 1)}, {2}),
        ({1: (1, 1), 2: (1, 2)}, {2}),
    ],
)
def test_looks_between_two_runs_come_upon_the_first_alone(known, twice, monkeypatch):
    values = {
        (stack, 4096): Values(
            filled=1.0,
            is_settled=False,
            distinct=0,
            are_ones=False,
            are_graphless=False,
            repeats=1,
            same=same,
            same_in_steps=in_steps,
            nbytes=4096,
            shape=(1024,),
            dim=-1,
            used=0,
            mean_used=0.0,
        )
        for stack, (same, in_steps) in known.items()
    }
    monkeypatch.setattr(repeated_call, "values_by_stack_and_size", lambda window: values)
    assert {stack for stack, _ in repeated_call.same_in_steps(None)} == twice


class Net(nn.Module):
    """It calls functions of torch, and has a method that `forward` calls as well."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 4)

    def features(self, x):
        x = torch.tanh(self.first(x))
        return torch.tanh(self.second(x))

    def forward(self, x):
        return self.out(self.features(x))


def by_a_method_of_its_own():
    net = Net()

    def step(number):
        net.zero_grad()
        x = torch.randn(BATCH, 8)
        loss = net(x).square().mean()
        hint = net.features(x).square().mean()
        (loss + hint).backward()

    return step


def by_a_method_of_another():
    """A second net has other values."""
    net, other = Net(), Net()

    def step(number):
        net.zero_grad()
        x = torch.randn(BATCH, 8)
        loss = net(x).square().mean()
        hint = other.features(x).square().mean()
        (loss + hint).backward()

    return step


def test_a_method_that_is_called_outside_of_a_module_is_a_run_as_well(tmp_path):
    found = findings_of(by_a_method_of_its_own, tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.code) == ("repeated-call", "hint = net.features(x).square().mean()")
    assert found.title.endswith("are of a second run of `Net` on the same input")
    # Of one tangent, its other results and their squares are of the loss.
    assert found.bytes >= 2 * BATCH * WIDTH * 4
    assert "repeated-call" not in names(by_a_method_of_another, tmp_path / "other.json")
