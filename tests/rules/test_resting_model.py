"""resting-model: a model that is made anew now and then rests between its uses."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.rules.recorded import findings_of, names

WIDTH = 192
WEIGHTS = 3 * (WIDTH * WIDTH * 4 + 1024)  # biases take blocks of 512 bytes


def job():
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def trained(model, optimizer):
    loss = model(torch.randn(64, WIDTH)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


class Preview:
    """It draws with a copy of the model, and keeps that until it draws again."""

    def __init__(self):
        self.drawing = None

    def draw(self, model):
        self.drawing = copy.deepcopy(model).eval()
        with torch.no_grad():
            self.drawing(torch.ones(2, WIDTH))


def fires():
    model, optimizer = job()
    preview = Preview()

    def step(number):
        trained(model, optimizer)
        if number % 6 == 1:
            preview.draw(model)

    return step


class Best:
    """It tests the best model until now, which is loaded back at the end."""

    def __init__(self):
        self.model = None

    def update(self, model):
        self.model = copy.deepcopy(model).eval()
        with torch.no_grad():
            self.model(torch.ones(2, WIDTH))

    def restore(self, model):
        model.load_state_dict(self.model.state_dict())


def best_until_now():
    model, optimizer = job()
    best = Best()

    def step(number):
        trained(model, optimizer)
        if number % 6 == 1:
            best.update(model)
        if number == 99:
            best.restore(model)

    return step


class Critic:
    """The copy is called in each step, until another takes its place."""

    def __init__(self):
        self.model = None

    def renew(self, model):
        self.model = copy.deepcopy(model).eval()

    def judge(self):
        with torch.no_grad():
            self.model(torch.ones(2, WIDTH))


def looks_alike():
    model, optimizer = job()
    critic = Critic()

    def step(number):
        trained(model, optimizer)
        if number % 6 == 0:
            critic.renew(model)
        critic.judge()

    return step


def made_like_the_model():
    """One line makes the model that is trained, and those that are tested; with gradients there."""
    model, optimizer = job()
    holder, emptied = {"tested": None}, []

    def step(number):
        optimizer.zero_grad()
        model(torch.ones(2, WIDTH)).sum().backward()
        if number % 6 == 1:
            old = holder["tested"]
            holder["tested"], _ = job()
            if old is not None:
                emptied.append(old)  # a later model is then no object at its address
                for one in old.parameters():
                    one.data = torch.empty(0)
            del old
            holder["tested"].load_state_dict(model.state_dict())
        if number % 6 in (1, 2):
            with torch.no_grad():
                holder["tested"](torch.ones(2, WIDTH))
        optimizer.step()

    return step


def test_the_model_that_is_trained_does_not_rest_though_the_same_line_makes_it(tmp_path):
    """At the peak the old one is there beside the new one, for which it is no longer needed."""
    (found,) = [
        one
        for one in findings_of(made_like_the_model, tmp_path / "run.json", 24)
        if one.rule in ("resting-model", "lingering")
    ]
    (remedy,) = found.remedies
    assert (found.rule, found.bytes, remedy.fix) == ("resting-model", WEIGHTS, "del_ref")
    of_test = 3 * 2 * WIDTH * 4  # without the old one the peak is while the new one is called
    assert remedy.saves_bytes == WEIGHTS - of_test


def test_the_copy_is_to_go_once_it_was_used(tmp_path):
    (found,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "resting-model"
    ]
    assert found.bytes == WEIGHTS
    assert not found.is_tentative
    (remedy,) = found.remedies
    assert (remedy.fix, remedy.code) == ("del_ref", "self.drawing = copy.deepcopy(model).eval()")
    assert "needs no copy" in remedy.why
    assert remedy.saves_bytes == WEIGHTS


def test_the_best_model_until_now_may_be_loaded_back(tmp_path):
    findings = findings_of(best_until_now, tmp_path / "run.json")
    assert all(one.is_tentative for one in findings if one.rule == "resting-model")


def test_a_copy_that_is_called_in_between_does_not_rest(tmp_path):
    assert "resting-model" not in names(looks_alike, tmp_path / "run.json")
