"""discarded-gradients: a backward pass runs into a model whose optimizer never reads the result."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names

ROWS, WIDTH = 512, 256


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, noise):
        return self.net(noise)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(WIDTH, 1)

    def forward(self, made):
        return self.net(made)


class Adversaries:
    """Two models that are trained in turn, the critic with more samples."""

    def __init__(self):
        self.generator, self.critic = Generator(), Critic()
        self.of_generator = torch.optim.Adam(self.generator.parameters(), 1e-3)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), 1e-3)

    def train_critic(self, *, detaches=False):
        made = self.generator(torch.randn(ROWS, WIDTH))
        loss = self.critic(made.detach() if detaches else made).mean()
        self.of_critic.zero_grad()
        loss.backward()
        self.of_critic.step()

    def train_generator(self, *, clears=True):
        loss = -self.critic(self.generator(torch.randn(ROWS // 4, WIDTH))).mean()
        if clears:
            self.of_generator.zero_grad()
        loss.backward()
        self.of_generator.step()


def fires():
    both = Adversaries()

    def step(number):
        both.train_critic()
        both.train_generator()

    return step


def looks_alike():
    """The generator learns from the critic's passes as well: its step reads what they add up."""
    both = Adversaries()

    def step(number):
        both.train_critic()
        both.train_generator(clears=False)
        both.of_generator.zero_grad()

    return step


def detaches():
    both = Adversaries()

    def step(number):
        both.train_critic(detaches=True)
        both.train_generator()

    return step


def learns_its_input():
    """What the critic's optimizer trains runs before the generator: its gradient comes through."""
    both = Adversaries()
    first = Critic()
    first.net = nn.Linear(WIDTH, WIDTH)
    of_first = torch.optim.Adam(first.parameters(), 1e-3)

    def step(number):
        made = both.generator(first(torch.randn(ROWS, WIDTH)))
        of_first.zero_grad()
        made.mean().backward()
        of_first.step()
        both.of_generator.zero_grad()
        both.generator(torch.randn(ROWS // 4, WIDTH)).mean().backward()
        both.of_generator.step()

    return step


def test_the_generator_is_to_be_called_without_a_graph_where_the_critic_learns(tmp_path):
    (found,) = [
        one
        for one in findings_of(fires, tmp_path / "run.json")
        if one.rule == "discarded-gradients"
    ]
    assert not found.minor
    assert found.match.modules == "`Generator.net`"
    first, second = found.remedies
    assert (first.fix, second.fix) == ("no_grad", "detach")
    assert first.code == second.code == "made = self.generator(torch.randn(ROWS, WIDTH))"
    assert first.saves_bytes == found.match.saving.bytes >= 3 * ROWS * WIDTH * 4


def trains_it_now_and_then():
    """The recording ends after passes whose gradients the generator's next step would clear."""
    both = Adversaries()

    def step(number):
        both.train_critic()
        if number % 5 == 4:
            both.train_generator()

    return step


def test_the_passes_at_the_end_are_as_those_before_them(tmp_path):
    (found,) = [
        one
        for one in findings_of(trains_it_now_and_then, tmp_path / "run.json")
        if one.rule == "discarded-gradients"
    ]
    assert found.remedies[0].saves_bytes >= 3 * ROWS * WIDTH * 4


class AfterReal(Adversaries):
    """The critic sees real samples first, and then those that are made: as most do it."""

    def train_critic(self, *, detaches=False):
        real = self.critic(torch.randn(ROWS, WIDTH)).mean()
        made = self.generator(torch.randn(ROWS, WIDTH))
        loss = self.critic(made.detach() if detaches else made).mean() - real
        self.of_critic.zero_grad()
        loss.backward()
        self.of_critic.step()


class InOneLine(Adversaries):
    def train_critic(self, *, detaches=False):
        loss = self.critic(self.generator(torch.randn(ROWS, WIDTH))).mean()
        self.of_critic.zero_grad()
        loss.backward()
        self.of_critic.step()


def trains(kind, *, detaches=False):
    def program():
        both = kind()

        def step(number):
            both.train_critic(detaches=detaches)
            both.train_generator()

        return step

    return program


@pytest.mark.parametrize(
    ("kind", "fixes", "code"),
    [
        (AfterReal, ["no_grad", "detach"], "made = self.generator(torch.randn(ROWS, WIDTH))"),
        (
            InOneLine,
            ["detach"],
            "loss = self.critic(self.generator(torch.randn(ROWS, WIDTH))).mean()",
        ),
    ],
)
def test_a_critic_may_run_before_and_in_the_line_that_calls_the_generator(
    kind, fixes, code, tmp_path
):
    (found,) = [
        one
        for one in findings_of(trains(kind), tmp_path / "run.json")
        if one.rule == "discarded-gradients"
    ]
    assert not found.minor
    assert [one.fix for one in found.remedies] == fixes
    assert {one.code for one in found.remedies} == {code}
    assert found.remedies[0].saves_bytes >= 3 * ROWS * WIDTH * 4


@pytest.mark.parametrize("program", [detaches, learns_its_input, trains(AfterReal, detaches=True)])
def test_a_graph_that_serves_what_is_trained_is_none_for_nothing(program, tmp_path):
    assert "discarded-gradients" not in names(program, tmp_path / "run.json")


class Penalized(Adversaries):
    """The critic's gradient at samples in between is bounded, by a backward pass with a graph."""

    def __init__(self):
        super().__init__()
        self.critic.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        self.of_critic = torch.optim.Adam(self.critic.parameters(), 1e-3)

    def train_critic(self, *, detaches=False):
        made = self.generator(torch.randn(ROWS, WIDTH))
        worth = self.critic(made.detach() if detaches else made).mean()
        between = (0.5 * made).detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        loss = worth + (gradient.norm(dim=1) - 1).square().mean()
        self.of_critic.zero_grad()
        loss.backward()
        self.of_critic.step()


def penalizes(detaches):
    def program():
        both = Penalized()

        def step(number):
            both.train_critic(detaches=detaches)
            both.train_generator()

        return step

    return program


@pytest.mark.parametrize("cut", [False, True])
def test_a_gradient_penalty_is_no_pass_of_its_own(cut, tmp_path):
    of_rule = [
        one
        for one in findings_of(penalizes(cut), tmp_path / "run.json")
        if one.rule == "discarded-gradients"
    ]
    assert len(of_rule) == (not cut)
    for one in of_rule:
        remedy = one.remedies[0]
        assert remedy.fix == "no_grad"
        assert remedy.code == "made = self.generator(torch.randn(ROWS, WIDTH))"
