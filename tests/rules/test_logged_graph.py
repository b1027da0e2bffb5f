"""logged-graph: a value through which no backward pass goes keeps the graph that made it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.recorded import findings_of, peak_of

ROWS, WIDTH, WORDS = 64, 16, 4096
TABLE = ROWS * WORDS * 4


def statistics(logits, words):
    probabilities = F.softmax(logits, dim=-1)
    scores = F.log_softmax(logits, dim=-1)
    entropy = -(probabilities * scores).sum(-1)
    return scores.gather(-1, words).mean(), entropy


def statistics_apart(logits, words):
    scores = F.log_softmax(logits, dim=-1)
    with torch.no_grad():
        probabilities = F.softmax(logits, dim=-1)
        entropy = -(probabilities * scores).sum(-1)
    return scores.gather(-1, words).mean(), entropy


def training(function, weight):
    """``weight`` is that of the entropy in the loss."""

    def program():
        head = nn.Linear(WIDTH, WORDS)
        optimizer = torch.optim.SGD(head.parameters(), 0.1)
        last = {}

        def step(number):
            optimizer.zero_grad()
            chosen, entropy = function(
                head(torch.rand(ROWS, WIDTH)), torch.randint(WORDS, (ROWS, 1))
            )
            (-chosen - weight * entropy.mean() if weight else -chosen).backward()
            optimizer.step()
            last["entropy"] = entropy

        return step

    return program


fires = training(statistics, 0)
looks_alike = training(statistics, 0.01)


def in_the_loop():
    """The loop's own variables hold what they are bound to, with a graph or without."""
    head = nn.Linear(WIDTH, WORDS)
    last = {}

    def step(number):
        head.zero_grad()
        logits = head(torch.rand(ROWS, WIDTH))
        probabilities = F.softmax(logits, dim=-1)
        last["entropy"] = -(probabilities * probabilities.log()).sum(-1)
        logits.square().mean().backward()

    return step


def logged(program, path):
    return [one for one in findings_of(program, path) if one.rule == "logged-graph"]


def test_what_is_only_logged_is_to_be_computed_without_a_graph(tmp_path):
    (one,) = logged(fires, tmp_path / "run.json")
    (first,) = one.remedies
    assert (one.minor, first.fix) == (False, "no_grad")
    assert one.title.endswith("by the graph of `entropy`, through which no backward pass goes")
    assert first.code == "entropy = -(probabilities * scores).sum(-1)"
    assert one.bytes % TABLE == 0
    findings_of(training(statistics_apart, 0), tmp_path / "apart.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "apart.json")
    assert first.saves_bytes == pytest.approx(saved, abs=TABLE // 4)


@pytest.mark.parametrize("program", [looks_alike, training(statistics_apart, 0), in_the_loop])
def test_what_a_loss_needs_and_what_has_no_graph_is_left_alone(program, tmp_path):
    assert logged(program, tmp_path / "run.json") == []


def named_statistics(logits, words):
    """The same, handed out by name; the entropy is computed in one line."""
    probabilities = F.softmax(logits, dim=-1)
    scores = F.log_softmax(logits, dim=-1)
    entropy = -(probabilities * probabilities.clamp_min(1e-9).log()).sum(-1)
    return {"chosen": scores.gather(-1, words).mean(), "entropy": entropy}


def by_name(logits, words):
    values = named_statistics(logits, words)
    return values["chosen"], values["entropy"]


def test_values_of_a_dictionary_and_what_one_line_makes_of_its_own(tmp_path):
    (one,) = logged(training(by_name, 0), tmp_path / "run.json")
    (first,) = one.remedies
    assert one.title.endswith("by the graph of `entropy`, through which no backward pass goes")
    assert first.code.startswith("entropy = -(probabilities * probabilities.clamp_min(1e-9)")
    # of the step before: probabilities, what is clamped, and its logarithm
    assert one.bytes >= 3 * TABLE


class Values(NamedTuple):
    chosen: torch.Tensor
    entropy: torch.Tensor


def of_class(logits, words):
    """An object of the program's own class hands them out."""
    probabilities = F.softmax(logits, dim=-1)
    scores = F.log_softmax(logits, dim=-1)
    entropy = -(probabilities * scores).sum(-1)
    return Values(chosen=scores.gather(-1, words).mean(), entropy=entropy)


def test_an_object_of_a_class_hands_out_what_it_is_given(tmp_path):
    (one,) = logged(training(of_class, 0), tmp_path / "run.json")
    assert one.title.endswith("by the graph of `entropy`, through which no backward pass goes")
    assert one.remedies[0].code == "entropy = -(probabilities * scores).sum(-1)"


def averaged(logits, words):
    """The statement that returns the value makes next to nothing."""
    error = torch.clamp(logits, 0, 1).sub(0.5).exp().sigmoid().pow(2).mean(dim=-1)
    ratio = 10 * torch.log10(1 / (error + 1e-8))
    return F.log_softmax(logits, dim=-1).gather(-1, words).mean(), ratio.mean()


def test_what_is_large_on_the_way_is_to_be_computed_without_a_graph_and_the_model_is_not(tmp_path):
    found = findings_of(training(averaged, 0), tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "logged-graph"]
    (first,) = one.remedies
    assert (one.minor, first.fix) == (False, "no_grad")
    assert first.code.startswith("error = torch.clamp(logits, 0, 1)")
    assert "compute `error`, and what follows of it," in first.why
    # nowhere is it said that the pass itself, which learns, should have no graph
    assert not any("head(" in remedy.code for each in found for remedy in each.remedies)


def log_of_mean(logits, words):
    uneven = torch.exp(logits * 2).mean().log()
    return F.log_softmax(logits, dim=-1).gather(-1, words).mean(), uneven


def deviation(logits, words):
    uneven = 1 - logits.sigmoid().std() / 2
    return F.log_softmax(logits, dim=-1).gather(-1, words).mean(), uneven


def in_dictionary(logits, words):
    uneven = {"all": torch.norm(logits.exp().sigmoid())}
    return F.log_softmax(logits, dim=-1).gather(-1, words).mean(), uneven["all"]


def squared_error(logits, words):
    uneven = F.mse_loss(logits.sigmoid(), torch.zeros_like(logits))
    return F.log_softmax(logits, dim=-1).gather(-1, words).mean(), uneven


def one_by_one(logits, words):
    """What is handed out is what was saved."""
    uneven = torch.exp(logits * 2).tanh()
    return F.log_softmax(logits, dim=-1).gather(-1, words).mean(), uneven


@pytest.mark.parametrize("function", [log_of_mean, deviation, in_dictionary, squared_error])
def test_what_is_computed_of_reductions_is_no_part_of_what_they_are_given(function, tmp_path):
    (one,) = logged(training(function, 0), tmp_path / "run.json")
    assert "`uneven" in one.title
    assert one.remedies[0].code.startswith("uneven = ")
    assert one.bytes >= TABLE


def test_a_value_that_is_saved_itself_is_needed(tmp_path):
    (one, *_) = [*logged(training(one_by_one, 0), tmp_path / "run.json"), None]
    assert one is None


class Loss:
    """Keeps the number that is only logged as an attribute."""

    def __init__(self):
        self.uneven = None

    def __call__(self, logits, words):
        scores = F.log_softmax(logits, dim=-1)
        self.uneven = torch.exp(logits * 2).sigmoid().mean()
        return scores.gather(-1, words).mean(), words.float()


def by_attribute():
    return training(Loss(), 0)()


def test_a_value_that_an_object_keeps_is_named_as_well(tmp_path):
    (one,) = logged(by_attribute, tmp_path / "run.json")
    assert one.title.endswith("by the graph of `self.uneven`, through which no backward pass goes")
    assert one.remedies[0].code == "self.uneven = torch.exp(logits * 2).sigmoid().mean()"
