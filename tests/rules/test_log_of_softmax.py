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
