"""idle-optimizer: an optimizer that steps no more keeps its states while others train."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memprof
from memprof.loading import load
from memprof.rules.ranked_findings import findings

WIDTH, STEPS = 256, 12
PARAMETERS = WIDTH * WIDTH * 4 + WIDTH * 4
STATES = 2 * PARAMETERS + 2 * 512
"""Two averages, and a block each for the numbers of steps of matrix and bias."""


class Coder(nn.Linear):
    pass


class Rater(nn.Linear):
    pass


class Pretraining:
    def __init__(self):
        self.model = Coder(WIDTH, WIDTH)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def one(self):
        learned = self.model(torch.randn(8, WIDTH)).square().mean()
        self.optimizer.zero_grad()
        learned.backward()
        self.optimizer.step()

    def fit(self, tracker):
        for _ in range(STEPS):
            self.one()
            tracker.step()


def of_an_object(tracker):
    pretraining = Pretraining()
    pretraining.fit(tracker)
    rate(pretraining.model.requires_grad_(False), tracker)


class Warming:
    def __init__(self):
        self.model = Coder(WIDTH, WIDTH)
        self.adam = torch.optim.Adam(self.model.parameters())

    def warm(self):
        self.model(torch.randn(8, WIDTH)).square().mean().backward()
        self.adam.step()
        self.adam.zero_grad()


def warmed_up():
    warming, rater = Warming(), Rater(WIDTH, WIDTH)
    for _ in range(7):
        yield warming.warm()
    rated = torch.optim.Adam(rater.parameters())
    while True:
        rated.zero_grad()
        rater(torch.randn(8, WIDTH)).square().mean().backward()
        yield rated.step()


def fires():
    steps = warmed_up()
    return lambda number: next(steps)


def looks_alike():
    """The first goes on when the second has trained for a while."""
    coder, rater = Coder(WIDTH, WIDTH), Rater(WIDTH, WIDTH)
    coded, rated = (torch.optim.Adam(one.parameters()) for one in (coder, rater))

    def step(number):
        model, optimizer = (coder, coded) if number < 7 else (rater, rated)
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()

    return step


def rate(coder, tracker):
    rater = Rater(WIDTH, WIDTH)
    rated = torch.optim.Adam(rater.parameters())
    for _ in range(STEPS + 4):
        rated.zero_grad()
        rater(coder(torch.randn(8, WIDTH)).detach()).square().mean().backward()
        rated.step()
        tracker.step()


def of_a_function(tracker):
    coder = Coder(WIDTH, WIDTH)
    coded = torch.optim.Adam(coder.parameters())
    for _ in range(STEPS):
        coder(torch.randn(8, WIDTH)).square().mean().backward()
        coded.step()
        coded.zero_grad()
        tracker.step()
    rate(coder, tracker)


def saved_at_the_end(tracker):
    coder = Coder(WIDTH, WIDTH)
    coded = torch.optim.SGD(coder.parameters(), 0.1, momentum=0.9)
    for _ in range(STEPS):
        coded.zero_grad()
        coder(torch.randn(8, WIDTH)).square().mean().backward()
        coded.step()
        tracker.step()
    rate(coder, tracker)
    return coded.state_dict()


def given_by_the_caller(tracker):
    coder = Coder(WIDTH, WIDTH)
    coded = torch.optim.Adam(coder.parameters())
    code_and_rate(coder, coded, tracker)


def code_and_rate(coder, optimizer, tracker):
    """Its caller has the optimizer as well."""
    for _ in range(STEPS):
        coder(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()
        tracker.step()
    rate(coder, tracker)


def train_with(model, optimizer, tracker, steps):
    for _ in range(steps):
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        tracker.step()


def of_two_stages(tracker):
    coder, rater = Coder(WIDTH, WIDTH), Rater(WIDTH, WIDTH)
    stages = {
        "code": torch.optim.Adam(coder.parameters()),
        "rate": torch.optim.Adam(rater.parameters()),
    }
    train_with(coder, stages["code"], tracker, STEPS)
    train_with(rater, stages["rate"], tracker, STEPS + 4)


def of_two_variables(tracker):
    coder, rater = Coder(WIDTH, WIDTH), Rater(WIDTH, WIDTH)
    coded, rated = torch.optim.Adam(coder.parameters()), torch.optim.Adam(rater.parameters())
    train_with(coder, coded, tracker, STEPS)
    train_with(rater, rated, tracker, STEPS + 4)


def prepared(model):
    adam = torch.optim.Adam(model.parameters())
    rates = torch.optim.lr_scheduler.StepLR(adam, 10)
    return model, adam, rates


def of_what_a_function_returns(tracker):
    coder, coded, coding_rates = prepared(Coder(WIDTH, WIDTH))
    train_with(coder, coded, tracker, STEPS)
    coding_rates.step()
    rater, rated, _ = prepared(Rater(WIDTH, WIDTH))
    train_with(rater, rated, tracker, STEPS + 4)


class Stage:
    def __init__(self):
        self.model = Coder(WIDTH, WIDTH)
        self.adaptive = torch.optim.Adam(self.model.parameters())


def train_stage(stage, tracker):
    for _ in range(STEPS):
        stage.model(torch.randn(8, WIDTH)).square().mean().backward()
        stage.adaptive.step()
        stage.adaptive.zero_grad()
        tracker.step()


def one_stage_after_the_other(tracker):
    stages = []
    for _ in range(3):
        stage = Stage()
        train_stage(stage, tracker)
        stages.append(stage)


def stages_in_rounds(tracker, rounds=1):
    """The recording ends amid the first of them."""
    stages = [Stage() for _ in range(3)]
    for _ in range(rounds):
        for stage in stages:
            train_stage(stage, tracker)


def returned_and_saved(tracker):
    coder, coded, _ = prepared(Coder(WIDTH, WIDTH))
    train_with(coder, coded, tracker, STEPS)
    rater, rated, _ = prepared(Rater(WIDTH, WIDTH))
    train_with(rater, rated, tracker, STEPS + 4)
    return coded.state_dict()


def with_a_scheduler(tracker):
    coder, rater = Coder(WIDTH, WIDTH), Rater(WIDTH, WIDTH)
    coded, rated = torch.optim.Adam(coder.parameters()), torch.optim.Adam(rater.parameters())
    slower = torch.optim.lr_scheduler.StepLR(coded, 10)
    train_with(coder, coded, tracker, STEPS)
    slower.step()
    train_with(rater, rated, tracker, STEPS + 4)


def saved_with_all_stages(tracker):
    """All entries are read at the end."""
    coder, rater = Coder(WIDTH, WIDTH), Rater(WIDTH, WIDTH)
    stages = {
        "code": torch.optim.Adam(coder.parameters()),
        "rate": torch.optim.Adam(rater.parameters()),
    }
    train_with(coder, stages["code"], tracker, STEPS)
    train_with(rater, stages["rate"], tracker, STEPS + 4)
    return {name: one.state_dict() for name, one in stages.items()}


def stages_by_turns(tracker, rounds=1):
    coder, rater = Coder(WIDTH, WIDTH), Rater(WIDTH, WIDTH)
    both = {
        "code": torch.optim.Adam(coder.parameters()),
        "rate": torch.optim.Adam(rater.parameters()),
    }
    for _ in range(rounds):
        train_with(coder, both["code"], tracker, STEPS)
        train_with(rater, both["rate"], tracker, STEPS + 4)


def by_turns(tracker, rounds=1):
    """Each trains for a while, again and again; the recording ends amid the first round."""
    coder, rater = Coder(WIDTH, WIDTH), Rater(WIDTH, WIDTH)
    coded, rated = torch.optim.Adam(coder.parameters()), torch.optim.Adam(rater.parameters())
    for _ in range(rounds):
        for _ in range(STEPS):
            coder(torch.randn(8, WIDTH)).square().mean().backward()
            coded.step()
            coded.zero_grad()
            tracker.step()
        for _ in range(2 * STEPS):
            rater(torch.randn(8, WIDTH)).square().mean().backward()
            rated.step()
            rated.zero_grad()
            tracker.step()


class Player:
    def __init__(self):
        self.model = Coder(WIDTH, WIDTH)
        self.sgd = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)

    def play(self, tracker):
        for _ in range(STEPS):
            self.model(torch.randn(8, WIDTH)).square().mean().backward()
            self.sgd.step()
            self.sgd.zero_grad()
            tracker.step()


def epoch_of(player, tracker):
    player.play(tracker)
    rate(player.model, tracker)


def in_epochs(tracker, epochs=1):
    """The recording ends amid the first of them; the next one calls the same again."""
    player = Player()
    for _ in range(epochs):
        epoch_of(player, tracker)


def idle(train, path):
    with memprof.track(path, sources=("cpu",)) as tracker:
        train(tracker)
    return [one for one in findings(load(path)) if one.rule == "idle-optimizer"]


@pytest.mark.parametrize(
    ("train", "name", "code", "nbytes"),
    [
        (of_an_object, "pretraining.optimizer", "pretraining.fit(tracker)", STATES + PARAMETERS),
        (of_a_function, "coded", "coded.zero_grad()", STATES),
        (
            of_two_stages,
            "stages['code']",
            'train_with(coder, stages["code"], tracker, STEPS)',
            STATES,
        ),
        (of_two_variables, "coded", "train_with(coder, coded, tracker, STEPS)", STATES),
        (
            of_what_a_function_returns,
            "coded, coding_rates",
            "train_with(coder, coded, tracker, STEPS)",
            STATES,
        ),
        (with_a_scheduler, "coded, slower", "train_with(coder, coded, tracker, STEPS)", STATES),
    ],
)
def test_states_of_what_is_trained_no_more_are_told(train, name, code, nbytes, tmp_path):
    (found,) = idle(train, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.bytes, found.minor) == (nbytes, False)
    assert (first.fix, first.code, first.typed) == ("del_ref", code, f"del {name}")
    assert first.saves_bytes == nbytes
    assert ("zero_grad" in first.why) is (nbytes > STATES)


def test_states_of_what_one_line_has_trained_are_told_of_each(tmp_path):
    (found,) = idle(one_stage_after_the_other, tmp_path / "run.json")
    (first,) = found.remedies
    assert (found.bytes, found.minor) == (2 * STATES, False)
    assert (first.fix, first.code) == ("del_ref", "train_stage(stage, tracker)")
    assert (first.typed, first.saves_bytes) == ("stage.adaptive = None", 2 * STATES)


@pytest.mark.parametrize(
    "train",
    [
        *(saved_at_the_end, given_by_the_caller, by_turns, in_epochs),
        *(saved_with_all_stages, stages_by_turns, returned_and_saved),
        stages_in_rounds,
    ],
)
def test_an_optimizer_that_is_read_again_is_left_alone(train, tmp_path):
    assert not idle(train, tmp_path / "run.json")
