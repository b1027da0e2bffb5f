"""evaluated-copy: a model is copied to be evaluated, which changes nothing of it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of

WIDTH = 512


def score_of_a_copy(model, x):
    net = copy.deepcopy(model).eval()
    with torch.no_grad():
        return net(x).square().mean().item()


def score(model, x):
    model.eval()
    with torch.no_grad():
        value = model(x).square().mean().item()
    model.train()
    return value


def score_of_a_lighter_one(model, x):
    """The copy is changed."""
    net = copy.deepcopy(model).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(parameter.abs() > 0.01)
        return net(x).square().mean().item()


def training(evaluate, model=None):
    if model is None:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number):
        loss = model(torch.randn(2, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 4 == 3:
            evaluate(model, torch.randn(2, WIDTH))

    return step


def fires():
    return training(score_of_a_copy)


def looks_alike():
    return training(score_of_a_lighter_one)


def test_the_model_itself_is_to_be_called(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix, only.typed) == (
        "evaluated-copy",
        "evaluate_itself",
        "model.eval()",
    )
    assert only.code == "net = copy.deepcopy(model).eval()"
    findings_of(lambda: training(score), tmp_path / "itself.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "itself.json")
    assert only.saves_bytes == pytest.approx(saved, rel=0.05)


def test_a_copy_that_is_changed_is_meant(tmp_path):
    assert "evaluated-copy" not in names(looks_alike, tmp_path / "run.json")


class Scored(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.args = (width, out)
        self.body = nn.Sequential(nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, out))

    def forward(self, x):
        return self.body(x)


def made_anew(model):
    twin = type(model)(*model.args)
    twin.load_state_dict(model.state_dict())
    return twin.requires_grad_(False).eval()


def score_of_one_made_anew(model, x):
    net = made_anew(model)
    return net(x).square().mean().item()


@torch.no_grad()
def score_by_the_same_name(model, x):
    model = copy.deepcopy(model)
    model.train(False)
    losses = [model(part).square().mean() for part in x.split(1)]
    return torch.stack(losses).mean().item()


def before_the_step(model):
    former = type(model)(*model.args)
    former.load_state_dict(model.state_dict())
    return former.requires_grad_(False).eval()


def held_to_what_it_was(model, x):
    """The copy stays as it is while the model is trained on."""
    former = before_the_step(model)
    for _ in range(2):
        loss = (model(x) - former(x)).square().mean() + model(x).mean()
        loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.01).step()


def training_of_a_class(evaluate):
    return training(evaluate, Scored(WIDTH, WIDTH))


def test_a_twin_that_a_function_makes_for_its_values_is_a_copy(tmp_path):
    def program():
        return training_of_a_class(score_of_one_made_anew)

    every = findings_of(program, tmp_path / "run.json")
    found = next(one for one in every if one.rule == "evaluated-copy")
    (only,) = found.remedies
    assert (found.rule, only.code, only.typed) == (
        "evaluated-copy",
        "twin = type(model)(*model.args)",
        "model.eval()",
    )
    findings_of(lambda: training_of_a_class(score), tmp_path / "itself.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "itself.json")
    assert only.saves_bytes == pytest.approx(saved, rel=0.05)


def test_a_copy_may_take_the_name_of_the_model(tmp_path):
    found = findings_of(lambda: training(score_by_the_same_name), tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.code) == ("evaluated-copy", "model = copy.deepcopy(model)")


def test_a_copy_beside_which_the_model_is_trained_is_meant(tmp_path):
    def program():
        return training_of_a_class(held_to_what_it_was)

    assert "evaluated-copy" not in names(program, tmp_path / "run.json")


@torch.no_grad()
def evaluated(net, x):
    net.eval()
    return net(x).square().mean().item()


def score_of_a_copy_handed_on(model, x):
    return evaluated(copy.deepcopy(model), x)


def score_by_a_second_net(model, x):
    """One of the same class loads the weights, and is handed on twice."""
    net = Scored(WIDTH, WIDTH)
    net.load_state_dict(model.state_dict())
    return sum(evaluated(net, part) for part in x.split(1))


def score_of_a_copy_that_is_tuned(model, x):
    return tuned(copy.deepcopy(model), x)


def tuned(net, x):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    net(x).square().mean().backward()
    optimizer.step()
    return net(x).mean().item()


def trains_in_the_same_function():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number):
        loss = model(torch.randn(2, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        snapshot = copy.deepcopy(model)
        evaluated(snapshot, torch.randn(2, WIDTH))

    return step


def tried_out(net, x):
    """What the model is after a step is compared with what it was: by the name of a parameter."""
    before = copy.deepcopy(net)
    tuned(net, x)
    return evaluated(before, x) - evaluated(net, x)


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (
            lambda: training(score_of_a_copy_handed_on),
            "return evaluated(copy.deepcopy(model), x)",
        ),
        (lambda: training_of_a_class(score_by_a_second_net), "net = Scored(WIDTH, WIDTH)"),
        (trains_in_the_same_function, "snapshot = copy.deepcopy(model)"),
    ],
)
def test_a_copy_may_be_handed_to_what_evaluates_it(program, code, tmp_path):
    every = findings_of(program, tmp_path / "run.json")
    found = next(one for one in every if one.rule == "evaluated-copy")
    (only,) = found.remedies
    assert (only.fix, only.code, only.typed) == ("evaluate_itself", code, "model.eval()")
    assert 0 < only.saves_bytes <= 2 * (WIDTH * WIDTH + WIDTH) * 4


def keeps_the_best():
    """The copy may be one of an earlier turn, after which the model was trained on."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def step(number):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for turn in range(2):
            loss = model(torch.randn(2, WIDTH)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if turn == 0:
                best = copy.deepcopy(model)
            evaluated(best, torch.randn(2, WIDTH))

    return step


def test_a_copy_of_an_earlier_turn_is_meant(tmp_path):
    assert "evaluated-copy" not in names(keeps_the_best, tmp_path / "run.json")


@pytest.mark.parametrize("evaluate", [score_of_a_copy_that_is_tuned, tried_out])
def test_a_copy_that_is_trained_or_that_stays_as_the_model_was_is_meant(evaluate, tmp_path):
    assert "evaluated-copy" not in names(lambda: training(evaluate), tmp_path / "run.json")
