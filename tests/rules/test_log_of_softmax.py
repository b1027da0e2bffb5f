"""log-of-softmax: a logarithm is taken of probabilities, and both are kept for the backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.recorded import findings_of, peak_of

ROWS, WIDTH, WORDS = 64, 16, 4096
TABLE = ROWS * WORDS * 4


def training(loss_of):
    head = nn.Linear(WIDTH, WORDS)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)

    def step(number):
        optimizer.zero_grad()
        loss_of(head(torch.rand(ROWS, WIDTH)), torch.randint(WORDS, (ROWS,))).backward()
        optimizer.step()

    return step


def fires():
    """The cross-entropy is written out."""

    def loss_of(logits, target):
        probs = logits.softmax(-1)
        logs = torch.log(probs + 1e-9)
        return -logs.gather(-1, target[:, None]).mean()

    return training(loss_of)


def looks_alike():
    """The logarithm of the probabilities is computed in one go."""

    def loss_of(logits, target):
        logs = F.log_softmax(logits, -1)
        return -logs.gather(-1, target[:, None]).mean()

    return training(loss_of)


def by_sigmoid():
    """So is the binary one."""

    def loss_of(logits, target):
        p = torch.sigmoid(logits)
        return -p.clamp(min=1e-9).log().mean()

    return training(loss_of)


def by_logsigmoid():
    return training(lambda logits, target: -F.logsigmoid(logits).mean())


def of_both():
    """A cross-entropy of independent labels, with the logarithm of what is left of one as well."""

    def loss_of(logits, target, eps=1e-7):
        p = torch.sigmoid(logits)
        label = (target % 2).float()[:, None]
        positive = label * torch.log(p + eps)
        negative = (1 - label) * torch.log(1 - p + eps)
        return -(positive + negative).mean()

    return training(loss_of)


def of_both_at_once():
    def loss_of(logits, target):
        label = (target % 2).float()[:, None].expand_as(logits)
        return F.binary_cross_entropy_with_logits(logits, label)

    return training(loss_of)


@pytest.mark.parametrize(
    ("program", "fused", "instead"),
    [
        (fires, looks_alike, "`F.cross_entropy`"),
        (by_sigmoid, by_logsigmoid, "`F.binary_cross_entropy_with_logits`"),
        (of_both, of_both_at_once, "`F.binary_cross_entropy_with_logits`"),
    ],
)
def test_the_line_of_the_logarithm_is_told_and_what_is_saved(program, fused, instead, tmp_path):
    found = findings_of(program, tmp_path / "run.json")
    (one,) = (one for one in found if one.rule == "log-of-softmax")
    (first,) = one.remedies
    assert "log(" in one.site.code
    assert (one.minor, first.fix) == (False, "fused_loss")
    assert instead in first.why
    findings_of(fused, tmp_path / "fused.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "fused.json")
    assert first.saves_bytes == pytest.approx(saved, abs=TABLE)


def test_a_logarithm_computed_at_once_is_none(tmp_path):
    found = findings_of(looks_alike, tmp_path / "run.json")
    assert not [one for one in found if one.rule == "log-of-softmax"]


class Classifier(nn.Module):
    """It returns probabilities, or their logarithm."""

    def __init__(self, last):
        super().__init__()
        self.head = nn.Linear(WIDTH, WORDS)
        self.last = last

    def forward(self, x):
        return self.last(self.head(x))


def policy(logits):
    return torch.softmax(logits, -1)


def likelihood(probs, target):
    logs = torch.log(probs + 1e-9)
    return -logs.gather(-1, target[:, None]).mean()


def of_logs(logs, target):
    return -logs.gather(-1, target[:, None]).mean()


def classified(last, loss_of):
    def program():
        model = Classifier(last)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(number):
            optimizer.zero_grad()
            loss_of(model(torch.rand(ROWS, WIDTH)), torch.randint(WORDS, (ROWS,))).backward()
            optimizer.step()

        return step

    return program


def with_entropy(probs, target):
    logs = (probs + 1e-9).log()
    chosen = logs[torch.arange(ROWS), target]
    return -chosen.mean() + 0.1 * torch.sum(probs * logs, dim=1).mean()


def with_entropy_of_logs(logs, target):
    chosen = logs[torch.arange(ROWS), target]
    return -chosen.mean() + 0.1 * torch.sum(logs.exp() * logs, dim=1).mean()


def focal(logits, target):
    p = F.softmax(logits, dim=1).clamp(1e-7, 1.0)
    cost = -p.log().gather(1, target[:, None])
    return ((1 - p.gather(1, target[:, None])) ** 2 * cost).mean()


def focal_of_logs(logits, target):
    cost = -F.log_softmax(logits, dim=1).gather(1, target[:, None])
    return ((1 - (-cost).exp()) ** 2 * cost).mean()


@pytest.mark.parametrize(
    ("program", "fused", "maker"),
    [
        *(
            (classified(last, likelihood), classified(nn.LogSoftmax(-1), of_logs), maker)
            for last, maker in ((nn.Softmax(-1), "Classifier.forward"), (policy, "policy"))
        ),
        (classified(nn.Identity(), focal), classified(nn.Identity(), focal_of_logs), ""),
    ],
)
def test_probabilities_may_come_from_a_model(program, fused, maker, tmp_path):
    found = findings_of(program, tmp_path / "run.json")
    (one,) = (one for one in found if one.rule == "log-of-softmax")
    (first,) = one.remedies
    assert "log(" in one.site.code
    assert (f"Have `{maker}` return the logits" in first.why) == bool(maker)
    findings_of(fused, tmp_path / "fused.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "fused.json")
    assert first.saves_bytes == pytest.approx(saved, abs=1.5 * TABLE)
    assert first.saves_bytes <= saved + TABLE // 8


@pytest.mark.parametrize("last", [nn.Softmax(-1), policy])
def test_no_more_is_promised_where_an_entropy_needs_the_probabilities(last, tmp_path):
    found = findings_of(classified(last, with_entropy), tmp_path / "run.json")
    first = [one.remedies[0] for one in found if one.rule == "log-of-softmax"]
    findings_of(classified(nn.LogSoftmax(-1), with_entropy_of_logs), tmp_path / "fused.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "fused.json")
    assert [one for one in first if one.saves_bytes > saved + TABLE // 8] == []


def test_a_logarithm_of_something_else_is_none(tmp_path):
    """A table of weights is as large as the probabilities are."""
    weights = torch.rand(ROWS, WORDS) + 1

    def loss_of(logits, target):
        probs = logits.softmax(-1)
        return (probs * weights.log()).sum() + (probs * weights).mean()

    found = findings_of(lambda: training(loss_of), tmp_path / "run.json")
    assert not [one for one in found if one.rule == "log-of-softmax"]
