"""kept-graph: a container takes tensors together with the graphs that made them."""

from __future__ import annotations

import copy
from collections import deque
from pathlib import Path

import pytest
import torch
from torch import nn

import memprof
from memprof.loading import load
from memprof.rules.ranked_findings import findings
from tests.rules.recorded import findings_of

SIZE = 64


def job():
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE))


def fires():
    model, losses = job(), []

    def step(number):
        model(torch.randn(SIZE, SIZE)).square().mean().backward()
        model.zero_grad()
        loss = model(torch.randn(SIZE, SIZE)).square().mean()
        losses.append(loss)

    return step


def looks_alike():
    """A list that grows as fast, of tensors that have no graph."""
    model, outputs = job(), []

    def step(number):
        out = model(torch.randn(SIZE, SIZE))
        out.square().mean().backward()
        model.zero_grad()
        outputs.append(out.detach())

    return step


def test_the_graph_is_cut_off_what_is_kept(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "kept-graph"
    assert (first.fix, first.code) == ("detach", "losses.append(loss)")
    assert "+        losses.append(loss.detach())" in first.patch
    # the batch, what tanh and square saved of theirs, and the loss itself, which stays
    assert found.bytes_per_step >= 3 * SIZE * SIZE * 4
    assert 0 < first.saves_bytes < found.bytes_per_step


def monitored():
    """The search in a job finds who holds the small result; its graph's tensors it does not."""
    encoder, head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 1)
    outputs = []

    def step(number):
        agreement = head(encoder(torch.ones(SIZE, SIZE)).relu()).mean()
        outputs.append({"step": number, "agreement": agreement})
        head(encoder(torch.ones(SIZE, SIZE))).mean().backward()

    return step


def test_a_small_result_with_a_large_graph_is_to_be_detached_first(tmp_path):
    found = findings_of(monitored, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("kept-graph", "detach")
    assert first.code == 'outputs.append({"step": number, "agreement": agreement})'


class Tables:
    """A table for each key, made once, which has nothing to do with the graph."""

    def __init__(self):
        self.tables = {}

    def make(self):
        return torch.ones(SIZE, SIZE)

    def __call__(self, key):
        if key not in self.tables:
            self.tables[key] = self.make()
        return self.tables[key]


class Keeping(nn.Module):
    """Adds another table in each forward pass."""

    def __init__(self):
        super().__init__()
        self.table, self.times = Tables(), 0

    def forward(self, x):
        self.times += 1
        return x + self.table(self.times)


def test_what_is_kept_by_itself_is_detached_by_no_patch(tmp_path):
    def program():
        model = nn.Sequential(job(), Keeping())
        return lambda _: model(torch.ones(SIZE, SIZE)).mean().backward()

    found = findings_of(program, tmp_path / "run.json")[0]
    (offered,) = [one for one in found.remedies if one.fix == "detach"]
    assert (offered.code, offered.patch) == ("self.tables[key] = self.make()", "")
    assert offered.peak_before == offered.peak_after


def log_to_a_library(library):
    history, model = library("scores").History(), job()

    def diagnostics(out):
        return {"size": out.square().mean(), "rows": len(out)}

    def step(number):
        model(torch.randn(SIZE, SIZE)).square().mean().backward()
        model.zero_grad()
        history.log(diagnostics(model(torch.randn(SIZE, SIZE))))

    return step


def test_what_a_library_is_handed_under_a_key_is_cut_off_where_the_key_is_written(
    tmp_path, library
):
    (found, *_) = findings_of(lambda: log_to_a_library(library), tmp_path / "run.json")
    first = found.remedies[0]
    assert (first.rule, first.fix) == ("kept-graph", "detach")
    assert first.code == 'return {"size": out.square().mean(), "rows": len(out)}'
    assert "under `'size'`" in first.why


def predicted_twice(goes_backward):
    """Means and variances of one prediction are kept, each in a list of its own."""

    def program():
        model, mean, variance = job()[0], nn.Linear(64, 1), nn.Linear(64, 1)
        means, variances = [], []

        def step(number):
            out = model(torch.randn(64, 64))
            means.append(mean(out))
            variances.append(variance(out).exp())
            if goes_backward:
                model(torch.randn(64, 64)).square().mean().backward()
                model.zero_grad()

        return step

    return program


def test_what_two_containers_keep_the_graph_of_is_to_have_none(tmp_path):
    """Cut off one of them, the other keeps it."""
    (first, *_) = findings_of(predicted_twice(False), tmp_path / "run.json")
    assert {one.code for one in first.holders if one.through_graph} == {
        "means.append(mean(out))",
        "variances.append(variance(out).exp())",
    }
    assert first.remedies[0].fix == "no_grad"
    (cut,) = (one for one in first.remedies if one.fix == "detach")
    assert "keeps such graphs, too: there as well." in cut.why
    assert cut.patch == ""


def test_where_a_backward_pass_runs_both_are_told_to_be_cut_off(tmp_path):
    (first, *_) = findings_of(predicted_twice(True), tmp_path / "run.json")
    assert first.remedies[0].fix == "detach"
    assert "keeps such graphs, too: there as well." in first.remedies[0].why


def mean_loss(model):
    losses = [model(torch.randn(32, SIZE)).square().mean() for _ in range(3)]
    return torch.stack(losses).mean()


def reports(in_training):
    def report():
        model, means = nn.Linear(SIZE, SIZE), {}

        def step(number):
            if number < 6 or in_training:
                model(torch.randn(8, SIZE)).sum().backward()
            if number >= 6:
                means[number] = mean_loss(model)

        return step

    return report


@pytest.mark.parametrize(("in_training", "fix"), [(False, "no_grad"), (True, "detach")])
def test_where_another_function_evaluates_no_graph_is_to_be_made_there(in_training, fix, tmp_path):
    found = findings_of(reports(in_training), tmp_path / "run.json", steps=30)
    first = found[0].remedies[0]
    assert first.fix == fix
    assert (
        first.code
        == {
            "no_grad": "losses = [model(torch.randn(32, SIZE)).square().mean() for _ in range(3)]",
            "detach": "means[number] = mean_loss(model)",
        }[fix]
    )


class Moments:
    """Averages of gradients and of their squares, with the graphs that a penalty needs."""

    def __init__(self, parameters):
        self.mean = {at: torch.zeros_like(one) for at, one in enumerate(parameters)}
        self.square = {at: torch.zeros_like(one) for at, one in enumerate(parameters)}

    def update(self, gradients):
        for name, gradient in enumerate(gradients):
            self.mean[name] = 0.9 * self.mean[name] + 0.1 * gradient
            self.square[name] = 0.9 * self.square[name] + 0.1 * gradient**2


def averages():
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    moments = Moments(list(net.parameters()))

    def step(number):
        loss = net(torch.randn(64, 64)).square().mean()
        gradients = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
        moments.update(gradients)
        sum(one.square().sum() for one in gradients).backward()
        net.zero_grad()

    return step


def test_two_averages_of_one_gradient_are_both_to_be_cut_off(tmp_path):
    found = next(
        one for one in findings_of(averages, tmp_path / "run.json", 30) if one.bytes_per_step
    )
    first = found.remedies[0]
    kept, other = ("square", "mean") if "self.square" in first.code else ("mean", "square")
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.strip().startswith(f"self.{other}[name] =")
    )
    assert (first.rule, first.fix) == ("kept-graph", "detach")
    assert f"self.{kept}[name]" in first.code
    assert f"Line {line} keeps such graphs, too: there as well." in first.why


class Layer(torch.nn.Module):
    """Its cost belongs to the loss of each step."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64, 64))
        self.costs = []

    def forward(self, x):
        self.costs.append(self.weight.exp().mean())
        return x @ self.weight


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Layer()
        self.body = torch.nn.Sequential(Layer(), torch.nn.Tanh())

    def forward(self, x):
        return self.body(self.first(x))

    def costs(self):
        total = 0
        for layer in self.children():
            if isinstance(layer, Layer):
                total = total + torch.stack(layer.costs).mean()
                layer.costs.clear()
        return total


def of_parts_of_parts():
    model = Nested()

    def step(number):
        (model(torch.ones(8, 64)).mean() + model.costs()).backward()
        model.zero_grad()

    return step


def test_lists_that_a_loop_misses_are_to_be_reached_by_it(tmp_path):
    found = findings_of(of_parts_of_parts, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (first.fix, first.code) == ("clear_container", "for layer in self.children():")
    assert "empties `costs` of each object" in first.why


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(SIZE, SIZE), nn.Linear(SIZE, 4)

    def forward(self, observation, state):
        state = self.cell(observation, state)
        return self.head(state), state


def learn(policy, optimizer, state):
    loss = policy(torch.randn(SIZE, SIZE), state)[0].square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def learn_and_keep(policy, optimizer, state):
    loss = policy(torch.randn(SIZE, SIZE), state)[0].square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()


def acting(tracker):
    """A recurrent policy acts, and learns from what it finds again in the buffer."""
    policy, buffer = Policy(), deque(maxlen=64)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)

    observation, state = torch.randn(SIZE, SIZE), torch.zeros(SIZE, SIZE)
    for _ in range(16):
        values, after = policy(observation, state)
        following = torch.randn(SIZE, SIZE) + values.argmax(1)[:, None]
        buffer.append((observation, state, after))
        observation, state = following, after
        learn(policy, optimizer, buffer[0][1])
        tracker.step()


def acting_in_one_line(tracker):
    policy, buffer = Policy(), []
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)

    state = torch.zeros(SIZE, SIZE)
    for _ in range(16):
        values, state = policy(torch.randn(SIZE, SIZE), state)
        buffer.append((values.argmax(1), state))
        learn(policy, optimizer, buffer[0][1].detach())
        tracker.step()


def acting_from_what_is_cut_off(tracker):
    policy, buffer = Policy(), []
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)

    state = torch.zeros(SIZE, SIZE)
    for _ in range(16):
        values, after = policy(torch.randn(SIZE, SIZE), state)
        buffer.append((values.argmax(1), after))
        state = after.detach()
        learn(policy, optimizer, buffer[0][1].detach())
        tracker.step()


def acting_with_graphs_that_are_kept(tracker):
    """Whether a backward pass goes through what is stored cannot be seen."""
    policy, buffer = Policy(), []
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    state = torch.zeros(SIZE, SIZE)
    for _ in range(16):
        values, state = policy(torch.randn(SIZE, SIZE), state)
        buffer.append((values.argmax(1), state))
        learn_and_keep(policy, optimizer, buffer[0][1].detach())
        tracker.step()


@pytest.mark.parametrize(
    ("program", "fix", "name"),
    [
        (acting_with_graphs_that_are_kept, "detach", "`buffer`"),
        (acting, "no_grad", "`state`"),
        (acting_in_one_line, "no_grad", "`state`"),
        (acting_from_what_is_cut_off, "detach", "`buffer`"),
    ],
)
def test_where_a_state_is_carried_on_as_well_no_graph_is_to_be_made(program, fix, name, tmp_path):
    with memprof.track(tmp_path / "run.json", sources=["cpu"], allowance_s=600) as tracker:
        program(tracker)
    found, *_ = findings(load(tmp_path / "run.json"))
    first = found.remedies[0]
    assert (found.rule, first.rule, first.fix) == ("kept-graph", "kept-graph", fix)
    assert name in first.why
    bounded = program is acting
    assert ("clear_container" in {one.fix for one in found.remedies}) is not bounded


class Controls:
    """What a client of federated training corrects its gradients by."""

    def __init__(self, model):
        self.control = {name: torch.zeros_like(one) for name, one in model.named_parameters()}

    def update(self, start, model):
        changes = {}
        for name, one in model.named_parameters():
            new = self.control[name] + start[name] - one
            changes[name] = new - self.control[name]
            self.control[name] = new
        return changes


def controls_of_clients():
    """Others may keep what the client hands on: to cut off its own leaves that."""
    model = torch.nn.Linear(64, 64)
    clients = [Controls(model), Controls(model)]

    def step(number):
        own = copy.deepcopy(model)
        own(torch.randn(8, 64)).square().mean().backward()
        clients[number % 2].update(dict(model.named_parameters()), own)

    return step


def test_a_function_that_keeps_and_hands_on_a_graph_is_to_build_none(tmp_path):
    found, *_ = findings_of(controls_of_clients, tmp_path / "run.json", 40)
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("kept-graph", "no_grad")
    assert first.code == "def update(self, start, model):"
    assert "puts more of that elsewhere" in first.why
