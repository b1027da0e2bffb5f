"""unvisited-graph: a model's graph is kept beside a backward pass that does not go through it."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.rules.waste.unvisited_graph import RULE
from memprof.views.examination import examine
from tests.rules.recorded import findings_of, names

WIDTH, ROWS = 128, 512


class Distillation:
    """A student learns from a teacher, whose parameters ask for gradients as the student's do."""

    def __init__(self):
        layers = [layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.student = nn.Sequential(*layers)
        self.teacher = copy.deepcopy(self.student)
        self.optimizer = torch.optim.SGD(self.student.parameters(), 0.1)

    def wanted(self, batch):
        return self.teacher(batch)

    def step(self, number):
        batch = torch.rand(ROWS, WIDTH)
        wanted = self.wanted(batch)
        loss = (self.student(batch) - wanted.detach()).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Perceptual(Distillation):
    """The student's output goes through the frozen teacher: its activations are read."""

    def __init__(self):
        super().__init__()
        self.teacher.requires_grad_(False)

    def step(self, number):
        batch = torch.rand(ROWS, WIDTH)
        loss = self.teacher(self.student(batch)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class Adversarial(Distillation):
    """The generator's graph is there while its judge learns, and read afterwards."""

    def step(self, number):
        if number % 2 == 0:
            self.made = self.student(torch.rand(ROWS, WIDTH))
            self.teacher(self.made.detach()).square().mean().backward()
        else:
            self.teacher(self.made).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def fires():
    return Distillation().step


def looks_alike():
    return Perceptual().step


def test_the_model_is_to_run_without_gradients(tmp_path):
    found = next(
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "unvisited-graph"
    )
    (first,) = found.remedies
    assert (first.fix, first.code) == ("no_grad", "return self.teacher(batch)")
    # Each of six tanh saves its result. That of a linear layer is not saved.
    assert found.bytes == 6 * ROWS * WIDTH * 4
    assert first.saves_bytes == 5 * ROWS * WIDTH * 4  # the last one is what the student is to learn
    assert not found.minor


def read_later():
    return Adversarial().step


@pytest.mark.parametrize("program", [looks_alike, read_later])
def test_activations_that_are_read_are_none(program, tmp_path):
    assert "unvisited-graph" not in names(program, tmp_path / "run.json")


class Within(nn.Module):
    """A teacher in the same module as its student; its graph goes when its result does."""

    def __init__(self, features=False):
        super().__init__()
        one = Distillation()
        self.student, self.teacher, self.features = one.student, one.teacher, features

    def forward(self, batch):
        if self.features:
            with torch.no_grad():
                wanted = [batch]
                for layer in self.teacher:
                    wanted.append(layer(wanted[-1]))
            return (self.student(batch) - wanted[-1]).square().mean()
        wanted = self.teacher(batch)
        return (self.student(batch) - wanted.detach()).square().mean()


def within(features=False):
    def program():
        model = Within(features)
        optimizer = torch.optim.SGD(model.student.parameters(), 0.1)

        def step(number):
            loss = model(torch.rand(ROWS, WIDTH))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return step

    return program


def test_a_part_of_a_model_whose_graph_goes_before_the_backward_pass(tmp_path):
    found = next(
        one for one in findings_of(within(), tmp_path / "run.json") if one.rule == "unvisited-graph"
    )
    (first,) = found.remedies
    assert (first.fix, first.code) == ("no_grad", "wanted = self.teacher(batch)")
    assert found.bytes == 6 * ROWS * WIDTH * 4


def test_features_without_a_graph_are_no_graph(tmp_path):
    assert "unvisited-graph" not in names(within(features=True), tmp_path / "run.json")


class Chain(Distillation):
    """A chain of passes through the student, of which the last ones are learned from."""

    def step(self, number, detach=True):
        state = torch.rand(ROWS, WIDTH)
        for link in range(6):
            if link == 5 and detach:
                state = state.detach()
            change = self.student(state)
            state = state + 0.1 * change
        self.optimizer.zero_grad()
        state.square().mean().backward()
        self.optimizer.step()


class Kept(Chain):
    """The graph of one pass is there when the backward pass of another one begins, and read next."""

    def step(self, number, detach=True):
        first, second = (self.student(torch.rand(ROWS, WIDTH)) for _ in range(2))
        second.square().mean().backward()
        first.square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def cut():
    return Chain().step


def test_passes_whose_graph_is_cut_off_before_the_backward_pass(tmp_path):
    """They are told as any forward pass that no backward pass follows."""
    found, *_ = findings_of(cut, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("evaluation-graph", False)
    assert found.remedies[0].fix == "no_grad"
    assert found.remedies[0].code == "change = self.student(state)"
    # Of each of five passes what six Tanh return, but the last of them: that is the result.
    assert found.bytes == 5 * 5 * ROWS * WIDTH * 4


class Guided(Distillation):
    """A sampler that is learned from, and guided by gradients of another model alone."""

    def guided(self, state):
        state = state.detach().requires_grad_(True)
        change = self.student(state)
        worth = self.teacher(state).square().sum()
        (slope,) = torch.autograd.grad(worth, state)
        return (change - slope).detach()

    def step(self, number):
        state = torch.rand(ROWS, WIDTH)
        for _ in range(3):
            state = self.guided(state)
        self.optimizer.zero_grad()
        self.student(state).square().mean().backward()
        self.optimizer.step()


def test_a_model_that_is_run_beside_gradients_of_another_needs_no_graph(tmp_path):
    found, *_ = findings_of(lambda: Guided().step, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("unvisited-graph", False)
    remedy, *_ = found.remedies
    assert (remedy.fix, remedy.code) == ("no_grad", "change = self.student(state)")
    assert remedy.saves_bytes > 0


@pytest.mark.parametrize(
    "program", [lambda: Kept().step, lambda: partial(Chain().step, detach=False)]
)
def test_passes_that_are_read_are_not_cut_off(program, tmp_path):
    assert "unvisited-graph" not in names(program, tmp_path / "run.json")


class Attention(nn.Module):
    """Saves much itself, and its four layers next to nothing."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, 4, bias=False) for _ in range(4))

    def forward(self, x):
        scores = sum(part(x) for part in self.parts)
        for _ in range(4):
            x = (x * scores[:, :1].sigmoid()).tanh()
        return x


class Edges(Distillation):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(*(Attention() for _ in range(4)))


def edges():
    return Edges().step


def test_a_graph_that_few_modules_save_is_one(tmp_path):
    found = next(
        one for one in findings_of(edges, tmp_path / "run.json") if one.rule == "unvisited-graph"
    )
    assert found.remedies[0].code == "return self.teacher(batch)"


class Views(Distillation):
    """Two views of a batch; the student learns to make of one what it makes of the other."""

    def __init__(self, *, both=False):
        super().__init__()
        self.both = both

    def step(self, number):
        batch = torch.rand(ROWS, WIDTH)
        # The old ones live until these are there.
        self.one = self.student(batch)
        self.other = self.student(batch + 1)
        loss = (self.one - self.other.detach()).square().mean()
        if self.both:
            loss = loss + (self.other - self.one.detach()).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def views():
    return Views().step


def test_a_view_that_is_only_learned_from(tmp_path):
    found, *_ = findings_of(views, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("unvisited-graph", False)
    remedy, *_ = found.remedies
    assert (remedy.fix, remedy.code) == ("no_grad", "self.other = self.student(batch + 1)")
    # Of the step before six results, and as many of this step: what is there without a graph is
    # the last of each.
    assert found.bytes == 2 * 6 * ROWS * WIDTH * 4


class Recurrent:
    """A network is brought into a state by the first positions, and learns from the others."""

    def __init__(self):
        self.network = nn.GRU(16, WIDTH, batch_first=True)
        self.optimizer = torch.optim.SGD(self.network.parameters(), 0.1)

    def step(self, number):
        batch = torch.rand(64, 24, 16)
        _, self.state = self.network(batch[:, :16])
        made, _ = self.network(batch[:, 16:], self.state.detach())
        self.optimizer.zero_grad()
        made.square().mean().backward()
        self.optimizer.step()


def burn_in():
    return Recurrent().step


def test_a_network_of_one_module_that_is_brought_into_a_state(tmp_path):
    found, *_ = findings_of(burn_in, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("unvisited-graph", False)
    remedy, *_ = found.remedies
    assert (remedy.fix, remedy.code) == ("no_grad", "_, self.state = self.network(batch[:, :16])")


@pytest.mark.parametrize("program", [lambda: Views(both=True).step])
def test_views_that_both_learn_need_their_graphs(program, tmp_path):
    assert "unvisited-graph" not in names(program, tmp_path / "run.json")


class CutAtOnce(Distillation):
    """The teacher's graph goes with the statement that builds it, before the student's."""

    def step(self, number):
        batch = torch.rand(ROWS, WIDTH)
        wanted = self.wanted(batch).detach()
        loss = (self.student(batch[:32]) - wanted[:32]).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class FrozenFeatures(CutAtOnce):
    """Without a graph only what the teacher returns is there until it is over."""

    def __init__(self):
        super().__init__()
        self.teacher.requires_grad_(False)
        self.teacher = Features(self.teacher)


class Features(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, batch):
        levels = []
        for number, layer in enumerate(self.layers):
            batch = layer(batch)
            if number % 4 == 3:
                levels.append(batch)
        return torch.stack(levels).mean(0) + levels[-1]


def test_a_graph_that_goes_when_the_result_is_cut_off(tmp_path):
    found, *_ = findings_of(lambda: CutAtOnce().step, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, found.minor) == ("unvisited-graph", False)
    assert (first.fix, first.code) == ("no_grad", "return self.teacher(batch)")
    assert found.bytes == 6 * ROWS * WIDTH * 4
    assert first.saves_bytes >= 4 * ROWS * WIDTH * 4


def test_what_a_frozen_model_returns_is_no_graph(tmp_path):
    assert "unvisited-graph" not in names(lambda: FrozenFeatures().step, tmp_path / "run.json")


class PeakElsewhere(Views):
    """The peak is a table that each step makes when all passes are gone."""

    def step(self, number):
        super().step(number)
        del self.one, self.other
        torch.zeros(64 * ROWS * WIDTH).sum().item()


def test_passes_that_are_gone_at_the_peak_are_none_of_it(tmp_path):
    findings_of(lambda: PeakElsewhere().step, tmp_path / "run.json")
    windows = [w for one in examine(load(tmp_path / "run.json")).devices for w in one.windows]
    assert [match for window in windows for match in RULE.matches(window)] == []


class Values(nn.Module):
    """The policy's and the target's class: both run the same lines."""

    def __init__(self):
        super().__init__()
        layers = (m for _ in range(6) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))
        self.body, self.out = nn.Sequential(*layers), nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.out(self.body(x))


def of_one_class():
    policy, target = Values(), Values()
    optimizer = torch.optim.SGD(policy.parameters(), 0.1)

    def step(number):
        states, actions = torch.rand(ROWS, WIDTH), torch.randint(4, (ROWS, 1))
        values = policy(states).gather(1, actions)
        wanted = target(states).max(1).values.detach()
        loss = (values.squeeze(1) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def test_the_line_is_that_of_the_model_that_learns_nothing(tmp_path):
    found, *_ = findings_of(of_one_class, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("unvisited-graph", "no_grad")
    assert first.code == "wanted = target(states).max(1).values.detach()"


class Generator(nn.Module):
    """Its one method calls functions: what graphs save is made in one module."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, z):
        for layer in self.layers:
            z = torch.relu(layer(z))
        return z


def judged():
    """The judge learns from what is made and cut off; now and then the generator learns, too."""
    generator, judge = Generator(), nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD([*generator.parameters(), *judge.parameters()], 0.1)

    def judge_learns():
        made = generator(torch.rand(ROWS, WIDTH))
        judge(made.detach()).mean().backward()

    def step(number):
        judge_learns()
        if number % 4 == 3:
            judge(generator(torch.rand(ROWS // 4, WIDTH))).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_a_pass_of_one_module_that_calls_functions_is_cut_off_as_others_are(tmp_path):
    found, *_ = findings_of(judged, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("unvisited-graph", "no_grad")
    assert first.code == "made = generator(torch.rand(ROWS, WIDTH))"


class Functional(nn.Module):
    """Its activations are functions: what a graph keeps is of one module."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.third, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        x = torch.relu(self.third(x))
        return self.last(x)


class Returning(Functional):
    """It returns all that it computes on the way, which the loss reads."""

    def forward(self, x):
        first = torch.relu(self.first(x))
        second = torch.relu(self.second(first))
        return first, second, torch.relu(self.third(second))


def functional():
    policy, target = Functional(), Functional()

    def step(number):
        states = torch.rand(ROWS, WIDTH)
        wanted = target(states).max(1)[0]
        loss = (policy(states).max(1)[0] - wanted.detach()).square().mean()
        loss.backward()
        policy.zero_grad()

    return step


def hidden_layers():
    policy, target = Returning(), Returning().requires_grad_(False)

    def step(number):
        states = torch.rand(ROWS, WIDTH)
        wanted = target(states)
        pairs = zip(policy(states), wanted, strict=True)
        sum((own - one).square().mean() for own, one in pairs).backward()
        policy.zero_grad()

    return step


def test_a_model_that_calls_functions_keeps_what_its_variables_had(tmp_path):
    found, *_ = findings_of(functional, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, found.bytes) == ("unvisited-graph", 3 * ROWS * WIDTH * 4)
    assert (first.fix, first.code) == ("no_grad", "wanted = target(states).max(1)[0]")


def test_what_a_model_returns_of_one_module_is_no_graph(tmp_path):
    assert "unvisited-graph" not in names(hidden_layers, tmp_path / "run.json")


class Residual(nn.Module):
    """A block that teacher and student have alike."""

    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


def in_one_line():
    teacher, student = nn.Sequential(*(Residual() for _ in range(4))), nn.Sequential(Residual())

    def step(number):
        x = torch.rand(ROWS, WIDTH)
        loss = nn.functional.mse_loss(student(x), teacher(x).detach())
        loss.backward()
        student.zero_grad()

    return step


def test_a_line_that_runs_what_learns_as_well_is_not_to_be_without_gradients(tmp_path):
    found, *_ = findings_of(in_one_line, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("unvisited-graph", "no_grad")
    assert first.code == "loss = nn.functional.mse_loss(student(x), teacher(x).detach())"
    assert first.typed == "with torch.no_grad(): wanted = teacher(x)"
    assert "this one runs what learns as well" in first.why
