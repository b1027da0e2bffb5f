"""log-of-softmax: a logarithm is taken of probabilities, and both are kept for the backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.rules.recorded import findings_of

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


@pytest.mark.parametrize(
    ("program", "instead"),
    [(fires, "`F.cross_entropy`"), (by_sigmoid, "`F.binary_cross_entropy_with_logits`")],
)
def test_the_line_of_the_logarithm_is_told(program, instead, tmp_path):
    found = findings_of(program, tmp_path / "run.json")
    (one,) = (one for one in found if one.rule == "log-of-softmax")
    (first,) = one.remedies
    assert "log(" in one.site.code
    assert (one.minor, first.fix) == (False, "fused_loss")
    assert instead in first.why
    assert one.bytes in (TABLE, 2 * TABLE)
