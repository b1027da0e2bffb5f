"""logged-graph: a value through which no backward pass goes keeps the graph that made it."""

from __future__ import annotations

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
