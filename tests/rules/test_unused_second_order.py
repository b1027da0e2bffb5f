"""unused-second-order: gradients keep the graph that made them, and none are taken through it."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from memprof.loading import load
from memprof.rules.ranked_findings import findings
from tests import forks
from tests.rules.recorded import findings_of, names, peak_of

WIDTH = 64


class Learner:
    """It adapts weights to a task, in its training and in its test."""

    def __init__(self):
        self.model = nn.Sequential(
            nn.Linear(1, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)

    def loss(self, weights, x):
        return (functional_call(self.model, weights, (x,)) - x).square().mean()

    def adapt(self, x, rounds):
        weights = dict(self.model.named_parameters())
        for _ in range(rounds):
            grads = torch.autograd.grad(
                self.loss(weights, x), list(weights.values()), create_graph=True
            )
            weights = {k: w - 0.01 * g for (k, w), g in zip(weights.items(), grads, strict=True)}
        return weights

    def train(self, rounds=2, rows=8):
        x = torch.randn(rows, 1)
        self.optimizer.zero_grad()
        self.loss(self.adapt(x, rounds), x).backward()
        self.optimizer.step()

    def test(self):
        x = torch.randn(1024, 1)
        weights = self.adapt(x, 6)
        with torch.no_grad():
            return self.loss(weights, x).item()

    def train_by_first_order(self, rounds=6, rows=1024):
        """The gradients of the adapted weights are those that the weights are stepped with."""
        x = torch.randn(rows, 1)
        weights = self.adapt(x, rounds)
        grads = torch.autograd.grad(self.loss(weights, x), list(weights.values()))
        for parameter, grad in zip(self.model.parameters(), grads, strict=True):
            parameter.grad = grad
        self.optimizer.step()


def fires():
    learner = Learner()

    def step(number):
        learner.train()
        if number % 4 == 3:
            learner.test()

    return step


def looks_alike():
    learner = Learner()
    return lambda _: learner.train(rounds=6, rows=1024)


class Field(nn.Module):
    """Its third derivative is asked for: each pass goes through the one before."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def curvature(self, x):
        y = self.net(x)
        for _ in range(3):
            y = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
        return y.square().mean().item()


def derivative_of_a_derivative():
    field = Field()
    return lambda _: field.curvature(torch.randn(2048, 1, requires_grad=True))


def test_a_test_that_adapts_as_the_training_does_needs_no_graph_of_its_gradients(tmp_path):
    (found,) = [
        one
        for one in findings_of(fires, tmp_path / "run.json")
        if one.rule == "unused-second-order"
    ]
    (remedy,) = found.remedies
    assert remedy.fix == "no_create_graph"
    assert remedy.code.startswith("grads = torch.autograd.grad(")
    assert "where it is called from line" in remedy.why
    # Two layers keep 1024 rows of 64 floats for each of six passes, twice: forward and backward.
    assert found.bytes > 6 * 4 * 1024 * WIDTH * 4
    assert remedy.saves_bytes > 0.7 * found.bytes


SCRIPT = """
import sys
import memprof
import torch
from torch.func import functional_call

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
with memprof.track(sys.argv[1], sources=["cpu"], allowance_s=600) as tracker:
    for _ in range(8):
        x = torch.randn(1024, 1)
        weights = dict(model.named_parameters())
        for _ in range(6):
            loss = (functional_call(model, weights, (x,)) - x).square().mean()
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {k: w - 0.01 * g for (k, w), g in zip(weights.items(), grads)}
        del weights, grads, loss
        tracker.step()
"""


def test_it_is_told_of_a_script_without_functions_too(tmp_path):
    script = tmp_path / "adapt.py"
    script.write_text(SCRIPT)
    done = forks.run_file(script, tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    (found,) = [
        one for one in findings(load(tmp_path / "run.json")) if one.rule == "unused-second-order"
    ]
    assert found.remedies[0].fix == "no_create_graph"
    assert "where it is called from" not in found.remedies[0].why


def trains_to_first_order():
    """The gradients are cut off in training, too: neither call takes derivatives of them."""
    learner = Learner()
    adapt = learner.adapt

    def cut_off(x, rounds):
        return {k: w.detach().requires_grad_() for k, w in adapt(x, rounds).items()}

    def train():
        x = torch.randn(1024, 1)
        learner.loss(cut_off(x, 6), x).backward()

    def step(number):
        train()
        learner.test()

    return step


def test_it_is_left_out_for_all_callers_where_none_needs_it(tmp_path):
    found = findings_of(trains_to_first_order, tmp_path / "run.json")
    (one,) = [each for each in found if each.rule == "unused-second-order"]
    assert one.match.called_at is None
    assert one.remedies[0].saves_bytes > 0.3 * peak_of(tmp_path / "run.json")


def test_a_loss_that_goes_back_through_all_passes_needs_it(tmp_path):
    assert "unused-second-order" not in names(looks_alike, tmp_path / "run.json")


def test_so_does_a_derivative_of_the_derivative_before(tmp_path):
    assert "unused-second-order" not in names(derivative_of_a_derivative, tmp_path / "run.json")


def kept_until_the_next():
    """The last chain of passes is there when the recording ends."""
    model, last = nn.Sequential(nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)), [None]
    model.requires_grad_(False)

    def step(number):
        x = torch.randn(512, 64).requires_grad_(True)
        for _ in range(6):
            (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            x = x - 0.1 * grad
        last[0] = x

    return step


def test_passes_that_the_end_of_the_recording_cut_off_count_for_the_saving(tmp_path):
    found = findings_of(kept_until_the_next, tmp_path / "run.json")
    one = next(one for one in found if one.rule == "unused-second-order")
    first = one.remedies[0]
    assert first.fix == "no_create_graph"
    assert first.saves_bytes > 0.5 * one.match.saving.overall_before


class Potential(nn.Module):
    """Forces are learnt, which takes gradients of gradients, and then drive a simulation."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.01)

    def forward(self, places):
        places = places.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(self.net(places).sum(), places, create_graph=True)
        return -slope

    def fit(self, places):
        self.optimizer.zero_grad()
        self(places).square().mean().backward()
        self.optimizer.step()


def simulation():
    potential, state = Potential(), {}

    def step(number):
        if number < 4:
            potential.fit(torch.randn(16, 64))
        elif number == 4:
            state["forces"] = potential(torch.randn(1024, 64)).detach()
        else:
            state["forces"] = potential(torch.randn(1024, 64) + state["forces"]).detach()

    return step


def test_forces_that_are_kept_are_not_the_graph_that_made_them(tmp_path):
    """A simulation's first call stands by itself, and what it returned is there for the second."""
    found = next(
        one
        for one in findings_of(simulation, tmp_path / "run.json", 16)
        if one.rule == "unused-second-order"
    )
    (remedy,) = found.remedies
    # Of two layers the pass keeps what the first returned, its derivative and their products.
    assert remedy.saves_bytes > 1024 * 4 * WIDTH * 4


def of_first_order():
    learner = Learner()
    return lambda _: learner.train_by_first_order()


def test_a_pass_that_ends_at_the_adapted_weights_goes_through_none_of_it(tmp_path):
    found, *_ = findings_of(of_first_order, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.rule, first.fix) == ("unused-second-order", "no_create_graph")
    assert first.code == "grads = torch.autograd.grad("
