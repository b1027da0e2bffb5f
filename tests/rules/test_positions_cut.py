"""positions-cut: logits of every position are computed, and values of the last ones are read."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.recorded import findings_of, names

ROWS, PROMPT, COMPLETION, VOCABULARY, WIDTH = 4, 96, 32, 512, 16
POSITIONS = PROMPT + COMPLETION
LOGITS = ROWS * POSITIONS * VOCABULARY * 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids, logits_to_keep=0):
        return self.head(self.table(ids)[:, -logits_to_keep:])


class WithoutSwitch(Model):
    def forward(self, ids):
        return self.head(self.table(ids))


def of_each_token(model, ids):
    logits = model(ids)
    logits = logits[:, :-1]
    rows = []
    for row, targets in zip(logits, ids[:, 1:], strict=True):
        rows.append(row.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1))
    return torch.stack(rows)


def of_completion(model, ids):
    return of_each_token(model, ids)[:, PROMPT - 1 :]


def cut_at_once(model, ids):
    logits = model(ids)[:, :-1]
    losses = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return losses[:, -COMPLETION:]


class Output(NamedTuple):
    logits: torch.Tensor
    hidden: torch.Tensor | None = None


class WithOutput(Model):
    """Returns an object that has the logits."""

    def forward(self, ids, logits_to_keep=0):
        return Output(logits=super().forward(ids, logits_to_keep))


def of_object(model, ids):
    values = of_field(model, ids)
    values = values[:, PROMPT - 1 :]
    return values * 1.0


def of_field(model, ids):
    logits = model(ids).logits[:, :-1]
    values = logits.log_softmax(-1)
    return torch.gather(values, 2, ids[:, 1:].unsqueeze(-1)).squeeze(-1)


def by_module(model, ids):
    """A module of torch has a loss for each token, and the mean of some is learned from."""
    logits = model(ids)[:, :-1]
    criterion = nn.CrossEntropyLoss(reduction="none")
    losses = criterion(logits.flatten(0, 1), ids[:, 1:].flatten())
    return losses.view(ROWS, -1)


def mean_of_completion(model, ids):
    return by_module(model, ids)[:, -COMPLETION:]


def mean_of_all(model, ids):
    return by_module(model, ids)


def of_each_and_more(model, ids):
    values = of_each_token(model, ids)
    return values[:, PROMPT - 1 :] + values.mean()


def features(model, ids):
    """Features of which some are read, of every position."""
    return torch.stack([model(one[None]).amax(1)[0] for one in ids])[:, 8:]


def trained(values_of, model_class=Model):
    def program():
        torch.manual_seed(0)
        model = model_class()

        def step(number):
            ids = torch.randint(VOCABULARY, (ROWS, POSITIONS))
            values = values_of(model, ids)
            ratio = torch.exp(values - values.detach())
            (ratio * torch.rand(ROWS, 1)).mean().backward()
            model.zero_grad()

        return step

    return program


def learning(values_of, model_class=Model):
    """From the mean, which has no value for each."""

    def program():
        torch.manual_seed(0)
        model = model_class()

        def step(number):
            ids = torch.randint(VOCABULARY, (ROWS, POSITIONS))
            values_of(model, ids).mean().backward()
            model.zero_grad()

        return step

    return program


fires = trained(of_completion)
looks_alike = trained(of_each_and_more)


@pytest.mark.parametrize(
    ("values_of", "read", "line"),
    [
        (of_completion, "of_each_token(model, ids)[:, PROMPT - 1:]", "logits = model(ids)"),
        (cut_at_once, "losses[:, -COMPLETION:]", "logits = model(ids)[:, :-1]"),
    ],
)
def test_the_model_is_told_which_positions_are_read(values_of, read, line, tmp_path):
    (found,) = [
        one
        for one in findings_of(trained(values_of), tmp_path / "run.json")
        if one.rule == "positions-cut"
    ]
    (first,) = found.remedies
    assert found.match.share == COMPLETION / (POSITIONS - 1)
    assert (first.fix, first.typed, first.code) == (
        "narrow_first",
        "model(…, logits_to_keep=…)",
        line,
    )
    assert first.why.startswith(f"Only `{read}` is read (test_positions_cut.py:")
    assert not found.minor
    assert first.saves_bytes > LOGITS


@pytest.mark.parametrize(
    ("program", "read"),
    [
        (trained(of_object, WithOutput), "values[:, PROMPT - 1:]"),
        (learning(mean_of_completion), "by_module(model, ids)[:, -COMPLETION:]"),
    ],
    ids=["object", "module of a loss"],
)
def test_the_result_may_be_a_field_and_the_loss_a_module(program, read, tmp_path):
    (found,) = [
        one for one in findings_of(program, tmp_path / "run.json") if one.rule == "positions-cut"
    ]
    (first,) = found.remedies
    assert found.match.share == COMPLETION / (POSITIONS - 1)
    assert (first.fix, first.typed) == ("narrow_first", "model(…, logits_to_keep=…)")
    assert first.why.startswith(f"Only `{read}` is read (test_positions_cut.py:")
    assert not found.minor
    assert first.saves_bytes > LOGITS


@pytest.mark.parametrize(
    "program",
    [
        *(trained(of_each_and_more), trained(of_completion, WithoutSwitch), trained(features)),
        learning(mean_of_all),
    ],
    ids=["the rest is read", "no switch", "features", "the mean of all"],
)
def test_what_is_read_whole_or_cannot_be_told_is_left_alone(program, tmp_path):
    assert "positions-cut" not in names(program, tmp_path / "run.json")
